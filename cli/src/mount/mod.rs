//! `tombolo mount`: a directory mounted on this host through FUSE; also `mount.tombolo`, for mount(8) and fstab.

mod background;
mod helper;
mod keeper;
mod log;
mod mountinfo;
mod options;
mod place;
mod server;
mod source;

use std::path::{Path, PathBuf, absolute as absolute_path};

use clap::Args;

use crate::cli::LogArgs;
use crate::failure::{Failure, Outcome};

pub use helper::Helper;
pub use mountinfo::mounted_at;
use options::MountOptions;
pub use place::{KIND, MountPoint, absolute};
pub use server::reason;
use source::Source;

/// Mount a directory on this host through FUSE.
///
/// Returns once the mount is ready; the server goes on in the background until it is unmounted, or gets SIGTERM, and is
/// started again if it is killed. In /etc/fstab, with a link from /sbin/mount.tombolo to this program: `dir:/srv/src /mnt tombolo ro,nofail 0 0`.
#[derive(Args)]
#[command(after_help = OPTIONS_HELP)]
pub struct MountArgs {
    /// What to mount: `dir:PATH`, a directory of this host.
    source: Source,
    /// Where: an existing directory.
    mountpoint: PathBuf,
    /// Mount options, as in fstab (see below).
    #[arg(short, value_name = "OPTION[,OPTION]…", value_parser = checked_options)]
    options: Vec<String>,
    /// Stay in the foreground; log to standard error.
    #[arg(short, long)]
    foreground: bool,
    /// Where to listen for `tombolo top` and other tools.
    #[arg(long, value_name = "SOCKET")]
    control: Option<PathBuf>,
    /// Be the keeper of a mount in the background.
    #[arg(long, hide = true)]
    keeper: bool,
    /// Be the server of a mount in the background, with this file as log.
    #[arg(long, hide = true, conflicts_with = "keeper")]
    background_log: Option<PathBuf>,
}

const OPTIONS_HELP: &str = "\
Mount options:
  ro                    refuse changes
  allow_other           let users other than the one who mounts in
  coherence=POLICY      what the kernel may keep: strict (nothing), auto (close-to-open, 1 s; the default), always (a day)
  threads=N             how many threads serve requests
  submounts=show|hide   what becomes of file systems mounted below the directory: part of the tree (the default), or gone
  fsname=NAME           what mount(8) lists as the source (default: the directory)
  dev, suid, noexec     honour device nodes and set-user-id bits; refuse to execute (default: nodev, nosuid, exec)
  Those that mount(8) and systemd act upon themselves (defaults, nofail, _netdev, user, x-…) are ignored here.";

impl MountArgs {
    /// Mounts.
    pub fn run(self, log: LogArgs) -> Outcome {
        let mut options = MountOptions::default();
        for list in &self.options {
            options.add(list).map_err(Failure::usage)?;
        }
        let mount = Mount::checked(self.source, &self.mountpoint, options, self.control)?;
        if self.keeper {
            keeper::keep(&mount, &self.options, log)
        } else if self.foreground || self.background_log.is_some() {
            server::serve(&mount, self.background_log.as_deref())
        } else {
            background::start(&mount, &self.options, log)
        }
    }
}

/// A mount that was asked for, checked as far as it can be before anything happens.
#[derive(Debug)]
struct Mount {
    source: Source,
    point: MountPoint,
    options: MountOptions,
    control: Option<PathBuf>,
}

impl Mount {
    fn checked(
        source: Source,
        mountpoint: &Path,
        options: MountOptions,
        control: Option<PathBuf>,
    ) -> Result<Self, Failure> {
        let source = source.checked()?;
        let point = MountPoint::checked(mountpoint)?;
        let Source::Dir(dir) = &source;
        point.is_apart_from(dir, options.submounts)?;
        // A server that is started again does not start where we do.
        let control = control.map(absolute_path).transpose();
        let control =
            control.map_err(|error| Failure::cannot("find the place of the control socket", &error))?;
        Ok(Self { source, point, options, control })
    }
}

fn checked_options(list: &str) -> Result<String, String> {
    list.parse::<MountOptions>().map(|_| list.to_owned())
}
