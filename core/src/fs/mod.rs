//! The file-system waist.
//!
//! An [`Export`] is offered by a server; attaching to it gives one session's [`FileSystem`]. Operations take
//! a [`Ctx`](crate::Ctx) and return an [`Answer`](crate::Answer): `Done` if nothing had to wait, `Later`
//! otherwise. Operations that only some file systems support are in optional groups ([`Xattrs`], [`Locks`],
//! [`PersistentHandles`], [`Ranges`], [`Changes`], [`Versions`], [`DataCache`], [`BackingFiles`],
//! [`Descriptors`], [`Digests`], [`CompressedReads`], [`Leases`], [`Lending`]).

mod attr;
mod backing;
mod changes;
mod descriptors;
mod dir;
mod file_system;
mod forward;
mod granted_locks;
mod groups;
mod id;
mod leases;
mod lock_table;
mod name;
mod op;
mod open;
mod permission;
mod read_whole;
mod watermarks;

pub use attr::{Attr, Change, Device, FileType, Mode, SetAttr, SetTime, StatFs, Timestamp, WeakAttr};
pub use backing::{BackingFile, BackingFiles};
pub use changes::{
    Changes, NOTICE_BYTES, Notice, NoticeQueue, Notices, Version, Versions, Watchers, WindowMirror,
};
pub use descriptors::Descriptors;
pub use dir::{DirBudget, DirEntry, DirPage};
pub use file_system::{Client, Export, FileSystem, PermissionCheck, Profile};
pub use forward::within;
pub use granted_locks::{Granted, GrantedLocks};
pub use groups::{
    AllocateMode, COMPRESSED_BYTES_MAX, COMPRESSED_RANGES_MAX, COMPRESSED_RTT_MIN, CompressedReads,
    DIGESTED_BYTES, DataCache, Digests, Leases, Lending, Lock, LockFamily, LockKind, LockRange, Locks,
    Packed, PersistentHandle, PersistentHandles, Ranges, Volume, Whence, XattrSet, Xattrs,
};
pub use id::{Cookie, File, LockOwner, NodeId, OpenId};
pub use leases::{Changing, LEASE_TERM, LeaseAnswer, LeaseClient, LeaseNote, LeaseRequest, LeaseTable};
pub use lock_table::{LockTable, SessionLocks, Woken};
pub use name::{NAME_MAX, Name, NameBuf, NameError, XattrName, XattrNameBuf};
pub use op::Op;
pub use open::{
    AccessMask, Create, Created, Entry, Exclusive, Made, NewMode, OpenFlags, Opened, ReadDone, RenameFlags,
    Renamed, SyncScope, Write, Written,
};
pub use permission::Ownership;
pub use read_whole::read_whole;
pub use watermarks::Watermarks;
