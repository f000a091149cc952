//! The file-system trait.

use std::sync::Arc;

use tombolo_mem::{Sink, Source};

use super::{
    AccessMask, Attr, BackingFiles, Change, Changes, CompressedReads, Cookie, Create, Created, DataCache,
    Descriptors, Device, Digests, DirPage, Entry, File, FileType, Leases, Lending, LockOwner, Locks, Made,
    Name, NewMode, NodeId, OpenFlags, Opened, PersistentHandles, Ranges, ReadDone, RenameFlags, Renamed,
    SetAttr, StatFs, SyncScope, Versions, Write, Written, Xattrs,
};
use crate::{Answer, Ctx, Result, SessionId};

/// A client that attaches to an export, as its front end knows it.
#[derive(Clone, Debug)]
pub struct Client {
    /// Id of the new session, chosen by the front end.
    pub session: SessionId,
    /// Name for logs and listings: a socket, an address, a guest's name.
    pub label: String,
    /// The requested checker of permissions: a guest's kernel checks permissions itself, an NFS client is not
    /// trusted to do so. [`Profile`] has the effective checker.
    pub checks: PermissionCheck,
}

/// A named tree that a server offers.
pub trait Export: Send + Sync {
    /// Begins a session. Node references and openings are valid in their session only. Dropping the last
    /// reference ends the session and releases its nodes, openings and locks.
    fn attach(&self, client: &Client) -> Result<Arc<dyn FileSystem>>;
}

/// The party that checks permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PermissionCheck {
    /// The caller checks permissions before each call (a guest's kernel, FUSE's `default_permissions`); the
    /// back end only records owners.
    Caller,
    /// The back end checks permissions, for the identity in each [`Ctx`].
    BackEnd,
}

/// Properties of a file system that do not change during a session.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// The effective checker of permissions. `Caller`, even for a [`Client`] that requested `BackEnd`, if the
    /// back end cannot check.
    pub permission_check: PermissionCheck,
    /// `true` if every mutation is refused with [`Error::ReadOnly`](crate::Error::ReadOnly).
    pub read_only: bool,
    /// Maximum length of a name, in bytes.
    pub name_max: u32,
    /// Maximum size of a file, in bytes.
    pub file_size_max: u64,
    /// Resolution of timestamps, in nanoseconds.
    pub time_granularity_ns: u32,
    /// `true` if [`Write::by_owner`](super::Write::by_owner) is supported.
    pub writes_by_owner: bool,
}

/// One session's view of an export. The operations follow the FSVA interface (Abd-El-Malek, Table 5.2); the
/// mapping is in `docs/protocols/waist.md`.
///
/// All operations may be called from any thread at any time. An operation that need not wait answers `Done`;
/// one that would block answers `Later`, so that a slow request never delays the one behind it. Borrowed
/// arguments are valid during the call only: an operation that answers later copies them. A `Sink` or
/// `Source` is in use until the answer is available.
pub trait FileSystem: Send + Sync {
    /// Returns the file system's fixed properties.
    fn profile(&self) -> Profile;

