//! Answers, typed.

mod decode;
mod encode;

use bitflags::bitflags;
use tombolo_core::fs::{
    Attr, Change, Created, Entry, Lock, Made, Opened, PersistentHandle, Profile, Renamed, StatFs, Volume,
    Written,
};

pub use encode::encode_failure;

use crate::frame::Reader;
use crate::{DecodeError, EncodeError, Kind, Returned, Status};

/// How a request ended.
pub type Outcome<'a> = Result<Reply<'a>, Status>;

/// What a request that succeeded is answered with.
#[derive(Clone, Copy, Debug)]
pub enum Reply<'a> {
    /// Nothing but that it is done: NULL, CALLER, INTERRUPT, FORGET, ACCESS, RELEASE, FLUSH, FSYNC, SYNCFS, XATTR_SET,
    /// XATTR_REMOVE, LOCK, UNLOCK, ALLOCATE.
    Done,
    /// PROFILE.
    Session(Session),
    /// LOOKUP, RESOLVE, PARENT. This and the next two with the node's handle, where it was wanted and there is one.
    Entry(Entry, Option<HandleBytes<'a>>),
    /// GETATTR.
    Attr(Attr),
    /// SETATTR.
    Setattr(Attr, Change),
    /// MKDIR, SYMLINK, MKNOD, LINK.
    Made(Made, Option<HandleBytes<'a>>),
    /// CREATE, CREATE_UNNAMED.
    Created(Created, Option<HandleBytes<'a>>),
    /// UNLINK, RMDIR.
    Change(Change),
    /// RENAME.
    Renamed(Renamed),
    /// OPEN.
    Opened(Opened),
    /// READ.
    Read {
        /// The data.
        data: Returned<'a>,
        /// The file ended with them.
        eof: bool,
    },
    /// WRITE.
    Written(Written),
    /// READDIR.
    Readdir {
        /// A [`Listing`](crate::listing::Listing).
        listing: Returned<'a>,
        /// The directory ends with it.
        end: bool,
    },
    /// READLINK, XATTR_GET, XATTR_LIST.
    Bytes(Returned<'a>),
    /// STATFS.
    StatFs(StatFs),
    /// LOCK_TEST.
    Conflict(Option<Lock>),
    /// HANDLE_OF.
    Handle(HandleBytes<'a>),
    /// SEEK: where; COPY: how much.
    Offset(u64),
}

bitflags! {
    /// Which groups of operations the server's file system has. Requests of the others are answered with
    /// [`Status::NotSupported`].
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Offers: u32 {
        /// XATTR_GET to XATTR_REMOVE.
        const XATTRS = 1 << 2;
        /// LOCK_TEST to UNLOCK.
        const LOCKS = 1 << 3;
        /// HANDLE_OF to PARENT.
        const HANDLES = 1 << 4;
        /// ALLOCATE to COPY.
        const RANGES = 1 << 5;
    }
}

/// What a session is. It does not change while the session lasts.
#[derive(Clone, Copy, Debug)]
pub struct Session {
    /// What the file system says of itself.
    pub profile: Profile,
    /// Which optional groups it has.
    pub offers: Offers,
    /// Which file system persistent handles are of; zeros where it has none.
    pub volume: Volume,
    /// Most bytes that one READ or WRITE may move; [`TRANSFER_BYTES_MIN`] or more.
    pub transfer_bytes_max: u32,
    /// Callers have numbers below this; not zero.
    pub callers_max: u16,
}

/// What a READ or WRITE may move at least, in bytes: a server that allows less is no server.
pub const TRANSFER_BYTES_MIN: u32 = 4096;

/// Longest persistent handle, in bytes (name_to_handle_at(2), `MAX_HANDLE_SZ`).
pub const HANDLE_BYTES_MAX: usize = 128;

/// A [`PersistentHandle`] in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandleBytes<'a> {
    /// The file system's own type number.
    pub kind: i32,
    /// The file system's own bytes, at most [`HANDLE_BYTES_MAX`].
    pub bytes: &'a [u8],
}

impl<'a> HandleBytes<'a> {
    pub(crate) fn checked_len(&self) -> Result<u16, EncodeError> {
        let len = self.bytes.len();
        u16::try_from(len)
            .ok()
            .filter(|_| len <= HANDLE_BYTES_MAX)
            .ok_or(EncodeError::Value { field: "length of a handle", value: len as u64 })
    }

    pub(crate) fn decode(kind: i32, len_bytes: u16, frame: &mut Reader<'a>) -> Result<Self, DecodeError> {
        if usize::from(len_bytes) > HANDLE_BYTES_MAX {
            return Err(DecodeError::Value { field: "length of a handle", value: len_bytes.into() });
        }
        Ok(Self { kind, bytes: frame.bytes(len_bytes.into())? })
    }
}

impl<'a> From<&'a PersistentHandle> for HandleBytes<'a> {
    fn from(handle: &'a PersistentHandle) -> Self {
        Self { kind: handle.kind, bytes: &handle.bytes }
    }
}

impl From<HandleBytes<'_>> for PersistentHandle {
    fn from(handle: HandleBytes<'_>) -> Self {
        Self { kind: handle.kind, bytes: handle.bytes.into() }
    }
}

/// What answers to a kind of request look like.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    Done,
    Session,
    Entry,
    Attr,
    Setattr,
    Made,
    Created,
    Change,
    Renamed,
    Opened,
    Read,
    Written,
    Readdir,
    Bytes,
    StatFs,
    Conflict,
    Handle,
    Offset,
}

