//! `tombolo mount`: a directory, or the export of an NFS server, mounted on this host through FUSE; also
//! `mount.tombolo`, for mount(8) and fstab.

mod background;
mod helper;
mod log;
mod options;
mod remount;
mod server;
mod source;
mod supervisor;

use std::path::{Path, PathBuf, absolute as absolute_path};

use clap::Args;
use tombolo_host_service::logging::Destination;

use crate::assembly::options::address::ListenAddress;
use crate::cli::LogArgs;
use crate::failure::{Failure, Outcome};
use crate::location::Location;

use crate::mount_point::MountPoint;
pub use helper::Helper;
use options::MountOptions;
pub use server::reason;

/// Mount a directory, or an export of an NFS server, on this host through FUSE.
///
/// Returns once the mount is ready; its server goes on in the background until it is unmounted, or gets
/// SIGTERM, and is started again if it is killed. In /etc/fstab, with a link from /sbin/mount.tombolo to this
/// program: `nfs://host:2049/src /mnt tombolo allow_other,_netdev,nofail 0 0`.
#[derive(Args)]
#[command(after_help = OPTIONS_HELP)]
pub struct MountArgs {
    /// What to mount: `nfs://HOST[:PORT]/NAME`, an export of an NFS server; `nfs+ssh://[USER@]HOST/PATH`, a
    /// directory of another host through ssh(1); `shm:SOCKET/NAME`, an export of a server on this host, over
    /// shared memory (see below for guests); or `dir:PATH`, a directory of this host.
    source: Location,
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
    /// Serve metrics for Prometheus over HTTP: PORT on this host only, :PORT on all interfaces, IP:PORT or
    /// NAME:PORT on one.
    #[arg(long, value_name = "ADDR")]
    metrics: Option<ListenAddress>,
    /// Be the supervisor of a mount in the background.
    #[arg(long, hide = true)]
    supervisor: bool,
    /// Be the server of a mount in the background, with this file as log.
    #[arg(long, hide = true, conflicts_with = "supervisor")]
    background_log: Option<PathBuf>,
    /// Be not the first server of this mount.
    #[arg(long, hide = true, requires = "background_log")]
    again: bool,
}

const OPTIONS_HELP: &str = "\
Examples:
  tombolo mount nfs://nas.example/export/src /mnt/src
  tombolo mount -o ro,coherence=strict dir:/srv/data /mnt/data
  tombolo mount shm:/run/src.link/src /mnt/src

Mount options:
  ro                    refuse changes
  allow_other           let users other than the one that mounts in
  coherence=POLICY      what the kernel may cache: strict (nothing), auto (close-to-open, 1 s; the default), always (a day),
                        push (everything until it changes: of directories, as root, and of servers with --host-watch over shared
                        memory, where it is the default unless noperm is said)
  locks=shared|local    what a lock excludes: all that use the directory or export (the default where locks reach that far, so not
                        over NFS), or programs that use this mount only, and the kernel keeps locks itself, at a hundredth of the cost
  xattrs=on|off         show extended attributes (the default), or none: fewer requests, but no access lists and file capabilities
  threads=N             how many threads serve requests
  sandbox=HOW           what the server may still do once it is ready: off, auto (what it, the kernel and the user allow of strict; the
                        default), or strict: nothing that it does not need, or it does not start
  fsname=NAME           what mount(8) lists as the source (default: the directory, or HOST:/NAME)
  dev, suid, noexec     honour device nodes and set-user-id bits; refuse to execute (default: nodev, nosuid, exec)
  remount               change a mount that is there: ro, rw, dev, suid, exec and their opposites, and inflight=; the rest stays as it is
  Those that mount(8) and systemd act upon themselves (defaults, nofail, _netdev, user, x-…) are ignored here.

Of directories:
  submounts=show|hide   how to treat nested mounts: as part of the tree (the default), or as if they did not exist
  ask=PATTERN           ask each time for files that other processes change through shared mappings (databases, images of disks);
                        repeatable. As in glob(7): with a / in it the path below the directory, else a name; * stands for / too

