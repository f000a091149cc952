//! Server options: one structure, filled from the command line and from the configuration file with the same
//! names.

pub mod address;
pub mod ask;
pub mod bell;
pub mod cache;
pub mod coherence;
pub mod disk;
pub mod doorbell;
pub mod export;
mod file;
pub mod fuse;
pub mod nbd;
pub mod nfs;
pub mod policy;
pub mod session;
pub mod shm;
pub mod submounts;
pub mod tls_users;
pub mod virtiofs;
pub mod xattrs;

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Deserialize;
use tombolo_front_nfs_server::Network;
use tombolo_host_service::sandbox::Strictness;
use tombolo_layer_idmap::IdRange;

use crate::failure::Failure;
use address::ListenAddress;
use ask::AskArg;
use coherence::Coherence;
use disk::DiskOptions;
use doorbell::Doorbell;
use export::ExportArg;
use file::{list, one};
use fuse::FuseArg;
use nfs::{LeasesArg, NfsArg, SquashArg};
use shm::{ShmArg, ShmFileArg};
use submounts::Submounts;
use virtiofs::{SocketMode, VirtioFsArg};
use xattrs::Xattrs;

/// Options of a server, not yet checked as a whole. The keys of the configuration file are the names of the
/// options; `--fd` and `--kept`, whose descriptors the parent process determines, have none.
#[derive(Args, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ServerOptions {
    /// Directory to share, and its export name (by default `/` and its last component).
    ///
    /// The tree of another server also works: `shm:SOCKET/NAME` over shared memory, `nfs://HOST/NAME` over
    /// NFS, `nfs+ssh://HOST/PATH` through ssh(1).
    #[arg(value_name = "DIR[=/NAME]")]
    #[serde(deserialize_with = "list")]
    pub dir: Vec<ExportArg>,
    /// Listen on a vhost-user-fs socket for VMMs; repeatable. Any number of guests may connect to one socket.
    ///
    /// TAG is the mount tag in the guest (by default `tombolo`). /NAME selects the export, and is required if
    /// there are several. N is the number of request queues (by default 1).
    ///
    /// If the server runs as root, the guest's root is root in a local directory, and user ids are unchanged:
    /// see --map-users and --read-only. Otherwise all guests act as the server's user.
    #[arg(long, value_name = "SOCKET[,tag=TAG][,export=/NAME][,queues=N]")]
    #[serde(deserialize_with = "list")]
    pub virtiofs: Vec<VirtioFsArg>,
    /// Like --virtiofs, on a listening socket inherited from the parent process or systemd as descriptor FD;
    /// repeatable.
    #[arg(long, value_name = "FD[,tag=TAG][,export=/NAME][,queues=N]", value_parser = VirtioFsArg::inherited)]
    #[serde(skip)]
    pub fd: Vec<VirtioFsArg>,
    /// Give the --virtiofs sockets to this group (name or number), so that VMMs of its users can connect.
    #[arg(long, value_name = "GROUP")]
    pub socket_group: Option<String>,
    /// Permission bits of the --virtiofs sockets, in octal (by default 0600, or 0660 with a group).
    #[arg(long, value_name = "MODE")]
    #[serde(deserialize_with = "one")]
    pub socket_mode: Option<SocketMode>,
    /// Keep virtio-fs guests connected if the server dies: a second process holds their connections and
    /// starts a new server. Guests see only a pause.
    ///
    /// For local directories served by --virtiofs alone. Requires root, for file handles. `tombolo upgrade
    /// NAME` replaces the program of the server. SIGTERM to the first process ends both.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "true|false")]
    pub keep: Option<bool>,
    /// Run as the server of a keeper, with the sockets of its guests at these descriptors.
    #[arg(long, value_name = "FD", hide = true)]
    #[serde(skip)]
    pub kept: Vec<i32>,
    /// Mount the tree on this host as well, through FUSE, from the same server; repeatable.
    ///
    /// /NAME selects the export, and is required if there are several. `allow_other` admits users other than
    /// the server's own. Use `tombolo mount` for mounts without guests.
    #[arg(long, value_name = "MOUNTPOINT[,export=/NAME][,allow_other]")]
    #[serde(deserialize_with = "list")]
    pub fuse: Vec<FuseArg>,
    /// Map COUNT client users starting at CLIENT to local users starting at HERE (COUNT is 1 by default);
    /// repeatable.
    ///
    /// Applies in both directions, to all front ends and to access lists. With this option, unmapped users
    /// become 65534 in either direction. An unmapped root stays root as far as the front end admits it: over
    /// NFS --squash is applied first, and its --anonuid is then mapped like a client's id.
    #[arg(long, value_name = "CLIENT:HERE[:COUNT]")]
    #[serde(deserialize_with = "list")]
    pub map_users: Vec<IdRange>,
    /// Map groups, like --map-users.
    #[arg(long, value_name = "CLIENT:HERE[:COUNT]")]
    #[serde(deserialize_with = "list")]
    pub map_groups: Vec<IdRange>,
    /// Refuse all changes.
    #[arg(long, alias = "readonly", num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "true|false")]
    #[serde(alias = "readonly")]
    pub read_only: Option<bool>,
    /// Watch for changes by other processes of this host, for coherence=push mounts of this server or over
    /// shared memory.
    ///
    /// Active only while such mounts exist. Requires root, and costs every process on these file systems 2 µs
    /// per write and 7 µs per created file. Implied by `--coherence push`.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "true|false")]
    pub host_watch: Option<bool>,
    /// Whatever --coherence says, never cache attributes and data of matching files in guests and mounts;
    /// repeatable.
    ///
    /// For files that local processes change through shared mappings (databases, disk images), which the
    /// kernel does not report. PATTERN is as in glob(7), except that `*` also matches `/`: with a `/` it
    /// matches the path below DIR, otherwise the file name. /NAME limits it to an export (by default all).
    #[arg(long, value_name = "PATTERN[,export=/NAME]…")]
    #[serde(deserialize_with = "list")]
    pub ask: Vec<AskArg>,
    /// Cache policy of guests and of --fuse mounts (by default auto).
    ///
    /// push requires --fuse and excludes guests (--virtiofs, --fd), which cannot be notified.
    #[arg(long, value_name = "POLICY")]
    pub coherence: Option<Coherence>,
    /// Extended attributes for guests, mounts and shared-memory clients (by default on).
    ///
    /// `off` saves requests, but hides access lists (acl(5)) and file capabilities: guests then check the
    /// mode bits alone.
    #[arg(long, value_name = "on|off", hide_possible_values = true)]
    pub xattrs: Option<Xattrs>,
    /// Treatment of nested mounts, other file systems mounted below a directory (by default show).
    #[arg(long, value_name = "POLICY")]
    pub submounts: Option<Submounts>,
    /// Control socket for `tombolo top` and other tools (by default NAME.sock, after the first export, in
    /// $XDG_RUNTIME_DIR/tombolo, in /run/tombolo for root, otherwise in /tmp/tombolo-UID).
    #[arg(long, value_name = "SOCKET")]
    pub control: Option<PathBuf>,
    /// Serve Prometheus metrics over HTTP, to anyone who can connect: PORT on this host only, :PORT on all
    /// IPv4 interfaces, IP:PORT or NAME:PORT on one.
    #[arg(long, value_name = "ADDR")]
    #[serde(deserialize_with = "one")]
    pub metrics: Option<ListenAddress>,
    /// Confinement of the running server: off, auto (as much of strict as the server, the kernel and the user
    /// allow; the default), or strict (no privilege it does not need; fail to start otherwise).
    #[arg(long, value_name = "HOW")]
    #[serde(deserialize_with = "one")]
    pub sandbox: Option<Strictness>,
    /// Directory of state that survives restarts, for NFS and shared-memory clients: file handle keys and the
    /// record of executed requests (by default $XDG_STATE_HOME/tombolo, for root /var/lib/tombolo).
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// Socket for shared-memory clients on this host; repeatable.
    ///
    /// Clients mount with `tombolo mount shm:SOCKET/NAME DIR`. /NAME limits the exports offered (by default
    /// all).
    #[arg(long, value_name = "SOCKET[,export=/NAME]…", help_heading = SHM)]
    #[serde(deserialize_with = "list")]
    pub shm: Vec<ShmArg>,
    /// Memory shared with a guest, or with its host; repeatable.
    ///
    /// On the host, FILE is a file that is a device of the guest (ivshmem of QEMU, iomem= of User Mode
    /// Linux). Inside a guest it is that device: `pci:[BDF]` (BDF is the PCI address, if there are several)
    /// or `mmapper:`. One client at a time uses the memory; both sides can write to all of it.
    ///
    /// size=SIZE (such as 64M) creates a missing file. export=/NAME limits the exports offered (by default
    /// all).
    ///
    /// squash=none (the default): the client's root is root on this host. squash=root maps root, and
    /// squash=all every user, to user and group 65534, or to those of anonuid=UID and anongid=GID.
    ///
    /// bell=PATH: both sides wake each other by the FIFOs PATH.in and PATH.out, which are created if missing
    /// and must be on the VMM's command line; without it they poll at intervals. Inside a guest the device
    /// for this is found (bell=DEVICE names it, bell=off uses none).
    #[arg(long, value_name = "FILE[,KEY=VALUE]…", help_heading = SHM)]
    #[serde(deserialize_with = "list")]
    pub shm_file: Vec<ShmFileArg>,
    /// How to wait for requests over shared memory (by default adaptive).
    #[arg(long, value_name = "MODE", help_heading = SHM)]
    pub doorbell: Option<Doorbell>,
    /// TOML file of the users that may connect to --shm sockets (by default root and the server's user). The
    /// keys are described in docs/operating.md (in /usr/share/doc/tombolo of the package).
    #[arg(long, value_name = "FILE", help_heading = SHM)]
    pub shm_policy: Option<PathBuf>,
    /// Serve NFS version 3 (and MOUNT, on the same port) over TCP and UDP; repeatable.
    ///
    /// PORT listens on this host and for guests on QEMU's user network; :PORT on all IPv4 interfaces
    /// ([::]:PORT includes IPv6); IP:PORT or NAME:PORT on the given address. The `ready` line shows the
    /// address. All exports are offered unless some are named. NFS clients are not authenticated, so limit
    /// them with --allow to trusted addresses. A server without root acts as its own user for all of them.
    #[arg(long, value_name = "ADDR[,export=/NAME]...", help_heading = NFS)]
    #[serde(deserialize_with = "list")]
    pub nfs: Vec<NfsArg>,
    /// Serve NFS over TLS 1.3 only (RFC 9289), for clients with a certificate of a trusted CA; repeatable.
    ///
    /// Clients mount with xprtsec=mtls. Calls without TLS are refused, except from --allow-plain addresses.
    #[arg(long, value_name = "ADDR[,export=/NAME]...", help_heading = NFS)]
    #[serde(deserialize_with = "list")]
    pub nfs_tls: Vec<NfsArg>,
    /// Accept calls without TLS on the --nfs-tls ports from these addresses; repeatable (by default none).
    ///
    /// Linux's client needs this, because it calls MOUNT in clear text. Such calls are neither encrypted nor
    /// authenticated; with --tls-users they run as the anonymous user.
    #[arg(long, value_name = "CIDR", help_heading = NFS)]
    #[serde(deserialize_with = "list")]
    pub allow_plain: Vec<Network>,
    /// Directory of the --nfs-tls certificates: ca.pem, cert.pem, key.pem, and crl.pem if any were revoked
    /// (by default tls in $XDG_CONFIG_HOME/tombolo, for root /etc/tombolo/tls). Create one with `tombolo keys
    /// issue`. Changed files apply to new connections.
    #[arg(long, value_name = "DIR", help_heading = NFS)]
    pub tls_dir: Option<PathBuf>,
    /// TOML file of the users that --nfs-tls clients may act as, by certificate (by default any user, as over
    /// --nfs).
    ///
    /// Clients without a rule are the anonymous user. The keys are described in docs/use/nfs.md (in
    /// /usr/share/doc/tombolo of the package).
    #[arg(long, value_name = "FILE", help_heading = NFS)]
    pub tls_users: Option<PathBuf>,
    /// Client users that are mapped to the anonymous user (by default root).
    #[arg(long, value_name = "MODE", help_heading = NFS)]
    pub squash: Option<SquashArg>,
    /// Anonymous user (by default 65534).
    #[arg(long, value_name = "UID", help_heading = NFS)]
    pub anonuid: Option<u32>,
    /// Anonymous group (by default 65534).
    #[arg(long, value_name = "GID", help_heading = NFS)]
    pub anongid: Option<u32>,
    /// Serve only clients with these addresses; repeatable (by default all).
    #[arg(long, value_name = "CIDR", help_heading = NFS)]
    #[serde(deserialize_with = "list")]
    pub allow: Vec<Network>,
    /// Clients that may hold leases (`tombolo proxy --contract lease`); a change by another client waits
    /// until they return theirs, at most 20 seconds. Those of a network, those with certificates (tls), or
    /// none (off); repeatable (by default those of this host and those with certificates).
    #[arg(long, value_name = "CIDR|tls|off", help_heading = NFS)]
    #[serde(deserialize_with = "list")]
    pub leases: Vec<LeasesArg>,
    /// Look up the groups of a user on this host instead of trusting the client, which can send at most
    /// sixteen.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "true|false", help_heading = NFS)]
    pub manage_gids: Option<bool>,
    /// Acknowledge changes of names and attributes before they are on stable storage. Faster on disks; a
    /// power failure (but not a crash of the server) may undo acknowledged changes. Stable writes of data are
    /// unaffected.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "true|false", help_heading = NFS)]
    pub async_names: Option<bool>,
    /// Number of threads that wait for calls, from 1 to 256 (by default half the number of cores, at most
    /// four).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256), help_heading = NFS)]
    pub nfs_threads: Option<u16>,
    /// Serve TCP only, no UDP.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "true|false", help_heading = NFS)]
    pub nfs_no_udp: Option<bool>,
    /// Disks: a `[[disk]]` table of the configuration file for each.
    #[arg(skip)]
    pub disk: Vec<DiskOptions>,
    /// `true` for `tombolo serve --stdio`: NFS is served over standard input and output, not at addresses.
    #[arg(skip)]
    #[serde(skip)]
    pub stdio: bool,
}

