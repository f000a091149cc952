//! A written part of a file.

use std::ops::Range;
use std::sync::Arc;

use tombolo_core::Stability;
use tombolo_mem::Source;
use tombolo_wire_nfs3::WriteVerifier;

use super::memory::Memory;
use crate::caller::Caller;

/// The place of a write among all writes of its file. Later ones win where they overlap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WriteSeq(pub(super) u64);

/// What the server said to a WRITE.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wrote {
    /// Bytes of it that it took; not 0, and no more than it was sent.
    pub(crate) count: usize,
    /// How stable they are; no less than was asked for.
    pub(crate) stability: Stability,
    /// Changes when it loses what is not stable.
    pub(crate) verifier: WriteVerifier,
}

/// Bytes that go in one WRITE.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    /// Where in the file.
    pub(super) offset: u64,
    /// How many bytes; not 0.
    pub(super) len: usize,
    /// The last of the writes that are in it.
    pub(super) seq: WriteSeq,
    /// The first of the writes that are in it, or whose bytes it overwrote before they left: a flush that
    /// waits for those waits for it.
    pub(super) first: WriteSeq,
    /// How stable the server is to make it before it answers.
    pub(super) stability: Stability,
    /// How often the server lost it.
    pub(super) losses: u8,
    /// The writer.
    pub(super) caller: Caller,
    pub(super) memory: Arc<Memory>,
    /// Where in the memory it begins.
    pub(super) at: usize,
}

impl Piece {
    /// The bytes of the file that it covers.
    pub(super) fn range(&self) -> Range<u64> {
        self.offset..self.end()
    }

    /// The byte after it.
    pub(super) fn end(&self) -> u64 {
        self.offset.saturating_add(self.len as u64)
    }

    /// Its bytes.
    pub(super) fn source(&self) -> Source {
        self.memory.source(self.at, self.len)
    }

    /// Whether it shares a byte with the range.
    pub(super) fn overlaps(&self, range: &Range<u64>) -> bool {
        overlap(&self.range(), range)
    }

    /// The part of it before `offset`, if there is one.
    pub(super) fn before(&self, offset: u64) -> Option<Self> {
        let len = offset.checked_sub(self.offset).map_or(0, |len| (self.len as u64).min(len) as usize);
        (len > 0).then(|| Self { len, ..self.clone() })
    }

    /// The part of it from `offset` on, if there is one.
    pub(super) fn after(&self, offset: u64) -> Option<Self> {
        let skip = offset.saturating_sub(self.offset);
        let len = usize::try_from((self.len as u64).checked_sub(skip)?).ok().filter(|len| *len > 0)?;
        let at = self.at + (self.len - len);
        Some(Self { offset: self.offset + skip, len, at, ..self.clone() })
    }

    /// The part of it within the range, if there is one.
    pub(super) fn within(&self, range: &Range<u64>) -> Option<Self> {
        self.after(range.start)?.before(range.end)
    }

    /// Whether the other follows it in the file and in memory.
    pub(super) fn is_continued_by(&self, next: &Self) -> bool {
        self.end() == next.offset
            && Arc::ptr_eq(&self.memory, &next.memory)
            && self.at + self.len == next.at
            && self.losses == next.losses
    }

    /// Takes in the other, which follows it.
    pub(super) fn extend(&mut self, next: &Self) {
        self.len += next.len;
        self.seq = self.seq.max(next.seq);
        self.first = self.first.min(next.first);
    }
}

/// Whether two ranges share a byte.
pub(super) fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}
