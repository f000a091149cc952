//! `tombolo serve`: shares directories with guests, processes of this host and NFS clients.

use std::path::PathBuf;

use clap::Args;

use crate::assembly::options::{NFS, ServerOptions};
use crate::assembly::plan::Plan;
use crate::assembly::servers::{self, stdio};
use crate::failure::{Failure, Outcome};

/// Share directories with guests, local processes and NFS clients.
///
/// Each directory needs at least one endpoint: --virtiofs, --fd, --fuse, --shm, --shm-file, --nfs, --nfs-tls
/// or --stdio. None is the default. The configuration file may also list disks, as for `tombolo disk`.
///
/// Runs in the foreground and logs to standard error. Once ready, it prints a line that begins with `ready`
/// for each endpoint, followed by the options for the VMM and the command for the guest.
///
/// SIGINT or SIGTERM ends the server. NFS clients then wait until it is started again. Programs in guests
/// that use the mount hang, because QEMU does not reconnect virtio-fs: unmount in the guests first, and
/// restart the VMs or replug the devices afterwards. With --keep a kill or an upgrade of the server costs
/// only a pause.
#[derive(Args)]
#[command(after_help = CONFIG_HELP)]
pub struct ServeArgs {
    #[command(flatten)]
    options: ServerOptions,
    /// Serve NFS over standard input and output, for clients of `nfs+ssh://` URLs, which start this command
    /// on the remote host by ssh(1).
    ///
    /// All directories are exported. Of several processes with the same options one serves and the others
    /// forward to it; it ends with its last connection.
    #[arg(long, help_heading = NFS)]
    stdio: bool,
    /// Read options not given on the command line from a TOML file.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

const CONFIG_HELP: &str = "\
Examples:
  tombolo serve ~/src --virtiofs /run/vm1.sock,tag=src
  tombolo serve /srv/src /srv/docs --virtiofs /run/vm1.sock,export=/src --socket-group kvm --nfs :2049 --allow 10.0.0.0/8
  tombolo serve ~/src --shm-file /dev/shm/vm1,size=64M

Configuration file: the same names; the command line takes precedence. Paths are relative to the file's directory.
  dir = [\"/srv/src=/src\", \"/srv/docs\"]
  virtiofs = [\"/run/vm1.sock,export=/src\", \"/run/vm2.sock,tag=docs,export=/docs\"]
  socket-group = \"kvm\"
  socket-mode = \"0660\"
  fuse = [\"/mnt/src,export=/src\"]
  shm = [\"/run/tombolo/share.sock,export=/src\"]
  shm-file = [\"/dev/shm/vm1,size=64M,export=/src\"]
  doorbell = \"adaptive\"
  shm-policy = \"/etc/tombolo/links.toml\"
  nfs = [\"0.0.0.0:2049,export=/src\"]
  read-only = true
  coherence = \"strict\"
  xattrs = \"off\"
  submounts = \"hide\"
  control = \"/run/tombolo/src.sock\"
  metrics = \"127.0.0.1:9464\"
  squash = \"root\"
  anonuid = 65534
  anongid = 65534
  allow = [\"10.0.0.0/8\", \"fd00::/16\"]
  leases = [\"10.1.0.0/16\", \"tls\"]
  manage-gids = true
  state = \"/var/lib/tombolo\"
  nfs-threads = 2
  nfs-no-udp = true
  [[disk]]                      # repeat for each disk; the options of `tombolo disk`
  file = \"vm.img\"
  vhost-user = [\"/run/vm1-disk.sock\"]
  nbd = [\"10809\"]
  queues = 4";

impl ServeArgs {
    pub fn run(self) -> Outcome {
        let options = ServerOptions { stdio: self.stdio, ..self.options.over_file(self.config.as_deref())? };
        if self.stdio && options.keep == Some(true) {
            return Err(Failure::usage("--keep applies to --virtiofs, not to --stdio").remedy("leave it out"));
        }
        let serve = if self.stdio { stdio::serve } else { servers::serve };
        serve(&Plan::new(options)?)
    }
}
