//! Encoding of replies into a buffer of the caller. No function allocates memory.

use crate::errno::Errno;
use crate::ids::{BackingId, FileHandle, LockOwner, NodeId, Unique};
use crate::layout::attr::{AttrOut, EntryOut, FuseAttr, FuseStatx, StatxOut};
use crate::layout::header::OutHeader;
use crate::layout::lock::{self, FileLock, LkOut};
use crate::layout::open::{OpenOut, OpenOutFlags};
use crate::layout::rw::{CopyFileRangeOut, LseekOut, WriteOut};
use crate::layout::xattr::GetxattrOut;
use crate::request::LockKind;
use std::time::Duration;
use zerocopy::{Immutable, IntoBytes};

/// Length of a reply's header, in bytes.
pub const HEADER_BYTES: usize = size_of::<OutHeader>();

/// Returns the header of a successful reply with a body of `body_bytes`, which may be elsewhere (a READ's
/// data).
#[must_use]
pub fn header(unique: Unique, body_bytes: usize) -> OutHeader {
    OutHeader { len: wire_len(HEADER_BYTES + body_bytes), error: 0, unique: unique.0 }
}

/// Returns the whole reply to a failed request.
#[must_use]
pub fn error(unique: Unique, errno: Errno) -> OutHeader {
    OutHeader { len: wire_len(HEADER_BYTES), error: errno.to_wire(), unique: unique.0 }
}

/// A reply under construction: header, then parts in order.
///
/// The buffer is private memory of the caller. A part that does not fit is not written, and [`Reply::finish`]
/// then replies `EIO` instead: a reply is never truncated.
#[derive(Debug)]
pub struct Reply<'b> {
    buffer: &'b mut [u8],
    unique: Unique,
    len: usize,
    fits: bool,
}

impl<'b> Reply<'b> {
    /// Returns an empty successful reply. The buffer must hold at least a header.
    #[must_use]
    pub fn new(buffer: &'b mut [u8], unique: Unique) -> Reply<'b> {
        let fits = buffer.len() >= HEADER_BYTES;
        Reply { buffer, unique, len: HEADER_BYTES, fits }
    }

    /// Appends a structure of the protocol.
    #[must_use]
    pub fn with<T: IntoBytes + Immutable + ?Sized>(mut self, part: &T) -> Reply<'b> {
        let bytes = part.as_bytes();
        match self.buffer.get_mut(self.len..).and_then(|rest| rest.get_mut(..bytes.len())) {
            Some(place) => {
                place.copy_from_slice(bytes);
                self.len += bytes.len();
            }
            None => self.fits = false,
        }
        self
    }

    /// Appends bytes that the caller has written to the buffer already, behind the parts appended before (a
    /// directory listing).
    #[must_use]
    pub fn with_written(mut self, bytes: usize) -> Reply<'b> {
        match self.len.checked_add(bytes).filter(|end| *end <= self.buffer.len()) {
            Some(end) => self.len = end,
            None => self.fits = false,
        }
        self
    }

    /// Writes the header and returns the reply's bytes: an error reply (EIO) if a part did not fit, and none
    /// if not even the header fits.
    #[must_use]
    pub fn finish(self) -> &'b [u8] {
        let head = if self.fits {
            OutHeader { len: wire_len(self.len), error: 0, unique: self.unique.0 }
        } else {
            error(self.unique, Errno::EIO)
        };
        let len = if self.fits { self.len } else { HEADER_BYTES };
        if let Some(place) = self.buffer.get_mut(..HEADER_BYTES) {
            place.copy_from_slice(head.as_bytes());
        }
        self.buffer.get(..len).unwrap_or_default()
    }
}

/// Times for which the kernel may use a cached entry without asking the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lifetimes {
    /// Time for which the name refers to the node.
    pub entry: Duration,
    /// Time for which the attributes are valid.
    pub attr: Duration,
}

/// Encodes the reply to LOOKUP and to requests that create a node.
#[must_use]
pub fn entry(node: NodeId, generation: u64, attr: FuseAttr, keep: Lifetimes) -> EntryOut {
    EntryOut {
        nodeid: node.0,
        generation,
        entry_valid: keep.entry.as_secs(),
        attr_valid: keep.attr.as_secs(),
        entry_valid_nsec: keep.entry.subsec_nanos(),
        attr_valid_nsec: keep.attr.subsec_nanos(),
        attr,
    }
}

/// Encodes the reply to LOOKUP for a name that does not exist, whose absence may be cached for `keep`.
#[must_use]
pub fn no_entry(keep: Duration) -> EntryOut {
    entry(NodeId(0), 0, FuseAttr::default(), Lifetimes { entry: keep, attr: Duration::ZERO })
}

/// Encodes the reply to GETATTR and SETATTR.
#[must_use]
pub fn attr(attr: FuseAttr, keep: Duration) -> AttrOut {
    AttrOut { attr_valid: keep.as_secs(), attr_valid_nsec: keep.subsec_nanos(), dummy: 0, attr }
}

