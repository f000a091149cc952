//! Optional groups of operations. A file system returns each supported group from a method of
//! [`FileSystem`](super::FileSystem).

use std::ops::Range;
use std::time::Duration;

use bitflags::bitflags;
use smallvec::SmallVec;
use tombolo_mem::{Sink, Source};

use super::{Attr, Entry, File, LeaseAnswer, LeaseRequest, LockOwner, NodeId, WeakAttr, XattrName};
use crate::{Answer, Ctx, Error};

/// Preconditions of setting an extended attribute (setxattr(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrSet {
    /// Create or replace.
    Any,
    /// Fail with [`Error::Exists`](crate::Error::Exists) if the attribute exists.
    Create,
    /// Fail with [`Error::NoAttribute`](crate::Error::NoAttribute) if the attribute does not exist.
    Replace,
}

/// Extended attributes. POSIX ACLs are the attributes `system.posix_acl_access` and
/// `system.posix_acl_default`.
pub trait Xattrs {
    /// Returns an attribute's value. Fails with [`Error::OutOfRange`](crate::Error::OutOfRange) if it is
    /// longer than `limit_bytes`, with [`Error::NoAttribute`](crate::Error::NoAttribute) if absent.
    fn get(&self, cx: &Ctx, node: NodeId, name: XattrName<'_>, limit_bytes: usize) -> Answer<Vec<u8>>;
    /// Sets an attribute. `kill_set_gid` drops the set-group-id bit, as required when a user outside the
    /// group sets an ACL.
    fn set(
        &self,
        cx: &Ctx,
        node: NodeId,
        name: XattrName<'_>,
        value: &[u8],
        how: XattrSet,
        kill_set_gid: bool,
    ) -> Answer<()>;
    /// Returns the names, each terminated by NUL. Fails with [`Error::OutOfRange`](crate::Error::OutOfRange)
    /// if they are longer than `limit_bytes` in total.
    fn list(&self, cx: &Ctx, node: NodeId, limit_bytes: usize) -> Answer<Vec<u8>>;
    /// Removes an attribute. Fails with [`Error::NoAttribute`](crate::Error::NoAttribute) if absent.
    fn remove(&self, cx: &Ctx, node: NodeId, name: XattrName<'_>) -> Answer<()>;
}

/// The two families of advisory locks, which do not interact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockFamily {
    /// fcntl(2) record locks: byte ranges, owned by a process.
    Posix,
    /// flock(2): whole files, owned by an opening.
    Flock,
}

/// The mode of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockKind {
    /// Shared lock: excludes [`Write`](Self::Write) locks of other owners.
    Read,
    /// Exclusive lock: excludes all locks of other owners in the family.
    Write,
}

/// Bytes `start` to `last`, inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LockRange {
    /// Offset of the first byte.
    pub start: u64,
    /// Last byte; `u64::MAX` for the end of the file, wherever it will be.
    pub last: u64,
}

impl LockRange {
    /// The whole file.
    pub const ALL: Self = Self { start: 0, last: u64::MAX };

    /// Returns `true` if the ranges have bytes in common.
    pub fn overlaps(self, other: Self) -> bool {
        self.start <= other.last && other.start <= self.last
    }

    /// Returns `true` if one range begins directly after the other.
    pub fn adjoins(self, other: Self) -> bool {
        self.last.checked_add(1) == Some(other.start) || other.last.checked_add(1) == Some(self.start)
    }

    /// Returns the range from the first to the last byte of both.
    pub fn hull(self, other: Self) -> Self {
        Self { start: self.start.min(other.start), last: self.last.max(other.last) }
    }

    /// Returns the parts before and after an overlapping range.
    pub fn without(self, other: Self) -> impl Iterator<Item = Self> {
        let before = other.start.checked_sub(1).filter(|&last| self.start <= last);
        let after = other.last.checked_add(1).filter(|&start| start <= self.last);
        let before = before.map(|last| Self { last, ..self });
        before.into_iter().chain(after.map(|start| Self { start, ..self }))
    }
}

/// An advisory lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    /// Family, which determines the kind of owner.
    pub family: LockFamily,
    /// Mode of the lock.
    pub kind: LockKind,
    /// Locked bytes; [`LockRange::ALL`] for flock.
    pub range: LockRange,
    /// Owner of a POSIX lock. A flock lock is owned by its opening instead.
    pub owner: LockOwner,
    /// Process id of the owner, as its client names it; returned to clients that test for a conflicting lock.
    pub pid: u32,
}

