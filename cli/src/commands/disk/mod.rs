//! `tombolo disk`: serves a disk, and inspects, converts and merges disks.

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
use crate::failure::{Failure, OrCannot, Outcome};
use crate::progress::{Screen, Shown};
use crate::service::status::ExportStatus;

use check::DiskCheckArgs;
use convert::DiskConvertArgs;
use create::DiskCreateArgs;
use info::DiskInfoArgs;
use merge::{DiskDiscardArgs, DiskMergeArgs};

/// Serve a disk to guests and NBD clients; create and maintain disks.
///
/// Serves an image (raw, qcow2 or an overlay), a block device, a disk of an NBD server, or a file on an NFS
/// server. Blocks that a guest discards are freed in local images. A local image is locked as by QEMU,
/// against other servers and VMMs. NFS has no locks: let only one server use a file there. While the server
/// of a remote disk is away, the guest's requests wait; with `soft` in an nfs:// URL they fail in the end.
///
/// Runs in the foreground and logs to standard error. Once ready, it prints a line that begins with `ready`
/// for each endpoint, followed by the options for the VMM and the command for the guest. SIGINT or SIGTERM
/// ends the server once all writes are durable; guests then wait for it to be started again, and those whose
/// VMM cannot reconnect must be restarted.
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
    /// Resize a disk that is being served, or pick up its new size; guests are notified.
    ///
    /// The server must be one of this user, with its control socket in the default directory. Data beyond a
    /// smaller size are lost, so shrinking is refused without --shrink. Overlays and disks of NBD servers
    /// cannot be resized.
    #[command(after_help = RESIZE_EXAMPLES)]
    Resize {
        /// Allow SIZE to be smaller than the disk. Shrink the file system in it first.
        #[arg(long, requires = "size")]
        shrink: bool,
        /// Disk, as given to the server.
        file: PathBuf,
        /// New size in bytes; K, M, G and T are powers of 1024. By default the size of the underlying file or
        /// device, after truncate, lvextend and the like.
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
                "no disk given: write tombolo disk FILE --vhost-user SOCKET or --nbd ADDR",
            )),
        }
    }
}

fn checked(text: &str) -> Result<String, String> {
    size(text).map(|_| text.to_owned()).ok_or_else(|| "a number of bytes, such as 20G".into())
}

/// Resizes the disk through its server, and returns the result in one line.
fn resize(file: &Path, size: Option<&str>, shrink: bool) -> Result<String, Failure> {
    let resizing = format!("resize {}", file.display());
    let source = DiskSource::of_word(file, &ImageOptions::default())?.shown();
    let is_it = |export: &ExportStatus| export.source == source;
    let found = server_that(|status| status.exports.iter().any(is_it));
    let found =
        found.and_then(|(server, status)| Some((server, status.exports.into_iter().find(is_it)?.name)));
    let Some((mut server, name)) = found else {
        let reason = "no server found with a control socket in the default directory";
        return Err(Failure::cannot(&resizing, reason).remedy("serve it as this user, without --control"));
    };
    let size = size.map_or_else(|| "size".into(), |size| format!("size={size}"));
    let shrink = if shrink { ",shrink" } else { "" };
    let set = server.set(&format!("{size}{shrink},disk={name}")).or_cannot(&resizing)?;
    let bytes = |key: &str| set.get(key).and_then(Value::as_u64).unwrap_or_default();
    let (before, now) = (bytes("before_bytes"), bytes("size_bytes"));
    let shown = format!("{}: {} ({now} bytes)", file.display(), size_text(now));
    Ok(match now.cmp(&before) {
        cmp::Ordering::Equal => format!("{shown}, unchanged"),
        cmp::Ordering::Greater => format!("{shown}, grown from {}", size_text(before)),
        cmp::Ordering::Less => {
            format!("{shown}, shrunk from {}: data beyond the new size are lost", size_text(before))
        }
    })
}

/// Returns a flag that the first SIGINT or SIGTERM sets.
fn stopping(screen: &Arc<Screen>) -> Result<Arc<AtomicBool>, Failure> {
    let (stop, screen) = (Arc::new(AtomicBool::new(false)), screen.clone());
    let raised = stop.clone();
    stop::on_signal(move |signal| {
        raised.store(true, Ordering::Relaxed);
        screen.say(&format!("{signal}: finishing outstanding requests; repeat to end at once"));
    })
    .or_cannot("watch for signals")?;
    Ok(stop)
}

/// Display of the progress of a command that reads, copies, compares or merges a whole disk.
struct Shower<F> {
    size_bytes: u64,
    /// Past participle after the numbers, such as `copied`.
    doing: &'static str,
    done_bytes: F,
}

/// Returns the display of the progress that `watched` reports for a disk.
fn shower(doing: &'static str, disk: &dyn BlockDevice, watched: &Watched) -> Arc<dyn Shown> {
    let (size_bytes, watched) = (disk.geometry().size_bytes, watched.clone());
    Arc::new(Shower { size_bytes, doing, done_bytes: move || watched.tally().done_bytes })
}

impl<F: Fn() -> u64 + Send + Sync> Shown for Shower<F> {
    fn draw(&self, bar: &ProgressBar) {
        bar.set_length(self.size_bytes);
        bar.set_position((self.done_bytes)());
        bar.set_message(self.doing);
    }

    fn line(&self) -> String {
        format!("{} of {} {}", size_text((self.done_bytes)()), size_text(self.size_bytes), self.doing)
    }
}