    /// Looks a name up in a directory, and counts a look-up of the node.
    fn lookup(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Entry>;
    /// Releases the given number of look-ups of each node. Unknown nodes and excess counts are ignored.
    fn forget(&self, cx: &Ctx, look_ups: &[(NodeId, u64)]);
    /// Returns the attributes of a node, through its opening if the caller has one (an unlinked file may be
    /// reachable in no other way).
    fn getattr(&self, cx: &Ctx, node: NodeId, file: Option<File>) -> Answer<Attr>;
    /// Changes attributes. Returns the new ones, and the [`Change`] as far as requested and available.
    fn setattr(&self, cx: &Ctx, node: NodeId, file: Option<File>, set: &SetAttr) -> Answer<(Attr, Change)>;
    /// Checks access. Fails with [`Error::AccessDenied`](crate::Error::AccessDenied) if the user lacks it.
    fn access(&self, cx: &Ctx, node: NodeId, mask: AccessMask) -> Answer<()>;
    /// Returns the target of a symbolic link.
    fn readlink(&self, cx: &Ctx, node: NodeId) -> Answer<Vec<u8>>;

    /// Creates a regular file and opens it. If the name exists,
    /// [`Create::exclusive`](super::Create::exclusive) decides whether the existing file is opened instead.
    fn create(&self, cx: &Ctx, parent: NodeId, name: Name<'_>, how: &Create) -> Answer<Created>;
    /// Creates an unnamed file in the directory's file system and opens it (open(2), `O_TMPFILE`).
    fn create_unnamed(&self, cx: &Ctx, parent: NodeId, how: &Create) -> Answer<Created>;
    /// Creates a directory.
    fn mkdir(&self, cx: &Ctx, parent: NodeId, name: Name<'_>, mode: NewMode) -> Answer<Made>;
    /// Creates a symbolic link. The target is stored as it is, and not interpreted.
    fn symlink(&self, cx: &Ctx, parent: NodeId, name: Name<'_>, target: &[u8]) -> Answer<Made>;
    /// Creates a node other than a directory or symbolic link: a regular file, a device, a fifo, a socket.
    fn mknod(
        &self,
        cx: &Ctx,
        parent: NodeId,
        name: Name<'_>,
        file_type: FileType,
        mode: NewMode,
        rdev: Device,
    ) -> Answer<Made>;
    /// Creates another name of a node that is not a directory.
    fn link(&self, cx: &Ctx, node: NodeId, parent: NodeId, name: Name<'_>) -> Answer<Made>;
    /// Removes a name of anything but a directory.
    fn unlink(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Change>;
    /// Removes an empty directory.
    fn rmdir(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Change>;
    /// Renames a directory entry, replacing an existing one unless `flags` forbid it.
    fn rename(
        &self,
        cx: &Ctx,
        from_parent: NodeId,
        from: Name<'_>,
        to_parent: NodeId,
        to: Name<'_>,
        flags: RenameFlags,
    ) -> Answer<Renamed>;

    /// Opens a file, or with [`OpenFlags::DIRECTORY`] a directory for listing.
    fn open(&self, cx: &Ctx, node: NodeId, flags: OpenFlags) -> Answer<Opened>;
    /// Ends an opening, together with the locks taken through it: those of the opening itself (flock), and
    /// record locks. Those of a process have been released before, by [`flush`](FileSystem::flush) or, if the
    /// kernel was told to send none, by the front end. The remaining ones belong to an open file description
    /// (fcntl(2), `F_OFD_SETLK`), whose end FUSE reports in no other way.
    fn release(&self, cx: &Ctx, file: File);
    /// Handles the closing of one descriptor of the opening: reports delayed errors and releases the POSIX
    /// locks of `owner` (POSIX: closing any descriptor drops the process's locks on the file).
    fn flush(&self, cx: &Ctx, file: File, owner: LockOwner) -> Answer<()>;
    /// Returns `true` if a flush of this opening only releases locks, so that no close reports an error, and
    /// if the opening's unstable writes never wait long for a device. A client may then continue before an
    /// unstable write is answered, and close the file without a request if it holds no locks.
    fn is_prompt(&self, _file: File) -> bool {
        false
    }
    /// Makes the answered changes of a file or directory stable, to the extent of `what`.
    fn fsync(&self, cx: &Ctx, file: File, what: SyncScope) -> Answer<()>;
    /// Reads into the start of `into`. The result is short at the end of the file, and before data that
    /// cannot be read: then [`ReadDone::eof`] is not set, and a read of the remainder, as by
    /// [`read_whole`](super::read_whole), returns the error.
    fn read(&self, cx: &Ctx, file: File, offset: u64, into: Sink) -> Answer<ReadDone>;
    /// Writes `from`. [`Written::count`] is less than its length if only a part was written.
    fn write(&self, cx: &Ctx, file: File, how: &Write, from: Source) -> Answer<Written>;
    /// Lists a directory from `cookie` on, filling `page`. An empty page without the end mark means that the
    /// first entry does not fit. Fails with [`Error::NotFound`](crate::Error::NotFound) or
    /// [`Error::Stale`](crate::Error::Stale) if the directory has been removed.
    fn readdir(&self, cx: &Ctx, file: File, cookie: Cookie, page: DirPage) -> Answer<DirPage>;

    /// Returns space and limits of the file system that contains `node`.
    fn statfs(&self, cx: &Ctx, node: NodeId) -> Answer<StatFs>;
    /// Makes all answered writes of the whole file system stable (syncfs(2)).
    fn syncfs(&self, cx: &Ctx) -> Answer<()>;

    /// Returns the extended-attribute operations, if supported.
    fn xattrs(&self) -> Option<&dyn Xattrs> {
        None
    }
    /// Returns the advisory-lock operations, if other clients observe the locks.
    fn locks(&self) -> Option<&dyn Locks> {
        None
    }
    /// Returns the operations on handles that outlive restarts.
    fn persistent_handles(&self) -> Option<&dyn PersistentHandles> {
        None
    }
    /// Returns the operations on file ranges.
    fn ranges(&self) -> Option<&dyn Ranges> {
        None
    }
    /// Returns the change notifications, if the back end observes changes.
    fn changes(&self) -> Option<&dyn Changes> {
        None
    }
    /// Returns the versions of nodes, if the back end counts changes.
    fn versions(&self) -> Option<&dyn Versions> {
        None
    }
    /// Returns the local data cache, if there is one.
    fn data_cache(&self) -> Option<&dyn DataCache> {
        None
    }
    /// Returns the local files that may be read directly, if any.
    fn backing_files(&self) -> Option<&dyn BackingFiles> {
        None
    }
    /// Returns access to the descriptors of openings and locks, if the back end has descriptors.
    fn descriptors(&self) -> Option<&dyn Descriptors> {
        None
    }
    /// Returns the digests of file ranges, if the server computes them.
    fn digests(&self) -> Option<&dyn Digests> {
        None
    }
    /// Returns the compressed reads, if the server supports them.
    fn packing(&self) -> Option<&dyn CompressedReads> {
        None
    }
    /// Returns the leases of the tree, if the server grants them.
    fn leases(&self) -> Option<&dyn Leases> {
        None
    }
    /// Returns access to the file data that this file system has cached, for other hosts, if offered.
    fn lending(&self) -> Option<&dyn Lending> {
        None
    }
}