Of servers over shared memory: shm:SOCKET/NAME on this host; in a guest shm+pci:[BDF]/NAME (QEMU's ivshmem; the device's address where there
are several) or shm+mmapper:/NAME (User Mode Linux); shm+file:FILE/NAME over a file:
  doorbell=MODE         how to wait for the server: poll (looks all the time), event (sleeps), adaptive (looks while that pays;
                        the default), umwait (x86 with WAITPKG)

Of NFS servers, as in nfs(5); also in the URL, as in nfs://host/name?proto=udp&soft:
  proto=tcp|udp         what calls travel by (default: tcp)
  port=N, mountport=N   where NFS and MOUNT are served; a port in the URL is for both, without any the portmapper is asked
  rsize=N, wsize=N      the largest read and write, in bytes (default: what the server takes, at most 1M)
  inflight=N|auto       how many reads and writes may be outstanding (default: auto; see tombolo tune)
  nconnect=N            how many connections, 1 to 16 (default: 1)
  readahead=N           how far to read ahead of a program, in bytes (default: 4M)
  hard, soft            wait for a server for ever (the default), or fail after timeo=TENTHS and retrans=N more time-outs
  intr, nointr          a killed program's call ends at once, or never (default: once it waited for 2 s)
  ac, noac, actimeo=S   how long attributes are cached, in seconds; noac and 0 make the kernel cache nothing either.
                        acregmin=, acregmax=, acdirmin=, acdirmax=: the same apart (default: 3, 60, 30, 60)
  retry=N               for how many minutes to try for a server that is not there yet (default: 2; nfs+shm: 0; with bg 10000)
  bg, fg                return when the server is not there yet, and go on trying in the background; or not (the default)
  resvport, noresvport  call from a port below 1024, as many servers want (default: where we may)
  noperm                with allow_other: let the server alone check permissions, not the kernel before it (not in a URL)
  ssh=COMMAND           of nfs+ssh://: what leads to the other host (default: ssh), and words of its own
  tombolo=PROGRAM       of nfs+ssh://: this program there (default: tombolo)
  vers=3, sec=sys, nolock are so anyway: locks work between the programs of this host.";

impl MountArgs {
    /// Where what it has to say goes.
    pub fn log_destination(&self) -> Destination {
        if self.supervisor || self.background_log.is_some() {
            Destination::Background
        } else {
            Destination::StandardError
        }
    }

    pub fn run(self, log: LogArgs) -> Outcome {
        let mut options = MountOptions::default();
        for list in &self.options {
            options.add(list).map_err(Failure::usage)?;
        }
        if options.remount {
            return remount::remount(&self.mountpoint, &options);
        }
        let mut mount = Mount::checked(self.source, &self.mountpoint, options, self.control)?;
        mount.metrics = self.metrics;
        if self.supervisor {
            supervisor::supervise(&mount, &self.options, log)
        } else if self.foreground || self.background_log.is_some() {
            server::serve(&mount, self.background_log.as_deref(), self.again)
        } else {
            background::start(&mount, &self.options, log)
        }
    }
}

/// A mount that was asked for, checked as far as it can be before anything happens.
#[derive(Debug)]
struct Mount {
    source: Location,
    point: MountPoint,
    options: MountOptions,
    control: Option<PathBuf>,
    metrics: Option<ListenAddress>,
}

impl Mount {
    fn checked(
        source: Location,
        mountpoint: &Path,
        options: MountOptions,
        control: Option<PathBuf>,
    ) -> Result<Self, Failure> {
        let source = source::checked(source, &options)?;
        let point = MountPoint::checked(mountpoint)?;
        if let Location::Dir(dir) = &source {
            point.is_apart_from(dir, options.submounts.unwrap_or_default())?;
        }
        // A server that is started again does not start where we do.
        let control = control.map(absolute_path).transpose();
        let control =
            control.map_err(|error| Failure::cannot("find the place of the control socket", &error))?;
        Ok(Self { source, point, options, control, metrics: None })
    }
}

fn checked_options(list: &str) -> Result<String, String> {
    list.parse::<MountOptions>().map(|_| list.to_owned())
}