/// Encodes the reply to STATX.
#[must_use]
pub fn statx(stat: FuseStatx, keep: Duration) -> StatxOut {
    StatxOut { attr_valid: keep.as_secs(), attr_valid_nsec: keep.subsec_nanos(), stat, ..Default::default() }
}

/// Encodes the reply to OPEN and OPENDIR, and the second part of the replies to CREATE and TMPFILE.
#[must_use]
pub fn open(handle: FileHandle, flags: OpenOutFlags) -> OpenOut {
    OpenOut { fh: handle.0, open_flags: flags.bits(), backing_id: 0 }
}

/// Encodes the reply to OPEN for a file with a backing file; the flags include PASSTHROUGH.
#[must_use]
pub fn open_backed(handle: FileHandle, flags: OpenOutFlags, backing: BackingId) -> OpenOut {
    OpenOut { backing_id: backing.0, ..open(handle, flags) }
}

/// Encodes the reply to WRITE and COPY_FILE_RANGE.
#[must_use]
pub fn write(size_bytes: u32) -> WriteOut {
    WriteOut { size: size_bytes, padding: 0 }
}

/// Encodes the reply to COPY_FILE_RANGE_64.
#[must_use]
pub fn copied(bytes: u64) -> CopyFileRangeOut {
    CopyFileRangeOut { bytes_copied: bytes }
}

/// Encodes the reply to LSEEK.
#[must_use]
pub fn offset(offset: u64) -> LseekOut {
    LseekOut { offset }
}

/// Encodes the reply to GETXATTR and LISTXATTR that query the length.
#[must_use]
pub fn xattr_size(size_bytes: u32) -> GetxattrOut {
    GetxattrOut { size: size_bytes, padding: 0 }
}

/// A lock that conflicts with the one of a GETLK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockConflict {
    /// Shared or exclusive.
    pub kind: LockKind,
    /// First byte.
    pub start: u64,
    /// Last byte; [`lock::OFFSET_MAX`] and beyond for the end of the file.
    pub last: u64,
    /// Process id of the owner, as the owner's client names it; 0 if unknown.
    pub pid: u32,
    /// The owner of the lock; not sent to the kernel.
    pub owner: LockOwner,
}

/// Encodes the reply to GETLK: the conflicting lock, or none.
#[must_use]
pub fn lk(blocker: Option<&LockConflict>) -> LkOut {
    let lk = match blocker {
        None => FileLock { kind: lock::F_UNLCK, ..Default::default() },
        Some(blocker) => FileLock {
            start: blocker.start,
            end: blocker.last.min(lock::OFFSET_MAX),
            kind: match blocker.kind {
                LockKind::Read => lock::F_RDLCK,
                LockKind::Write => lock::F_WRLCK,
                LockKind::Unlock => lock::F_UNLCK,
            },
            pid: blocker.pid,
        },
    };
    LkOut { lk }
}

/// Converts a length. It never saturates in practice: replies are limited by a device read or descriptor
/// chain.
fn wire_len(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromBytes;

    #[test]
    fn a_reply_of_two_parts_counts_both() {
        let mut buffer = [0xff; 256];
        let entry = entry(NodeId(7), 1, FuseAttr { ino: 7, ..Default::default() }, Lifetimes::default());
        let open = open(FileHandle(3), OpenOutFlags::KEEP_CACHE);
        let bytes = Reply::new(&mut buffer, Unique(9)).with(&entry).with(&open).finish();
        assert_eq!(bytes.len(), 16 + 128 + 16);
        let (head, rest) = OutHeader::read_from_prefix(bytes).unwrap();
        assert_eq!(head, OutHeader { len: 160, error: 0, unique: 9 });
        let (again, rest) = EntryOut::read_from_prefix(rest).unwrap();
        assert_eq!((again, rest), (entry, open.as_bytes()));
    }

    #[test]
    fn oversized_reply_becomes_an_error() {
        let mut buffer = [0; 32];
        let bytes = Reply::new(&mut buffer, Unique(9)).with(&[0u64; 1]).with(&[0u64; 9]).finish();
        assert_eq!(bytes, error(Unique(9), Errno::EIO).as_bytes());
        let mut tiny = [0; 3];
        assert!(Reply::new(&mut tiny, Unique(9)).finish().len() <= 3);
    }

    #[test]
    fn lifetimes_keep_their_nanoseconds() {
        let keep = Lifetimes { entry: Duration::from_millis(1500), attr: Duration::from_nanos(3) };
        let out = entry(NodeId(2), 0, FuseAttr::default(), keep);
        assert_eq!((out.entry_valid, out.entry_valid_nsec), (1, 500_000_000));
        assert_eq!((out.attr_valid, out.attr_valid_nsec), (0, 3));
    }

    #[test]
    fn lock_to_eof_is_clamped_to_offset_max() {
        let blocker =
            LockConflict { kind: LockKind::Write, start: 5, last: u64::MAX, pid: 1, owner: LockOwner(1) };
        assert_eq!(lk(Some(&blocker)).lk.end, i64::MAX as u64);
        assert_eq!(lk(None).lk.kind, lock::F_UNLCK);
    }
}
