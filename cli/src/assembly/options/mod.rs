//! What can be asked of a server: one structure, filled from the command line and from the configuration file
//! alike, in the same words.

pub mod address;
pub mod ask;
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
use tombolo_host_service::sandbox::Strictness;

use crate::failure::Failure;
use address::ListenAddress;
use ask::AskArg;
use coherence::Coherence;
use disk::DiskOptions;
use doorbell::Doorbell;
use export::ExportArg;
use file::{list, one};
use fuse::FuseArg;
use nfs::{AllowArg, IdRangeArg, LeasesArg, NfsArg, SquashArg};
use shm::{ShmArg, ShmFileArg};
use submounts::Submounts;
use virtiofs::{SocketMode, VirtioFsArg};
use xattrs::Xattrs;

/// What is asked of a server, not checked as a whole yet. A key of the file is the option's name, but for
/// `--fd`.
#[derive(Args, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ServerOptions {
    /// A directory to share, and what it is called here (by default `/` and its last component).
    ///
    /// In its place may stand what another server offers: `shm:SOCKET/NAME` over shared memory,
    /// `nfs://HOST/NAME` over NFS.
    #[arg(value_name = "DIR[=/NAME]")]
    #[serde(deserialize_with = "list")]
    pub dir: Vec<ExportArg>,
    /// A socket for VMMs (vhost-user-fs); repeatable, and any number of guests may use one.
    ///
    /// TAG is what the guest mounts it by (by default `tombolo`). /NAME says which directory it leads to,
    /// where there are several. N is the number of request queues (by default 1).
    #[arg(long, value_name = "SOCKET[,tag=TAG][,export=/NAME][,queues=N]")]
    #[serde(deserialize_with = "list")]
    pub virtiofs: Vec<VirtioFsArg>,
    /// The same on a listening socket that the parent process, or systemd, has opened as descriptor FD;
    /// repeatable.
    #[arg(long, value_name = "FD[,tag=TAG][,export=/NAME][,queues=N]", value_parser = VirtioFsArg::inherited)]
    #[serde(skip)]
    pub fd: Vec<VirtioFsArg>,
    /// Give the sockets of --virtiofs to this group, by its name or number, so that VMMs of its users may
    /// connect.
    #[arg(long, value_name = "GROUP")]
    pub socket_group: Option<String>,
    /// The permission bits of the sockets of --virtiofs, in octal (by default 0600, or 0660 for a group).
    #[arg(long, value_name = "MODE")]
    #[serde(deserialize_with = "one")]
    pub socket_mode: Option<SocketMode>,
    /// Let guests on virtio-fs notice nothing of the server's death but a pause: a second process holds their
    /// connections, and starts another server when this one is killed.
    ///
    /// For directories of this host and nothing but --virtiofs. It takes root, for file handles.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "true|false")]
    pub keep: Option<bool>,
    /// This is such a server, and has the sockets of its guests as these descriptors.
    #[arg(long, value_name = "FD", hide = true)]
    #[serde(skip)]
    pub kept: Vec<i32>,
    /// Mount on this host too, through FUSE, by the same server; repeatable.
    ///
    /// /NAME says which directory it leads to, where there are several. With `allow_other` users other than
    /// the one that serves may enter. `tombolo mount` does it without guests.
    #[arg(long, value_name = "MOUNTPOINT[,export=/NAME][,allow_other]")]
    #[serde(deserialize_with = "list")]
    pub fuse: Vec<FuseArg>,
    /// COUNT users of clients from CLIENT on are those from HERE on (by default one); repeatable.
    ///
    /// Both ways, for all front ends, access lists included. With any of them, users that none has are user
    /// 65534, either way; but root stays root as far as --squash lets it, unless a range has it.
    #[arg(long, value_name = "CLIENT:HERE[:COUNT]")]
    #[serde(deserialize_with = "list")]
    pub map_users: Vec<IdRangeArg>,
    /// The same of groups.
    #[arg(long, value_name = "CLIENT:HERE[:COUNT]")]
    #[serde(deserialize_with = "list")]
    pub map_groups: Vec<IdRangeArg>,
    /// Refuse all changes.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "true|false")]
    pub readonly: Option<bool>,
    /// Watch what other processes of this host change, for mounts with coherence=push, of this server or over
    /// shared memory.
    ///
    /// Only while there are such mounts. It takes root, and costs every process on these file systems 2 µs
    /// for a write and 7 µs for a new file. `--coherence push` says it too.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "true|false")]
    pub host_watch: Option<bool>,
    /// Files whose attributes and data guests and mounts ask for each time, whatever --coherence says;
    /// repeatable.
    ///
    /// For files that processes of this host change through shared mappings (databases, images of disks), of
    /// which the kernel does not tell. PATTERN is as in glob(7): with a `/` in it the path below DIR, else a
    /// file's name, and `*` stands for `/` too. /NAME says in which directories such files lie (by default
    /// all).
    #[arg(long, value_name = "PATTERN[,export=/NAME]…")]
    #[serde(deserialize_with = "list")]
    pub ask: Vec<AskArg>,
    /// What guests may cache without asking (by default auto).
    #[arg(long, value_name = "POLICY")]
    pub coherence: Option<Coherence>,
    /// Extended attributes for guests, mounts and clients over shared memory (by default on).
    ///
    /// Without them a guest sends fewer requests, but sees no access lists (acl(5)) and no file capabilities,
    /// and goes by the mode alone.
    #[arg(long, value_name = "on|off", hide_possible_values = true)]
    pub xattrs: Option<Xattrs>,
    /// How to treat nested mounts: other file systems that are mounted below a directory (by default show).
    #[arg(long, value_name = "POLICY")]
    pub submounts: Option<Submounts>,
    /// Where to listen for `tombolo top` and other tools (by default NAME.sock in $XDG_RUNTIME_DIR/tombolo,
    /// in /run/tombolo for root, else in /tmp/tombolo-UID).
    #[arg(long, value_name = "SOCKET")]
    pub control: Option<PathBuf>,
    /// Serve metrics for Prometheus over HTTP: PORT on this host only, :PORT on all interfaces, IP:PORT or
    /// NAME:PORT on one.
    #[arg(long, value_name = "ADDR")]
    #[serde(deserialize_with = "one")]
    pub metrics: Option<ListenAddress>,
    /// What the server may still do once it is ready: off, auto (what it, the kernel and the user allow of
    /// strict; the default), or strict: nothing that it does not need, or it does not start.
    #[arg(long, value_name = "HOW")]
    #[serde(deserialize_with = "one")]
    pub sandbox: Option<Strictness>,
    /// The directory for state that must outlive a restart, for clients over NFS and over shared memory: the
    /// keys of file handles, and which requests were performed (by default $XDG_STATE_HOME/tombolo, for root
    /// /var/lib/tombolo).
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// A socket for processes of this host, which then ask over shared memory; repeatable.
    ///
    /// They mount with `tombolo mount shm:SOCKET/NAME DIR`. /NAME says which directories are offered (by
    /// default all).
    #[arg(long, value_name = "SOCKET[,export=/NAME]…", help_heading = SHM)]
    #[serde(deserialize_with = "list")]
    pub shm: Vec<ShmArg>,
    /// Memory shared with a guest: a file, that is QEMU's ivshmem or UML's iomem; in a guest `pci:[BDF]` or
    /// `mmapper:`. Repeatable.
    ///
    /// A file that is not there is made, of SIZE bytes (such as 64M). One client at a time has all of it, and
    /// both sides can write it. Its root is root here, unless squash=root (or all) makes it user and group
    /// 65534, or those of anonuid= and anongid=.
    #[arg(long, value_name = "FILE[,size=SIZE][,squash=MODE][,export=/NAME]…", help_heading = SHM)]
    #[serde(deserialize_with = "list")]
    pub shm_file: Vec<ShmFileArg>,
    /// How to wait for requests over shared memory (by default adaptive).
    #[arg(long, value_name = "MODE", help_heading = SHM)]
    pub doorbell: Option<Doorbell>,
    /// Which users may connect over shared memory, as a TOML file says (by default root and the user that
    /// serves).
    #[arg(long, value_name = "FILE", help_heading = SHM)]
    pub shm_policy: Option<PathBuf>,
    /// Serve NFS version 3 (and MOUNT, at the same port) over TCP and UDP; repeatable.
    ///
    /// PORT alone is for this host and for guests on QEMU's user network; :PORT for all IPv4 interfaces, as
    /// elsewhere ([::]:PORT for those of IPv6 too); IP:PORT or NAME:PORT for the addresses of one. The line
    /// that begins with `ready` says which it is. NFS believes all callers: name the allowed ones with
    /// --allow. All directories are offered, or those named.
    #[arg(long, value_name = "ADDR[,export=/NAME]...", help_heading = NFS)]
    #[serde(deserialize_with = "list")]
    pub nfs: Vec<NfsArg>,
    /// The same over TLS 1.3 (RFC 9289) alone, for clients that show a certificate of a trusted CA;
    /// repeatable.
    ///
    /// They mount with xprtsec=mtls. A call without TLS is refused, but see --allow-plain.
    #[arg(long, value_name = "ADDR[,export=/NAME]...", help_heading = NFS)]
    #[serde(deserialize_with = "list")]
    pub nfs_tls: Vec<NfsArg>,
    /// Let clients with these addresses call the ports of --nfs-tls without TLS too; repeatable (by default
    /// none may).
    ///
    /// As for Linux's own client, which asks MOUNT in the clear. What they send is neither encrypted nor
    /// signed; with --tls-users they are the anonymous user.
    #[arg(long, value_name = "CIDR", help_heading = NFS)]
    #[serde(deserialize_with = "list")]
    pub allow_plain: Vec<AllowArg>,
    /// The directory of the certificates for --nfs-tls: ca.pem, cert.pem, key.pem, and crl.pem if any were
    /// revoked (by default tls in $XDG_CONFIG_HOME/tombolo, for root /etc/tombolo/tls). `tombolo keys issue`
    /// makes one. What changes there counts for new connections.
    #[arg(long, value_name = "DIR", help_heading = NFS)]
    pub tls_dir: Option<PathBuf>,
    /// Who the clients of --nfs-tls may act as, by their certificates, as a TOML file says (by default as any
    /// user, as over --nfs).
    ///
    /// Others are the anonymous user. docs/use/nfs.md has its keys.
    #[arg(long, value_name = "FILE", help_heading = NFS)]
    pub tls_users: Option<PathBuf>,
    /// Which users of clients are taken for the anonymous one (by default root).
    #[arg(long, value_name = "MODE", help_heading = NFS)]
    pub squash: Option<SquashArg>,
    /// The anonymous user (by default 65534).
    #[arg(long, value_name = "UID", help_heading = NFS)]
    pub anonuid: Option<u32>,
    /// The anonymous group (by default 65534).
    #[arg(long, value_name = "GID", help_heading = NFS)]
    pub anongid: Option<u32>,
    /// Serve clients with these addresses only; repeatable (by default all).
    #[arg(long, value_name = "CIDR", help_heading = NFS)]
    #[serde(deserialize_with = "list")]
    pub allow: Vec<AllowArg>,
    /// Clients that may hold leases (`tombolo proxy --contract lease`), which all changes of others wait for:
    /// those of a network, those with certificates, or none; repeatable (by default those of this host, and
    /// those with certificates).
    #[arg(long, value_name = "CIDR|tls|off", help_heading = NFS)]
    #[serde(deserialize_with = "list")]
    pub leases: Vec<LeasesArg>,
    /// Look up here which groups a user is in, instead of believing the client, which can name sixteen at
    /// most.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "true|false", help_heading = NFS)]
    pub manage_gids: Option<bool>,
    /// Answer changes of names and attributes before they are on stable storage. Faster on disks; a loss of
    /// power, but no end of the server, may then take back what was answered. Data that is to be stable is,
    /// either way.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "true|false", help_heading = NFS)]
    pub async_names: Option<bool>,
    /// How many threads wait for calls (by default half as many as there are cores, and four at most).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256), help_heading = NFS)]
    pub nfs_threads: Option<u16>,
    /// Take calls over TCP only.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "true|false", help_heading = NFS)]
    pub nfs_no_udp: Option<bool>,
    /// Disks, each a table of the file.
    #[arg(skip)]
    pub disk: Vec<DiskOptions>,
    /// Whether NFS is served over streams that others open.
    #[arg(skip)]
    #[serde(skip)]
    pub stdio: bool,
}