impl Shape {
    const fn of_kind(kind: Kind) -> Self {
        match kind {
            Kind::Null
            | Kind::Caller
            | Kind::Interrupt
            | Kind::Forget
            | Kind::Access
            | Kind::Release
            | Kind::Flush
            | Kind::Fsync
            | Kind::Syncfs
            | Kind::XattrSet
            | Kind::XattrRemove
            | Kind::Lock
            | Kind::Unlock
            | Kind::Allocate => Self::Done,
            Kind::Profile => Self::Session,
            Kind::Lookup | Kind::Resolve | Kind::Parent => Self::Entry,
            Kind::Getattr => Self::Attr,
            Kind::Setattr => Self::Setattr,
            Kind::Mkdir | Kind::Symlink | Kind::Mknod | Kind::Link => Self::Made,
            Kind::Create | Kind::CreateUnnamed => Self::Created,
            Kind::Unlink | Kind::Rmdir => Self::Change,
            Kind::Rename => Self::Renamed,
            Kind::Open => Self::Opened,
            Kind::Read => Self::Read,
            Kind::Write => Self::Written,
            Kind::Readdir => Self::Readdir,
            Kind::Readlink | Kind::XattrGet | Kind::XattrList => Self::Bytes,
            Kind::Statfs => Self::StatFs,
            Kind::LockTest => Self::Conflict,
            Kind::HandleOf => Self::Handle,
            Kind::Seek | Kind::Copy => Self::Offset,
        }
    }

    const fn of_reply(reply: &Reply<'_>) -> Self {
        match reply {
            Reply::Done => Self::Done,
            Reply::Session(_) => Self::Session,
            Reply::Entry(..) => Self::Entry,
            Reply::Attr(_) => Self::Attr,
            Reply::Setattr(..) => Self::Setattr,
            Reply::Made(..) => Self::Made,
            Reply::Created(..) => Self::Created,
            Reply::Change(_) => Self::Change,
            Reply::Renamed(_) => Self::Renamed,
            Reply::Opened(_) => Self::Opened,
            Reply::Read { .. } => Self::Read,
            Reply::Written(_) => Self::Written,
            Reply::Readdir { .. } => Self::Readdir,
            Reply::Bytes(_) => Self::Bytes,
            Reply::StatFs(_) => Self::StatFs,
            Reply::Conflict(_) => Self::Conflict,
            Reply::Handle(_) => Self::Handle,
            Reply::Offset(_) => Self::Offset,
        }
    }
}

/// Bits of the flags of an answer.
mod flag {
    /// The frame has what the node or (first) directory was before.
    pub const BEFORE: u32 = 1;
    /// The frame has what it is now.
    pub const AFTER: u32 = 1 << 1;
    /// RENAME: as `BEFORE`, for the directory of the new name.
    pub const TO_BEFORE: u32 = 1 << 2;
    /// RENAME: as `AFTER`, for the directory of the new name.
    pub const TO_AFTER: u32 = 1 << 3;
    /// OPEN: the frame has attributes.
    pub const ATTR: u32 = 1 << 4;
    /// The bytes are in the frame.
    pub const INLINE: u32 = 1 << 5;
    /// The file or directory ends here.
    pub const END: u32 = 1 << 6;
    /// LOCK_TEST: there is one.
    pub const PRESENT: u32 = 1 << 7;
    /// What gives a node: the frame has its handle.
    pub const HANDLE: u32 = 1 << 8;
    /// PROFILE: the back end checks permissions. Of PROFILE's flags, those from bit 2 on are [`super::Offers`].
    pub const BACK_END_CHECKS: u32 = 1;
    /// PROFILE: nothing can be changed.
    pub const READ_ONLY: u32 = 1 << 1;
}
