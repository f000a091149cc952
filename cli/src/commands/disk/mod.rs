//! `tombolo disk`: a disk for guests, and what can be done with one without a guest.

mod check;
mod convert;
mod create;
mod info;
mod merge;

use std::cmp;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::{Args, Subcommand};
use indicatif::ProgressBar;
use libtombolo::disk::Watched;
use serde_json::Value;
use tombolo_core::block::BlockDevice;

use crate::assembly::disk;
use crate::assembly::options::disk::{DiskOptions, DiskServerOptions, ImageOptions, size};
use crate::assembly::plan::disk::DiskSource;
use crate::cli::LogArgs;
use crate::commands::files::shown::size as size_text;
use crate::commands::files::{print, stop};
use crate::commands::umount::server_that;
use crate::failure::{Failure, Outcome};
use crate::progress::{Screen, Shown};
use crate::service::status::ExportStatus;

use check::DiskCheckArgs;
use convert::DiskConvertArgs;
use create::DiskCreateArgs;
use info::DiskInfoArgs;
use merge::{DiskDiscardArgs, DiskMergeArgs};

/// Give guests and others a disk: an image (raw or qcow2), a block device of this host, a disk of an NBD
/// server, or a file of an NFS server.
///
/// Stays in the foreground and logs to standard error. When it can be used it prints a line that begins with
/// `ready` for each endpoint, followed by what to tell the VMM and what to type in the guest. SIGINT or
/// SIGTERM ends it, when what guests have written is durable; they wait then, and those that cannot connect
/// again must be started again.
#[derive(Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct DiskArgs {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    disk: Option<DiskOptions>,
    #[command(flatten)]
    server: DiskServerOptions,
}

#[derive(Subcommand)]
enum Action {
    Create(DiskCreateArgs),
    Info(DiskInfoArgs),
    Check(DiskCheckArgs),
    Convert(Box<DiskConvertArgs>),
    Merge(DiskMergeArgs),
    Discard(DiskDiscardArgs),
    /// Change the size of a disk that is served, or take in that it was changed; its guests are told.
    ///
    /// What lies behind a smaller size is gone for good, so that is refused without --shrink.
    #[command(after_help = RESIZE_EXAMPLES)]
    Resize {
        /// Cut the disk off where SIZE is smaller than it. Make the file system in it smaller first.
        #[arg(long, requires = "size")]
        shrink: bool,
        /// The disk, as it was given to the server.
        file: PathBuf,
        /// How long it is to be, in bytes; K, M and G stand for powers of 1024. Without it, as long as what
        /// it lies in is by now: after truncate, lvextend and the like.
        #[arg(value_parser = checked)]
        size: Option<String>,
    },
}

const EXAMPLES: &str = "\
Examples:
  truncate -s 10G vm.img && tombolo disk vm.img --vhost-user /run/vm1.sock
  tombolo disk /dev/vg0/vm1 --vhost-user /run/vm1.sock --socket-group kvm --queues 4 --serial root
  tombolo disk golden.img --read-only --vhost-user /run/vm1.sock --vhost-user /run/vm2.sock
  tombolo disk vm.img --nbd ./vm.nbd --nbd 10809
  tombolo disk clone.qcow2 --backing-dir /srv/golden --vhost-user /run/vm1.sock
  tombolo disk create vm1.overlay --base golden.img && tombolo disk vm1.overlay --vhost-user /run/vm1.sock
  tombolo disk nbd://ship/vm --vhost-user /run/vm1.sock
  tombolo disk vm.qcow2 --mount /mnt/vm    # /mnt/vm/vm.qcow2 is the disk's bytes
  tombolo disk nfs://ship/images/vm.img --vhost-user /run/vm1.sock
  tombolo disk resize vm.img 20G
  tombolo disk info vm.img
  tombolo disk check vm.qcow2
  tombolo disk convert vm.img vm.qcow2";

const RESIZE_EXAMPLES: &str = "\
Examples:
  tombolo disk resize vm.img 20G    # in the guest: resize2fs /dev/disk/by-id/virtio-vm.img
  tombolo disk resize vm.img 8G --shrink    # in the guest before: resize2fs /dev/disk/by-id/virtio-vm.img 8G
  lvextend -L +10G /dev/vg0/vm1 && tombolo disk resize /dev/vg0/vm1";

