//! The waist itself.

use std::sync::Arc;

use tombolo_mem::{Sink, Source};

use super::{
    AccessMask, Attr, BackingFiles, Change, Changes, Cookie, Create, Created, DataCache, Descriptors, Device,
    Digests, DirPage, Entry, File, FileType, Leases, Lending, LockOwner, Locks, Made, Name, NewMode, NodeId,
    OpenFlags, Opened, Packing, PersistentHandles, Ranges, ReadDone, RenameFlags, Renamed, SetAttr, StatFs,
    SyncWhat, Versions, Write, Written, Xattrs,
};
use crate::{Answer, Ctx, Result, SessionId};

/// A client that attaches to an export.
#[derive(Clone, Debug)]
pub struct Client {
    /// The session that begins.
    pub session: SessionId,
    /// Its name, for people: a socket, an address, a guest's name.
    pub label: String,
    /// The party that is to check what its users may do: a guest's kernel does so itself, an NFS client
    /// cannot be trusted to. What really holds for the session is in its [`Profile`].
    pub checks: PermissionCheck,
}

/// A named tree that a server offers.
pub trait Export: Send + Sync {
    /// Begins a session. Node references and openings of one session mean nothing in another. Dropping the
    /// last reference ends it: what the session held (nodes, openings, locks) is given back.
    fn attach(&self, client: &Client) -> Result<Arc<dyn FileSystem>>;
}

/// The party that checks permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PermissionCheck {
    /// The caller has done it (a guest's kernel, FUSE's `default_permissions`); the back end only records
    /// owners.
    Caller,
    /// The back end does it, for the identity in each [`Ctx`].
    BackEnd,
}

/// What a file system says of itself. It does not change during a session.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// The party that checks permissions. `Caller` in spite of a [`Client`] that asked for `BackEnd` when the
    /// back end cannot.
    pub permission_check: PermissionCheck,
    /// True when every mutation is refused with [`Error::ReadOnly`](crate::Error::ReadOnly).
    pub read_only: bool,
    /// Longest name, in bytes.
    pub name_max: u32,
    /// Largest size of a file, in bytes.
    pub file_size_max: u64,
    /// Resolution of timestamps, in nanoseconds.
    pub time_granularity_ns: u32,
    /// Whether it knows [`Write::by_owner`](super::Write::by_owner).
    pub writes_by_owner: bool,
}

/// One session's view of an export. The operations follow the FSVA interface (Abd-El-Malek, Table 5.2); the
/// mapping is in `docs/protocols/waist.md`.
///
/// All operations may be called from any thread at any time. One that can answer without waiting does so
/// (`Done`); one that would block answers `Later`, so that a slow request never delays the one behind it.
/// Borrowed arguments are only good during the call: what goes on later takes its own copy. A `Sink` or
/// `Source` is in use until the answer is there.
pub trait FileSystem: Send + Sync {
    /// What this file system says of itself.
    fn profile(&self) -> Profile;

