//! `tombolo serve`: directories shared with guests, with processes of this host, and with NFS clients.

use std::path::PathBuf;

use clap::Args;

use crate::assembly::options::address::ListenAddress;
use crate::assembly::options::coherence::Coherence;
use crate::assembly::options::export::ExportArg;
use crate::assembly::options::fuse::FuseArg;
use crate::assembly::options::submounts::Submounts;
use crate::assembly::options::virtiofs::{SocketMode, VirtioFsArg};
use crate::assembly::plan::Plan;
use crate::assembly::plan::nfs::NfsOptions;
use crate::assembly::plan::shm::ShmOptions;
use crate::assembly::servers;
use crate::failure::Outcome;

/// Share directories of this host with guests, other processes and NFS clients.
///
/// Stays in the foreground and logs to standard error. When it can be used it prints a line that begins with `ready` for
/// each way in, followed by what to tell the VMM and what to type in the guest. SIGINT or SIGTERM ends it, and what its
/// guests have mounted with it; NFS clients wait for its next start.
#[derive(Args)]
#[command(after_help = CONFIG_HELP)]
pub struct ServeArgs {
    /// A directory to share, and what it is called here (by default `/` and its last component).
    ///
    /// `shm:SOCKET/NAME` in its place is what another server offers over memory in common.
    #[arg(value_name = "DIR[=/NAME]")]
    pub dir: Vec<ExportArg>,
    /// A socket for VMMs (vhost-user-fs); repeatable, and any number of guests may use one.
    ///
    /// TAG is what the guest mounts it by (by default `tombolo`). /NAME says which directory it leads to, where there are
    /// several. N is the number of request queues (by default 1).
    #[arg(long, value_name = "SOCKET[,tag=TAG][,export=/NAME][,queues=N]")]
    pub virtiofs: Vec<VirtioFsArg>,
    /// The same on a listening socket that the parent process, or systemd, has opened as descriptor FD; repeatable.
    #[arg(long, value_name = "FD[,tag=TAG][,export=/NAME][,queues=N]", value_parser = VirtioFsArg::inherited)]
    pub fd: Vec<VirtioFsArg>,
    /// Give the sockets of --virtiofs to this group, by its name or number, so that VMMs of its users may connect.
    #[arg(long, value_name = "GROUP")]
    pub socket_group: Option<String>,
    /// The permission bits of the sockets of --virtiofs, in octal (by default 0600, or 0660 for a group).
    #[arg(long, value_name = "MODE")]
    pub socket_mode: Option<SocketMode>,
    /// Mount on this host too, through FUSE, by the same server; repeatable.
    ///
    /// /NAME says which directory it leads to, where there are several. With `allow_other` users other than the one who
    /// serves may enter. `tombolo mount` does it without guests.
    #[arg(long, value_name = "MOUNTPOINT[,export=/NAME][,allow_other]")]
    pub fuse: Vec<FuseArg>,
    /// Refuse all changes, whoever asks for them.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "true|false")]
    pub readonly: Option<bool>,
    /// What guests may keep without asking (by default auto).
    #[arg(long, value_name = "POLICY")]
    pub coherence: Option<Coherence>,
    /// How to treat nested mounts: other file systems that are mounted below a directory (by default show).
    #[arg(long, value_name = "POLICY")]
    pub submounts: Option<Submounts>,
    /// Where to listen for `tombolo top` and other tools (by default NAME.sock in $XDG_RUNTIME_DIR/tombolo, in
    /// /run/tombolo for root, else in /tmp/tombolo-UID).
    #[arg(long, value_name = "SOCKET")]
    pub control: Option<PathBuf>,
    /// Serve metrics for Prometheus over HTTP: PORT on this host only, :PORT on all interfaces, IP:PORT or NAME:PORT on one.
    #[arg(long, value_name = "ADDR")]
    pub metrics: Option<ListenAddress>,
    /// Where to keep what must outlive a restart, for clients over NFS and over memory in common: the keys of file handles, and which
    /// requests were performed (by default $XDG_STATE_HOME/tombolo, for root /var/lib/tombolo).
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// Read what is not said here from a TOML file.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    pub shm: ShmOptions,
    #[command(flatten)]
    pub nfs: NfsOptions,
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
  submounts = \"hide\"
  control = \"/run/tombolo/src.sock\"
  metrics = \"127.0.0.1:9464\"
  squash = \"root\"
  anonuid = 65534
  anongid = 65534
  allow = [\"10.0.0.0/8\", \"fd00::/16\"]
  manage-gids = true
  state = \"/var/lib/tombolo\"
  nfs-threads = 2
  nfs-no-udp = true";

impl ServeArgs {
    /// Serves until a signal ends it.
    pub fn run(self) -> Outcome {
        servers::serve(&Plan::new(self)?)
    }
}