const SHM: &str = "Shared memory";
pub const NFS: &str = "NFS";

impl ServerOptions {
    /// Whether a front end is asked for that leads to directories.
    pub fn asks_for_directories(&self) -> bool {
        let Self { virtiofs, fd, fuse, nfs, nfs_tls, shm, shm_file, .. } = self;
        let has_guests = !virtiofs.is_empty() || !fd.is_empty() || !fuse.is_empty();
        has_guests || !nfs.is_empty() || !nfs_tls.is_empty() || !shm.is_empty() || !shm_file.is_empty()
    }

    /// These options, and those of the configuration file where these say nothing.
    pub fn over_file(self, file: Option<&Path>) -> Result<Self, Failure> {
        match file {
            Some(path) => Ok(self.over(Self::read(path)?)),
            None => Ok(self),
        }
    }

    fn over(self, below: Self) -> Self {
        let sockets = [self.virtiofs, self.fd].concat();
        Self {
            dir: either(self.dir, below.dir),
            virtiofs: either(sockets, below.virtiofs),
            fd: Vec::new(),
            socket_group: self.socket_group.or(below.socket_group),
            socket_mode: self.socket_mode.or(below.socket_mode),
            keep: self.keep.or(below.keep),
            kept: self.kept,
            fuse: either(self.fuse, below.fuse),
            readonly: self.readonly.or(below.readonly),
            host_watch: self.host_watch.or(below.host_watch),
            ask: either(self.ask, below.ask),
            coherence: self.coherence.or(below.coherence),
            xattrs: self.xattrs.or(below.xattrs),
            submounts: self.submounts.or(below.submounts),
            control: self.control.or(below.control),
            metrics: self.metrics.or(below.metrics),
            sandbox: self.sandbox.or(below.sandbox),
            state: self.state.or(below.state),
            shm: either(self.shm, below.shm),
            shm_file: either(self.shm_file, below.shm_file),
            doorbell: self.doorbell.or(below.doorbell),
            shm_policy: self.shm_policy.or(below.shm_policy),
            nfs: either(self.nfs, below.nfs),
            nfs_tls: either(self.nfs_tls, below.nfs_tls),
            allow_plain: either(self.allow_plain, below.allow_plain),
            tls_dir: self.tls_dir.or(below.tls_dir),
            tls_users: self.tls_users.or(below.tls_users),
            map_users: either(self.map_users, below.map_users),
            map_groups: either(self.map_groups, below.map_groups),
            squash: self.squash.or(below.squash),
            anonuid: self.anonuid.or(below.anonuid),
            anongid: self.anongid.or(below.anongid),
            allow: either(self.allow, below.allow),
            leases: either(self.leases, below.leases),
            manage_gids: self.manage_gids.or(below.manage_gids),
            async_names: self.async_names.or(below.async_names),
            nfs_threads: self.nfs_threads.or(below.nfs_threads),
            nfs_no_udp: self.nfs_no_udp.or(below.nfs_no_udp),
            disk: either(self.disk, below.disk),
            stdio: self.stdio || below.stdio,
        }
    }
}

/// A list, or the one below it where it is empty.
fn either<T>(list: Vec<T>, below: Vec<T>) -> Vec<T> {
    if list.is_empty() { below } else { list }
}