    /// Finds a name in a directory.
    fn lookup(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Entry>;
    /// Takes back look-ups, so many of each node. Unknown nodes and counts beyond those given out are
    /// ignored.
    fn forget(&self, cx: &Ctx, look_ups: &[(NodeId, u64)]);
    /// The attributes of a node, through its opening when the caller has one (the only way to one without a
    /// name).
    fn getattr(&self, cx: &Ctx, node: NodeId, file: Option<File>) -> Answer<Attr>;
    /// Changes attributes and answers with the new ones, and what they were before when asked.
    fn setattr(&self, cx: &Ctx, node: NodeId, file: Option<File>, set: &SetAttr) -> Answer<(Attr, Change)>;
    /// Whether the user may access the node so. [`Error::AccessDenied`](crate::Error::AccessDenied) when not.
    fn access(&self, cx: &Ctx, node: NodeId, mask: AccessMask) -> Answer<()>;
    /// The target of a symbolic link.
    fn readlink(&self, cx: &Ctx, node: NodeId) -> Answer<Vec<u8>>;

    /// Creates a regular file and opens it.
    fn create(&self, cx: &Ctx, parent: NodeId, name: Name<'_>, how: &Create) -> Answer<Created>;
    /// Creates an unnamed file in the directory's file system and opens it (open(2), `O_TMPFILE`).
    fn create_unnamed(&self, cx: &Ctx, parent: NodeId, how: &Create) -> Answer<Created>;
    /// Makes a directory.
    fn mkdir(&self, cx: &Ctx, parent: NodeId, name: Name<'_>, mode: NewMode) -> Answer<Made>;
    /// Makes a symbolic link.
    fn symlink(&self, cx: &Ctx, parent: NodeId, name: Name<'_>, target: &[u8]) -> Answer<Made>;
    /// Makes a node that is neither a directory nor a link: a regular file, a device, a fifo, a socket.
    fn mknod(
        &self,
        cx: &Ctx,
        parent: NodeId,
        name: Name<'_>,
        file_type: FileType,
        mode: NewMode,
        rdev: Device,
    ) -> Answer<Made>;
    /// Gives a node another name.
    fn link(&self, cx: &Ctx, node: NodeId, parent: NodeId, name: Name<'_>) -> Answer<Made>;
    /// Removes a name that is not a directory's.
    fn unlink(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Change>;
    /// Removes an empty directory.
    fn rmdir(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Change>;
    /// Moves a name.
    fn rename(
        &self,
        cx: &Ctx,
        from_parent: NodeId,
        from: Name<'_>,
        to_parent: NodeId,
        to: Name<'_>,
        flags: RenameFlags,
    ) -> Answer<Renamed>;

    /// Opens a file, or with [`OpenFlags::DIRECTORY`] a directory to be listed.
    fn open(&self, cx: &Ctx, node: NodeId, flags: OpenFlags) -> Answer<Opened>;
    /// Ends an opening. The locks that were taken through it go with it: those that it holds itself (flock),
    /// and record locks. A process's record locks are gone before, by [`flush`](FileSystem::flush); what is
    /// left are locks that belong to an open file description (fcntl(2), `F_OFD_SETLK`), of whose end FUSE
    /// tells in no other way.
    fn release(&self, cx: &Ctx, file: File);
    /// A descriptor of the opening was closed: reports delayed errors, and gives back the POSIX locks of
    /// `owner` (POSIX: closing any descriptor drops the process's locks on the file).
    fn flush(&self, cx: &Ctx, file: File, owner: LockOwner) -> Answer<()>;
    /// Makes a file or directory stable.
    fn fsync(&self, cx: &Ctx, file: File, what: SyncWhat) -> Answer<()>;
    /// Reads into the start of `into`. Shorter than asked at the end of the file, and where what follows
    /// cannot be read with it: then [`ReadDone::eof`] is not set, and a read of the rest gets the error.
    /// [`read_whole`](super::read_whole) does that.
    fn read(&self, cx: &Ctx, file: File, offset: u64, into: Sink) -> Answer<ReadDone>;
    /// Writes all of `from`, or says how much of it went in.
    fn write(&self, cx: &Ctx, file: File, how: &Write, from: Source) -> Answer<Written>;
    /// Lists a directory from `cookie` on, filling `page`. Nothing added and the end not set: the first entry
    /// does not fit. [`Error::NotFound`](crate::Error::NotFound): the directory has been removed meanwhile,
    /// and its listing ends.
    fn readdir(&self, cx: &Ctx, file: File, cookie: Cookie, page: DirPage) -> Answer<DirPage>;

    /// The state of the file system that `node` lies on.
    fn statfs(&self, cx: &Ctx, node: NodeId) -> Answer<StatFs>;
    /// Makes everything stable that was written so far (syncfs(2)).
    fn syncfs(&self, cx: &Ctx) -> Answer<()>;

    /// Extended attributes, where there are any.
    fn xattrs(&self) -> Option<&dyn Xattrs> {
        None
    }
    /// Advisory locks, where other clients see them.
    fn locks(&self) -> Option<&dyn Locks> {
        None
    }
    /// Handles that outlive restarts.
    fn persistent_handles(&self) -> Option<&dyn PersistentHandles> {
        None
    }
    /// Operations on ranges of files.
    fn ranges(&self) -> Option<&dyn Ranges> {
        None
    }
    /// Word of what others have changed, where the back end knows it.
    fn changes(&self) -> Option<&dyn Changes> {
        None
    }
    /// Versions of nodes, where the back end counts changes.
    fn versions(&self) -> Option<&dyn Versions> {
        None
    }
    /// Data that are kept near, where they are.
    fn data_cache(&self) -> Option<&dyn DataCache> {
        None
    }
    /// Local files to be read in place of this, where there are any.
    fn backing_files(&self) -> Option<&dyn BackingFiles> {
        None
    }
    /// Openings and locks as descriptors, where the back end has them so.
    fn descriptors(&self) -> Option<&dyn Descriptors> {
        None
    }
    /// Digests of files' parts, where the server makes them.
    fn digests(&self) -> Option<&dyn Digests> {
        None
    }
    /// Compressed reading, where the server does that.
    fn packing(&self) -> Option<&dyn Packing> {
        None
    }
    /// Leases of the tree, where the server may grant them.
    fn leases(&self) -> Option<&dyn Leases> {
        None
    }
    /// Data that are kept here of a file system below.
    fn lending(&self) -> Option<&dyn Lending> {
        None
    }
}
