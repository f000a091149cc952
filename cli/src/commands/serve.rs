//! `tombolo serve`: directories shared with guests, with processes of this host, and with NFS clients.

use std::path::PathBuf;

use clap::Args;

use crate::assembly::options::{NFS, ServerOptions};
use crate::assembly::plan::Plan;
use crate::assembly::servers::{self, stdio};
use crate::failure::{Failure, Outcome};

/// Share directories of this host with guests, other processes and NFS clients; and disks, of the
/// configuration file.
///
/// Stays in the foreground and logs to standard error. When it can be used it prints a line that begins with
/// `ready` for each endpoint, followed by what to tell the VMM and what to type in the guest. SIGINT or
/// SIGTERM ends it, and what its guests have mounted with it; NFS clients wait for its next start.
#[derive(Args)]
#[command(after_help = CONFIG_HELP)]
pub struct ServeArgs {
    #[command(flatten)]
    options: ServerOptions,
    /// Serve NFS over standard input and output, for `nfs+ssh://` URLs, whose clients have ssh(1) start this
    /// on the other host.
    ///
    /// All directories are offered. One of the processes with the same options serves, and the others pass on
    /// to it; it ends when no connection is left.
    #[arg(long, help_heading = NFS)]
    stdio: bool,
    /// Read what is not said here from a TOML file.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

const CONFIG_HELP: &str = "\
Examples:
  tombolo serve ~/src --virtiofs /run/vm1.sock,tag=src
  tombolo serve /srv/src /srv/docs --virtiofs /run/vm1.sock,export=/src --socket-group kvm --nfs :2049 --allow 10.0.0.0/8
  tombolo serve ~/src --shm-file /dev/shm/vm1,size=64M

Configuration file: the same names; what the command line says counts before it. Paths count from where the file lies.
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
  readonly = true
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
  [[disk]]                      # as often as there are disks; the options of `tombolo disk`
  file = \"vm.img\"
  vhost-user = [\"/run/vm1-disk.sock\"]
  nbd = [\"10809\"]
  queues = 4";

impl ServeArgs {
    pub fn run(self) -> Outcome {
        let options = ServerOptions { stdio: self.stdio, ..self.options.over_file(self.config.as_deref())? };
        if self.stdio && options.keep == Some(true) {
            return Err(
                Failure::usage("--keep is for --virtiofs, and not for --stdio").remedy("leave it out")
            );
        }
        let serve = if self.stdio { stdio::serve } else { servers::serve };
        serve(&Plan::new(options)?)
    }
}