impl DiskArgs {
    pub fn run(&self, log: LogArgs) -> Outcome {
        match (&self.action, &self.disk) {
            (Some(Action::Create(asked)), _) => asked.run(),
            (Some(Action::Info(asked)), _) => asked.run(),
            (Some(Action::Check(asked)), _) => asked.run(log),
            (Some(Action::Convert(asked)), _) => asked.run(log),
            (Some(Action::Merge(asked)), _) => asked.run(log),
            (Some(Action::Discard(asked)), _) => asked.run(log),
            (Some(Action::Resize { shrink, file, size }), _) => {
                let said = resize(file, size.as_deref(), *shrink)?;
                if log.quiet == 0 { print(&said) } else { Ok(()) }
            }
            (None, Some(options)) => disk::serve(options.clone(), &self.server),
            (None, None) => Err(Failure::usage(
                "the disk is missing: write tombolo disk FILE --vhost-user SOCKET or --nbd ADDR",
            )),
        }
    }
}

fn checked(text: &str) -> Result<String, String> {
    size(text).map(|_| text.to_owned()).ok_or_else(|| "a number of bytes, such as 20G".into())
}

/// Has its server resize a disk: what was done, in a line.
fn resize(file: &Path, size: Option<&str>, shrink: bool) -> Result<String, Failure> {
    let resizing = format!("resize {}", file.display());
    let source = DiskSource::of_word(file, &ImageOptions::default())?.shown();
    let is_it = |export: &ExportStatus| export.source == source;
    let found = server_that(|status| status.exports.iter().any(is_it));
    let found =
        found.and_then(|(server, status)| Some((server, status.exports.into_iter().find(is_it)?.name)));
    let Some((mut server, name)) = found else {
        let reason = "no server with its control socket in the usual directory serves it";
        return Err(Failure::cannot(&resizing, reason).remedy("serve it as this user, without --control"));
    };
    let size = size.map_or_else(|| "size".into(), |size| format!("size={size}"));
    let shrink = if shrink { ",shrink" } else { "" };
    let set = server.set(&format!("{size}{shrink},disk={name}"));
    let set = set.map_err(|error| Failure::cannot(&resizing, &error))?;
    let bytes = |key: &str| set.get(key).and_then(Value::as_u64).unwrap_or_default();
    let (before, now) = (bytes("before_bytes"), bytes("size_bytes"));
    let shown = format!("{} has {} ({now} bytes)", file.display(), size_text(now));
    Ok(match now.cmp(&before) {
        cmp::Ordering::Equal => format!("{shown}, as before"),
        cmp::Ordering::Greater => format!("{shown} now, and {} before", size_text(before)),
        cmp::Ordering::Less => {
            format!("{shown} now, and {} before: what lay behind that is gone", size_text(before))
        }
    })
}

/// What the first SIGINT or SIGTERM raises.
fn stopping(screen: &Arc<Screen>) -> Result<Arc<AtomicBool>, Failure> {
    let (stop, screen) = (Arc::new(AtomicBool::new(false)), screen.clone());
    let raised = stop.clone();
    stop::on_signal(move |signal| {
        raised.store(true, Ordering::Relaxed);
        screen.say(&format!("{signal}: finishing what is under way; once more ends at once"));
    })
    .map_err(|error| Failure::cannot("watch for signals", &error))?;
    Ok(stop)
}

/// How far a walk over a disk is.
struct Shower {
    size_bytes: u64,
    watched: Watched,
    doing: &'static str,
}

impl Shower {
    fn new(doing: &'static str, source: &dyn BlockDevice, watched: &Watched) -> Self {
        Self { size_bytes: source.geometry().size_bytes, watched: watched.clone(), doing }
    }
}

impl Shown for Shower {
    fn draw(&self, bar: &ProgressBar) {
        bar.set_length(self.size_bytes);
        bar.set_position(self.watched.tally().done_bytes);
        bar.set_message(self.doing);
    }

    fn line(&self) -> String {
        let done_bytes = self.watched.tally().done_bytes;
        format!("{} of {} {}", size_text(done_bytes), size_text(self.size_bytes), self.doing)
    }
}
