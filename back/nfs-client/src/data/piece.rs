//! A written part of a file.

use std::ops::Range;
use std::sync::Arc;

use tombolo_core::Stability;
use tombolo_mem::Source;
use tombolo_wire_nfs3::WriteVerifier;

use super::memory::Memory;
use crate::caller::Caller;

/// Sequence number of a write in its file. Later writes win where they overlap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WriteSeq(pub(super) u64);

/// Reply to a WRITE.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wrote {
    /// Number of bytes taken; valid from 1 to the number sent.
    pub(crate) count: usize,
    /// Stability of the bytes; valid if at least the requested one.
    pub(crate) stability: Stability,
    /// Verifier of the server, which changes when it loses unstable data.
    pub(crate) verifier: WriteVerifier,
}

/// Bytes of one WRITE.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) offset: u64,
    /// Length in bytes; not 0.
    pub(super) len: usize,
    /// The last write in the piece.
    pub(super) seq: WriteSeq,
    /// The first write in the piece or in bytes that it overwrote: flushes of that write wait for this piece.
    pub(super) first: WriteSeq,
    pub(super) stability: Stability,
    /// Number of times that the server lost the piece.
    pub(super) losses: u8,
    /// User that wrote the piece.
    pub(super) caller: Caller,
    pub(super) memory: Arc<Memory>,
    /// Offset in the memory.
    pub(super) at: usize,
}

impl Piece {
    pub(super) fn range(&self) -> Range<u64> {
        self.offset..self.end()
    }

    pub(super) fn end(&self) -> u64 {
        self.offset.saturating_add(self.len as u64)
    }

    pub(super) fn source(&self) -> Source {
        self.memory.source(self.at, self.len)
    }

    pub(super) fn overlaps(&self, range: &Range<u64>) -> bool {
        overlap(&self.range(), range)
    }

    /// Returns the part before `offset`, if any.
    pub(super) fn before(&self, offset: u64) -> Option<Self> {
        let len = offset.checked_sub(self.offset).map_or(0, |len| (self.len as u64).min(len) as usize);
        (len > 0).then(|| Self { len, ..self.clone() })
    }

    /// Returns the part from `offset` on, if any.
    pub(super) fn after(&self, offset: u64) -> Option<Self> {
        let skip = offset.saturating_sub(self.offset);
        let len = usize::try_from((self.len as u64).checked_sub(skip)?).ok().filter(|len| *len > 0)?;
        let at = self.at + (self.len - len);
        Some(Self { offset: self.offset + skip, len, at, ..self.clone() })
    }

    /// Returns the part within the range, if any.
    pub(super) fn within(&self, range: &Range<u64>) -> Option<Self> {
        self.after(range.start)?.before(range.end)
    }

    /// Returns `true` if `next` follows this piece in the file and in memory, and was lost as often.
    pub(super) fn is_continued_by(&self, next: &Self) -> bool {
        self.end() == next.offset
            && Arc::ptr_eq(&self.memory, &next.memory)
            && self.at + self.len == next.at
            && self.losses == next.losses
    }

    /// Extends this piece by the next one, which [continues](Self::is_continued_by) it.
    pub(super) fn extend(&mut self, next: &Self) {
        self.len += next.len;
        self.seq = self.seq.max(next.seq);
        self.first = self.first.min(next.first);
    }
}

pub(super) fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}