/// Advisory locks that other clients of the file system observe.
pub trait Locks {
    /// Returns a lock of another owner that conflicts with `lock`, if any.
    fn test(&self, cx: &Ctx, file: File, lock: &Lock) -> Answer<Option<Lock>>;
    /// Acquires a lock. If `wait` is set, waits for conflicting locks, and fails with
    /// [`Error::Interrupted`](crate::Error::Interrupted) once the request's interrupt is raised; otherwise
    /// fails with [`Error::WouldBlock`](crate::Error::WouldBlock) on a conflict.
    fn lock(&self, cx: &Ctx, file: File, lock: &Lock, wait: bool) -> Answer<()>;
    /// Releases the locks of `owner` of this family in `range`; a lock that extends beyond it is cut.
    fn unlock(
        &self,
        cx: &Ctx,
        file: File,
        family: LockFamily,
        range: LockRange,
        owner: LockOwner,
    ) -> Answer<()>;
}

/// A name for a node that outlives the session and the server, assigned by the file system itself.
///
/// It is unsigned and proves nothing: a front end that hands it to untrusted clients adds its own proof
/// (`docs/formats`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PersistentHandle {
    /// The file system's own type number, without meaning to others.
    pub kind: i32,
    /// The file system's own bytes, without meaning to others.
    pub bytes: SmallVec<[u8; 48]>,
}

/// The identity of the file system that persistent handles belong to: its UUID or another permanent id.
/// Stable over restarts, and the same for another server of the same file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Volume(pub [u8; 16]);

/// Persistent handles of nodes, which outlive sessions and restarts.
pub trait PersistentHandles: Send + Sync {
    /// Returns the identity of the file system that contains the export's root. Constant during a session.
    fn volume(&self) -> Volume;
    /// Returns the handle of a node.
    fn handle_of(&self, cx: &Ctx, node: NodeId) -> Answer<PersistentHandle>;
    /// Returns the node of a handle, counting a look-up. Fails with [`Error::Stale`](crate::Error::Stale) if
    /// the node no longer exists or never existed. Permissions for the directories above are not required,
    /// except by an implementation that finds the node by its path, which fails without them.
    fn resolve(&self, cx: &Ctx, handle: &PersistentHandle) -> Answer<Entry>;
    /// Returns the parent of a directory, counting a look-up, so that a caller that resolved a handle finds
    /// the path to the root. The root is its own parent. Fails with [`Error::Stale`](crate::Error::Stale) for
    /// a directory that has left the export. For a file: the directory in which it was last found, or
    /// [`Error::NotDirectory`] if only the parents of directories are found.
    fn parent(&self, cx: &Ctx, node: NodeId) -> Answer<Entry>;
    /// Returns a node by its number even after it was forgotten, counting a look-up. Fails with
    /// [`Error::Stale`] if the file no longer exists or its number has been discarded, which may happen at
    /// any time. Never returns another node than the one that had the number.
    fn node_by_number(&self, _cx: &Ctx, _node: NodeId) -> Answer<Entry> {
        Answer::err(Error::Stale)
    }
    /// Returns the data required to [`recall`](Self::recall) a node, for a caller that stores its number: the
    /// file system's own table of numbers may lose it.
    fn record(&self, _cx: &Ctx, _node: NodeId) -> Answer<Vec<u8>> {
        Answer::err(Error::NotSupported)
    }
    /// Restores a node's number, unless it is still assigned. Callers must restore all numbers before any
    /// other operation, which might assign one of them to another node.
    fn recall(&self, _cx: &Ctx, _node: NodeId, _record: &[u8]) -> Answer<()> {
        Answer::err(Error::NotSupported)
    }
}

bitflags! {
    /// Modes of allocation (fallocate(2)). Empty: allocate, and extend the file.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct AllocateMode: u8 {
        /// Do not change the file's size, even if the range extends beyond it.
        const KEEP_SIZE = 1;
        /// Free the range; it reads as zeroes.
        const PUNCH_HOLE = 2;
        /// Zero the range without freeing it.
        const ZERO_RANGE = 4;
        /// Remove the range and shift the following data down.
        const COLLAPSE_RANGE = 8;
        /// Shift the following data up and leave a hole.
        const INSERT_RANGE = 16;
        /// Give the range its own blocks where they are shared.
        const UNSHARE_RANGE = 32;
    }
}