const SHM: &str = "Shared memory";
pub const NFS: &str = "NFS";

impl ServerOptions {
    /// Returns `true` if a front end that serves directories is requested.
    pub fn asks_for_directories(&self) -> bool {
        let Self { virtiofs, fd, fuse, nfs, nfs_tls, shm, shm_file, .. } = self;
        let has_guests = !virtiofs.is_empty() || !fd.is_empty() || !fuse.is_empty();
        has_guests || !nfs.is_empty() || !nfs_tls.is_empty() || !shm.is_empty() || !shm_file.is_empty()
    }

    /// Returns these options, completed from the configuration file.
    pub fn over_file(self, file: Option<&Path>) -> Result<Self, Failure> {
        match file {
            Some(path) => Ok(self.over(Self::read(path)?)),
            None => Ok(self),
        }
    }

    fn over(self, below: Self) -> Self {
        macro_rules! merged {
            (lists: $($list:ident)+; options: $($option:ident)+; $($rest:tt)+) => {
                Self {
                    $($list: either(self.$list, below.$list),)+
                    $($option: self.$option.or(below.$option),)+
                    $($rest)+
                }
            };
        }
        merged! {
            lists: dir fuse ask shm shm_file nfs nfs_tls allow_plain map_users map_groups
                allow leases disk;
            options: socket_group socket_mode keep read_only host_watch coherence xattrs
                submounts control metrics sandbox state doorbell shm_policy tls_dir
                tls_users squash anonuid anongid manage_gids async_names nfs_threads
                nfs_no_udp;
            virtiofs: either([self.virtiofs, self.fd].concat(), below.virtiofs),
            fd: Vec::new(),
            kept: self.kept,
            stdio: self.stdio || below.stdio,
        }
    }
}

/// Returns the list, or `below` if the list is empty.
fn either<T>(list: Vec<T>, below: Vec<T>) -> Vec<T> {
    if list.is_empty() { below } else { list }
}
