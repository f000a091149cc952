//! Requests, typed.

mod decode;
mod encode;
mod ids;

use tombolo_core::Want;
use tombolo_core::fs::{
    AccessMask, AllocateMode, Cookie, Create, Device, DirBudget, File, FileType, Lock, LockFamily, LockOwner,
    LockRange, Name, NewMode, NodeId, OpenFlags, OpenId, RenameFlags, SetAttr, SyncWhat, Whence, Write,
    XattrName, XattrSet,
};

pub(crate) use decode::{decode_lock, stability, zero};
pub(crate) use encode::lock_item;
pub use ids::Translate;

use crate::{Data, Forgets, Groups, HandleBytes, Kind, Place};

/// An identity's number on a link, given out by the client with [`Request::Caller`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallerId(pub u16);

/// What every request says beside what it asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// The request's number in its session. It stays the same when the request is sent again.
    pub sequence: u64,
    /// On whose behalf.
    pub caller: CallerId,
    /// What is wanted beside the plain answer.
    pub want: Want,
    /// Whether the persistent handles of nodes are wanted along with them.
    pub handles: bool,
}

/// Bit of `want` on the wire: [`Header::handles`]. The bits below it are the waist's.
pub(crate) const WANT_HANDLES: u8 = 1 << 2;

/// One request.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "fields are the arguments of the waist's operation; see core/src/fs")]
pub enum Request<'a> {
    /// A round trip.
    Null,
    /// Asks what the session is.
    Profile,
    /// Says who [`Header::caller`] is, for the requests behind this one on the ring. A number may be given anew.
    Caller { uid: u32, gid: u32, groups: Groups<'a> },
    /// Asks the request that has this id on the link to end early. It is answered all the same.
    Interrupt { id: u32 },
    /// `FileSystem::forget`.
    Forget(Forgets<'a>),

    /// `FileSystem::lookup`.
    Lookup { parent: NodeId, name: Name<'a> },
    /// `FileSystem::getattr`; an opening is one of the node.
    Getattr { node: NodeId, open: Option<OpenId> },
    /// `FileSystem::setattr`; an opening is one of the node.
    Setattr { node: NodeId, open: Option<OpenId>, set: SetAttr },
    /// `FileSystem::access`.
    Access { node: NodeId, mask: AccessMask },
    /// `FileSystem::readlink`. A target that is longer than the place fails with `OutOfRange`.
    Readlink { node: NodeId, place: Place<'a> },
    /// `FileSystem::create`.
    Create { parent: NodeId, name: Name<'a>, how: Create },
    /// `FileSystem::create_unnamed`.
    CreateUnnamed { parent: NodeId, how: Create },
    /// `FileSystem::mkdir`.
    Mkdir { parent: NodeId, name: Name<'a>, mode: NewMode },
    /// `FileSystem::symlink`.
    Symlink { parent: NodeId, name: Name<'a>, target: Data<'a> },
    /// `FileSystem::mknod`.
    Mknod { parent: NodeId, name: Name<'a>, file_type: FileType, mode: NewMode, rdev: Device },
    /// `FileSystem::link`.
    Link { node: NodeId, parent: NodeId, name: Name<'a> },
    /// `FileSystem::unlink`.
    Unlink { parent: NodeId, name: Name<'a> },
    /// `FileSystem::rmdir`.
    Rmdir { parent: NodeId, name: Name<'a> },
    /// `FileSystem::rename`.
    Rename { from_parent: NodeId, from: Name<'a>, to_parent: NodeId, to: Name<'a>, flags: RenameFlags },
    /// `FileSystem::open`.
    Open { node: NodeId, flags: OpenFlags },
    /// `FileSystem::release`.
    Release { file: File },
    /// `FileSystem::flush`.
    Flush { file: File, owner: LockOwner },
    /// `FileSystem::fsync`.
    Fsync { file: File, what: SyncWhat },
    /// `FileSystem::read`.
    Read { file: File, offset: u64, place: Place<'a> },
    /// `FileSystem::write`. That the source is keepable does not travel, and is never decoded: the client uses its memory again once the
    /// answer is there, and cannot know who holds it.
    Write { file: File, how: Write, data: Data<'a> },
    /// `FileSystem::readdir`. The page is filled as the caller counts, and no further than its listing fits into the place.
    Readdir { file: File, cookie: Cookie, budget: DirBudget, place: Place<'a> },
    /// `FileSystem::statfs`.
    Statfs { node: NodeId },
    /// `FileSystem::syncfs`.
    Syncfs,

    /// `Xattrs::get`; the place is the limit.
    XattrGet { node: NodeId, name: XattrName<'a>, place: Place<'a> },
    /// `Xattrs::set`.
    XattrSet { node: NodeId, name: XattrName<'a>, value: Data<'a>, how: XattrSet, kill_set_gid: bool },
    /// `Xattrs::list`; the place is the limit.
    XattrList { node: NodeId, place: Place<'a> },
    /// `Xattrs::remove`.
    XattrRemove { node: NodeId, name: XattrName<'a> },

    /// `Locks::test`.
    LockTest { file: File, lock: Lock },
    /// `Locks::lock`.
    Lock { file: File, lock: Lock, wait: bool },
    /// `Locks::unlock`.
    Unlock { file: File, family: LockFamily, range: LockRange, owner: LockOwner },

    /// `PersistentHandles::handle_of`.
    HandleOf { node: NodeId },
    /// `PersistentHandles::resolve`.
    Resolve { handle: HandleBytes<'a> },
    /// `PersistentHandles::parent`.
    Parent { node: NodeId },

    /// `Ranges::allocate`.
    Allocate { file: File, offset: u64, len_bytes: u64, mode: AllocateMode },
    /// `Ranges::seek`.
    Seek { file: File, offset: u64, whence: Whence },
    /// `Ranges::copy`.
    Copy { from: File, from_offset: u64, to: File, to_offset: u64, len_bytes: u64 },
}

impl Request<'_> {
    /// Which kind of request this is.
    #[must_use]
    #[inline]
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Null => Kind::Null,
            Self::Profile => Kind::Profile,
            Self::Caller { .. } => Kind::Caller,
            Self::Interrupt { .. } => Kind::Interrupt,
            Self::Forget(_) => Kind::Forget,
            Self::Lookup { .. } => Kind::Lookup,
            Self::Getattr { .. } => Kind::Getattr,
            Self::Setattr { .. } => Kind::Setattr,
            Self::Access { .. } => Kind::Access,
            Self::Readlink { .. } => Kind::Readlink,
            Self::Create { .. } => Kind::Create,
            Self::CreateUnnamed { .. } => Kind::CreateUnnamed,
            Self::Mkdir { .. } => Kind::Mkdir,
            Self::Symlink { .. } => Kind::Symlink,
            Self::Mknod { .. } => Kind::Mknod,
            Self::Link { .. } => Kind::Link,
            Self::Unlink { .. } => Kind::Unlink,
            Self::Rmdir { .. } => Kind::Rmdir,
            Self::Rename { .. } => Kind::Rename,
            Self::Open { .. } => Kind::Open,
            Self::Release { .. } => Kind::Release,
            Self::Flush { .. } => Kind::Flush,
            Self::Fsync { .. } => Kind::Fsync,
            Self::Read { .. } => Kind::Read,
            Self::Write { .. } => Kind::Write,
            Self::Readdir { .. } => Kind::Readdir,
            Self::Statfs { .. } => Kind::Statfs,
            Self::Syncfs => Kind::Syncfs,
            Self::XattrGet { .. } => Kind::XattrGet,
            Self::XattrSet { .. } => Kind::XattrSet,
            Self::XattrList { .. } => Kind::XattrList,
            Self::XattrRemove { .. } => Kind::XattrRemove,
            Self::LockTest { .. } => Kind::LockTest,
            Self::Lock { .. } => Kind::Lock,
            Self::Unlock { .. } => Kind::Unlock,
            Self::HandleOf { .. } => Kind::HandleOf,
            Self::Resolve { .. } => Kind::Resolve,
            Self::Parent { .. } => Kind::Parent,
            Self::Allocate { .. } => Kind::Allocate,
            Self::Seek { .. } => Kind::Seek,
            Self::Copy { .. } => Kind::Copy,
        }
    }
}

/// Bits of the flags of a body, by what they belong to.
pub(crate) mod flag {
    /// FORGET: a list in the frame.
    pub const LIST: u8 = 1;
    /// GETATTR, SETATTR: through an opening.
    pub const OPEN: u8 = 1;
    /// FSYNC: the data are enough.
    pub const DATA_ONLY: u8 = 1;
    /// LOCK: wait for it.
    pub const WAIT: u8 = 1;
    /// SEEK: a hole, not data.
    pub const HOLE: u8 = 1;
    /// WRITE: where the stability begins.
    pub const STABILITY_SHIFT: u8 = 2;
    /// WRITE: the stability, two bits.
    pub const STABILITY: u8 = 0b11 << STABILITY_SHIFT;
    /// WRITE: drop set-user-id, set-group-id and capabilities.
    pub const KILL_PRIVILEGES: u8 = 1 << 4;
    /// WRITE: where it is aimed, even when appending.
    pub const IN_PLACE: u8 = 1 << 5;
    /// READDIR: with attributes.
    pub const PLUS: u8 = 1 << 2;
    /// XATTR_SET: it must not exist.
    pub const XATTR_CREATE: u8 = 1 << 2;
    /// XATTR_SET: it must exist.
    pub const XATTR_REPLACE: u8 = 1 << 3;
    /// XATTR_SET: drop set-group-id.
    pub const KILL_SET_GID: u8 = 1 << 4;
}

/// Numbers of a lock's family and kind.
pub(crate) mod lock_number {
    pub const POSIX: u8 = 1;
    pub const FLOCK: u8 = 2;
    pub const READ: u8 = 1;
    pub const WRITE: u8 = 2;
    /// UNLOCK: a kind is not said.
    pub const NO_KIND: u8 = 0;
}

/// Numbers of what a create does when the name exists.
pub(crate) mod exclusive_number {
    pub const NO: u8 = 0;
    pub const YES: u8 = 1;
    pub const VERIFIER: u8 = 2;
}