/// The kind of offset to seek (lseek(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whence {
    /// The next data at or after the offset.
    Data,
    /// The next hole at or after the offset; every file ends with one.
    Hole,
}

/// Operations on ranges of files.
pub trait Ranges {
    /// Allocates or frees space in a range of a file, as [`AllocateMode`] requires.
    fn allocate(&self, cx: &Ctx, file: File, offset: u64, len: u64, mode: AllocateMode) -> Answer<()>;
    /// Finds the next data or hole at or after `offset`. Fails with
    /// [`Error::NoDevice`](crate::Error::NoDevice) past the end, and if no data follow.
    fn seek(&self, cx: &Ctx, file: File, offset: u64, whence: Whence) -> Answer<u64>;
    /// Copies from one file to another within the file system. Returns the number of bytes copied, which may
    /// be less than `len`.
    fn copy(&self, cx: &Ctx, from: File, from_offset: u64, to: File, to_offset: u64, len: u64)
    -> Answer<u64>;
}

/// A local cache of file data.
pub trait DataCache {
    /// Offers data of the given version of a file to the cache, which stores what it can use of them.
    /// Failures have no consequence.
    fn offer(&self, cx: &Ctx, node: NodeId, version: &WeakAttr, offset: u64, from: Source) -> Answer<()>;
}

/// Digests that verify data obtained from another source.
pub trait Digests: Send + Sync {
    /// Returns the concatenated BLAKE3 digests of the units of [`DIGESTED_BYTES`] in a range, and the
    /// attributes of the file while they were computed. The range consists of whole units; the last one may
    /// end at the end of the file.
    fn digests(&self, cx: &Ctx, node: NodeId, range: Range<u64>) -> Answer<(Attr, Vec<u8>)>;
}

/// Unit of digests, in bytes.
pub const DIGESTED_BYTES: u64 = 64 << 10;

/// Compressed reads of several file ranges at a time, for slow connections.
pub trait CompressedReads: Send + Sync {
    /// Reads these ranges of a file, concatenated, into `into`, which has their total length. The limits are
    /// [`COMPRESSED_BYTES_MAX`] and [`COMPRESSED_RANGES_MAX`]. Reads all of them or fails.
    fn read_compressed(&self, cx: &Ctx, node: NodeId, parts: &[Range<u64>], into: Sink) -> Answer<Packed>;
}

/// The result of a compressed read.
#[derive(Clone, Copy, Debug)]
pub struct Packed {
    /// Attributes of the file while it was read: it did not change meanwhile.
    pub attr: Attr,
    /// Bytes received over the connection.
    pub compressed_bytes: usize,
}

/// Minimum round-trip time to a server at which data are transferred compressed: the connection to a nearer
/// server is assumed to be faster than a processor compresses.
pub const COMPRESSED_RTT_MIN: Duration = Duration::from_millis(5);

/// Maximum total size of a compressed read, in bytes.
pub const COMPRESSED_BYTES_MAX: u64 = 1 << 20;
/// Maximum number of ranges of a compressed read.
pub const COMPRESSED_RANGES_MAX: usize = 256;

/// Leases of the tree, where the server grants them.
pub trait Leases: Send + Sync {
    /// Requests, renews or returns a lease. [`LeaseRequest::Keep`] is answered on recall, else after about a
    /// twentieth of the term; at once if the lease is not held.
    fn lease(&self, cx: &Ctx, ask: LeaseRequest) -> Answer<LeaseAnswer>;
}

/// Access to the file data that a caching layer has stored, for caches on other hosts.
pub trait Lending: Send + Sync {
    /// Fills `into` with data of the given version of a file, identified by the file's handle in the
    /// underlying file system, if the user may read the file. Fails with
    /// [`Error::NotFound`](crate::Error::NotFound) if the data are not cached.
    fn lend(
        &self,
        cx: &Ctx,
        handle: &PersistentHandle,
        version: &WeakAttr,
        offset: u64,
        into: Sink,
    ) -> Answer<()>;
}
