//! Optional groups of operations. A file system that has a group returns it from the method of the same name
//! in [`FileSystem`](super::FileSystem).

use std::ops::Range;
use std::time::Duration;

use bitflags::bitflags;
use smallvec::SmallVec;
use tombolo_mem::{Sink, Source};

use super::{Attr, Entry, File, LeaseAnswer, LeaseAsk, LockOwner, NodeId, WeakAttr, XattrName};
use crate::{Answer, Ctx, Error};

/// What may exist already when an extended attribute is set (setxattr(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrSet {
    /// Make or replace.
    Any,
    /// Fail with [`Error::Exists`](crate::Error::Exists) when it exists.
    Create,
    /// Fail with [`Error::NoAttribute`](crate::Error::NoAttribute) when it does not.
    Replace,
}

/// Extended attributes. POSIX ACLs are the attributes `system.posix_acl_access` and
/// `system.posix_acl_default`.
pub trait Xattrs {
    /// The value of one, of at most `limit_bytes`; longer: [`Error::OutOfRange`](crate::Error::OutOfRange).
    /// Absent: [`Error::NoAttribute`](crate::Error::NoAttribute).
    fn get(&self, cx: &Ctx, node: NodeId, name: XattrName<'_>, limit_bytes: usize) -> Answer<Vec<u8>>;
    /// Sets one. `kill_set_gid` drops the set-group-id bit, as setting an ACL by one outside the group must.
    fn set(
        &self,
        cx: &Ctx,
        node: NodeId,
        name: XattrName<'_>,
        value: &[u8],
        how: XattrSet,
        kill_set_gid: bool,
    ) -> Answer<()>;
    /// The names, each ended by a NUL byte, of at most `limit_bytes` together.
    fn list(&self, cx: &Ctx, node: NodeId, limit_bytes: usize) -> Answer<Vec<u8>>;
    /// Removes one.
    fn remove(&self, cx: &Ctx, node: NodeId, name: XattrName<'_>) -> Answer<()>;
}

/// The two families of advisory locks, which do not see each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockFamily {
    /// fcntl(2) record locks: byte ranges, owned by a process.
    Posix,
    /// flock(2): whole files, owned by an opening.
    Flock,
}

/// What is held, or asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockKind {
    /// Shared.
    Read,
    /// Exclusive.
    Write,
}

/// Bytes `start` to `last`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LockRange {
    /// First byte.
    pub start: u64,
    /// Last byte; `u64::MAX` for the end of the file, wherever it will be.
    pub last: u64,
}

impl LockRange {
    /// The whole file.
    pub const ALL: Self = Self { start: 0, last: u64::MAX };
}

/// An advisory lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    /// Which family.
    pub family: LockFamily,
    /// Shared or exclusive.
    pub kind: LockKind,
    /// Which bytes; [`LockRange::ALL`] for flock.
    pub range: LockRange,
    /// The owner.
    pub owner: LockOwner,
    /// The owner's process id as its client knows it; returned to others that test for a conflicting lock.
    pub pid: u32,
}

/// Advisory locks.
pub trait Locks {
    /// A lock that stands in the way of `lock`, if any.
    fn test(&self, cx: &Ctx, file: File, lock: &Lock) -> Answer<Option<Lock>>;
    /// Takes a lock, waiting for it when `wait` is set: then the answer ends early with
    /// [`Error::Interrupted`](crate::Error::Interrupted) once the request's interrupt is raised. Without
    /// `wait`: [`Error::WouldBlock`](crate::Error::WouldBlock).
    fn lock(&self, cx: &Ctx, file: File, lock: &Lock, wait: bool) -> Answer<()>;
    /// Gives back what `owner` holds of this family in `range`.
    fn unlock(
        &self,
        cx: &Ctx,
        file: File,
        family: LockFamily,
        range: LockRange,
        owner: LockOwner,
    ) -> Answer<()>;
}

/// A name for a node that outlives the session and the server: what the file system itself calls it.
///
/// It is not signed and proves nothing: a front end that hands it to strangers adds its own proof
/// (`docs/formats`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PersistentHandle {
    /// The file system's own type number.
    pub kind: i32,
    /// The file system's own bytes.
    pub bytes: SmallVec<[u8; 48]>,
}

/// Which file system persistent handles are of: its UUID, or whatever else stays with it. The same after a
/// restart of the server, and for another server of the same file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Volume(pub [u8; 16]);

