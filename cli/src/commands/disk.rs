//! `tombolo disk`: a disk for guests.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use crate::assembly::disk;
use crate::assembly::options::disk::{DiskOptions, DiskServerOptions, size};
use crate::assembly::plan::disk::DiskSource;
use crate::commands::disk_info::DiskInfoArgs;
use crate::commands::umount::server_that;
use crate::failure::{Failure, Outcome};
use crate::service::status::ExportStatus;

/// Give guests and others a disk: an image (raw or qcow2), a block device of this host, a disk of an NBD server, or a file of an NFS server.
///
/// Stays in the foreground and logs to standard error. When it can be used it prints a line that begins with `ready` for
/// each endpoint, followed by what to tell the VMM and what to type in the guest. SIGINT or SIGTERM ends it, when what guests have
/// written is durable; they wait then, and those that cannot connect again must be started again.
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
    Info(DiskInfoArgs),
    /// Change the size of a disk that is served, or take in that it was changed; its guests are told.
    ///
    /// What lies behind a smaller size is gone.
    #[command(after_help = RESIZE_EXAMPLES)]
    Resize {
        /// The disk, as it was given to the server.
        file: PathBuf,
        /// How long it is to be, in bytes; K, M and G stand for powers of 1024. Without it, as long as what it lies in is by now:
        /// after truncate, lvextend and the like.
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
  tombolo disk nbd://ship/vm --vhost-user /run/vm1.sock
  tombolo disk nfs://ship/images/vm.img --vhost-user /run/vm1.sock
  tombolo disk resize vm.img 20G
  tombolo disk info vm.img";

const RESIZE_EXAMPLES: &str = "\
Examples:
  tombolo disk resize vm.img 20G    # in the guest: resize2fs /dev/disk/by-id/virtio-vm.img
  lvextend -L +10G /dev/vg0/vm1 && tombolo disk resize /dev/vg0/vm1";

impl DiskArgs {
    pub fn run(&self) -> Outcome {
        match (&self.action, &self.disk) {
            (Some(Action::Info(asked)), _) => asked.run(),
            (Some(Action::Resize { file, size }), _) => resize(file, size.as_deref()),
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

fn resize(file: &Path, size: Option<&str>) -> Outcome {
    let resizing = format!("resize {}", file.display());
    let source = DiskSource::of_word(file, None, None)?.shown();
    let is_it = |export: &ExportStatus| export.source == source;
    let found = server_that(|status| status.exports.iter().any(is_it));
    let found =
        found.and_then(|(server, status)| Some((server, status.exports.into_iter().find(is_it)?.name)));
    let Some((mut server, name)) = found else {
        let reason = "no server with its control socket in the usual directory serves it";
        return Err(Failure::cannot(&resizing, reason).remedy("serve it as this user, without --control"));
    };
    let size = size.map_or_else(|| "size".into(), |size| format!("size={size}"));
    server.set(&format!("{size},disk={name}")).map(drop).map_err(|error| Failure::cannot(&resizing, &error))
}