/// Handles that outlive restarts.
pub trait PersistentHandles: Send + Sync {
    /// The file system that the export's root lies on. It does not change during a session.
    fn volume(&self) -> Volume;
    /// The handle of a node.
    fn handle_of(&self, cx: &Ctx, node: NodeId) -> Answer<PersistentHandle>;
    /// The node of a handle; it counts a look-up. [`Error::Stale`](crate::Error::Stale) when it is gone or
    /// was never one.
    fn resolve(&self, cx: &Ctx, handle: &PersistentHandle) -> Answer<Entry>;
    /// The directory that a directory lies in; it counts a look-up. A caller that found one by its handle
    /// finds the way up so. The root lies in itself; [`Error::Stale`](crate::Error::Stale) for one that has
    /// left the export. Of a file: where it was met last, if that is known.
    fn parent(&self, cx: &Ctx, node: NodeId) -> Answer<Entry>;
    /// A node by its number, though it may have been forgotten; it counts a look-up. [`Error::Stale`] when
    /// the file is gone, or it is not known any more which it was: that may be at any time. Never another
    /// node than the one that had the number.
    fn again(&self, _cx: &Ctx, _node: NodeId) -> Answer<Entry> {
        Answer::err(Error::Stale)
    }
    /// What it takes to [`recall`](Self::recall) a node, for a caller that writes its number down: the file
    /// system's own table of numbers may lose it.
    fn record(&self, _cx: &Ctx, _node: NodeId) -> Answer<Vec<u8>> {
        Answer::err(Error::NotSupported)
    }
    /// Gives a node its number again, unless it has it still. Before anything else is asked for.
    fn recall(&self, _cx: &Ctx, _node: NodeId, _record: &[u8]) -> Answer<()> {
        Answer::err(Error::NotSupported)
    }
}

bitflags! {
    /// How to allocate (fallocate(2)). Empty: allocate, and grow the file.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct AllocateMode: u8 {
        /// Leave the size alone.
        const KEEP_SIZE = 1;
        /// Free the range; it reads as zeros.
        const PUNCH_HOLE = 2;
        /// Make the range zeros without freeing it.
        const ZERO_RANGE = 4;
        /// Cut the range out and move what follows down.
        const COLLAPSE_RANGE = 8;
        /// Move what follows up and leave a hole.
        const INSERT_RANGE = 16;
        /// Give the range its own blocks where it shares them.
        const UNSHARE_RANGE = 32;
    }
}

/// What to seek (lseek(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whence {
    /// The next data at or after the offset.
    Data,
    /// The next hole at or after the offset; every file ends with one.
    Hole,
}

/// Operations on ranges of files.
pub trait Ranges {
    /// Allocates or frees space.
    fn allocate(&self, cx: &Ctx, file: File, offset: u64, len: u64, mode: AllocateMode) -> Answer<()>;
    /// Finds data or a hole. [`Error::NoDevice`](crate::Error::NoDevice) past the end.
    fn seek(&self, cx: &Ctx, file: File, offset: u64, whence: Whence) -> Answer<u64>;
    /// Copies within the file system, and answers how many bytes it copied.
    fn copy(&self, cx: &Ctx, from: File, from_offset: u64, to: File, to_offset: u64, len: u64)
    -> Answer<u64>;
}

/// Data that are kept near, so that they need not be read where the file is.
pub trait DataCache {
    /// Offers data that a file has while it is of this version. As much of them is kept as can be: nothing of
    /// it may fail.
    fn offer(&self, cx: &Ctx, node: NodeId, version: &WeakAttr, offset: u64, from: Source) -> Answer<()>;
}

/// What proves data that came another way.
pub trait Digests: Send + Sync {
    /// The BLAKE3 digest of each [`DIGESTED_BYTES`] of a range, which begins and ends with one or at the end
    /// of the file; and the attributes that the file had meanwhile.
    fn digests(&self, cx: &Ctx, node: NodeId, range: Range<u64>) -> Answer<(Attr, Vec<u8>)>;
}

/// Of so much there is one digest.
pub const DIGESTED_BYTES: u64 = 64 << 10;

/// Parts of files that come compressed, several at a time: for what is far away.
pub trait Packing: Send + Sync {
    /// Reads these parts of a file, one after the other, into `into`, which is as long as all of them
    /// together: at most [`PACKED_BYTES_MAX`] and [`PACKED_PARTS_MAX`]. All of it, or a failure.
    fn read_packed(&self, cx: &Ctx, node: NodeId, parts: &[Range<u64>], into: Sink) -> Answer<Packed>;
}

/// What a packed read has brought.
#[derive(Clone, Copy, Debug)]
pub struct Packed {
    /// The attributes that the file had meanwhile.
    pub attr: Attr,
    /// What came over the line for it, in bytes.
    pub packed_bytes: usize,
}

/// What answers take this time from behind a line that has less than the processors of both sides can
/// compress.
pub const FAR: Duration = Duration::from_millis(5);

/// As much is read packed at a time.
pub const PACKED_BYTES_MAX: u64 = 1 << 20;
/// So many parts are.
pub const PACKED_PARTS_MAX: usize = 256;

/// Leases of the tree, where the server grants them.
pub trait Leases: Send + Sync {
    /// Asks about a lease. [`LeaseAsk::Keep`] is answered when it is recalled, or after a while.
    fn lease(&self, cx: &Ctx, ask: LeaseAsk) -> Answer<LeaseAnswer>;
}

/// Data that are kept of a file system below.
pub trait Lending: Send + Sync {
    /// Fills `into` with data of a version of a file that the file system below calls so, for a user who may
    /// read it. [`Error::NotFound`](crate::Error::NotFound) where that cannot be had here.
    fn lend(
        &self,
        cx: &Ctx,
        handle: &PersistentHandle,
        version: &WeakAttr,
        offset: u64,
        into: Sink,
    ) -> Answer<()>;
}
