//! Read-ahead data of each opening: pure bookkeeping.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use tombolo_core::fs::ReadDone;
use tombolo_host_runtime::buffer_pool::Lease;
use tombolo_mem::Source;

use super::piece::overlap;
use super::read_sequence::{ReadAheadLimits, ReadSequence};

/// Id of an opening that reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ReaderId(u64);

/// Id of a read-ahead READ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AheadId(u64);

/// The readers of one file.
#[derive(Debug, Default)]
pub(super) struct Readers {
    next: u64,
    /// Readers, sorted by id.
    readers: Vec<(ReaderId, Reader)>,
}

impl Readers {
    /// Adds an opening, at its first read.
    pub(super) fn add(&mut self) -> ReaderId {
        self.next += 1;
        let id = ReaderId(self.next);
        self.readers.push((id, Reader::default()));
        id
    }

    pub(super) fn remove(&mut self, id: ReaderId) {
        if let Ok(index) = self.index(id) {
            self.readers.remove(index);
        }
    }

    pub(super) fn reader(&self, id: ReaderId) -> Option<&Reader> {
        self.readers.get(self.index(id).ok()?).map(|(_, reader)| reader)
    }

    pub(super) fn reader_mut(&mut self, id: ReaderId) -> Option<&mut Reader> {
        let index = self.index(id).ok()?;
        self.readers.get_mut(index).map(|(_, reader)| reader)
    }

    /// Discards read-ahead of this range, complete or pending. The end of the file becomes unknown.
    pub(super) fn forget(&mut self, range: &Range<u64>) {
        for (_, reader) in &mut self.readers {
            reader.pieces.retain(|piece| !overlap(&piece.range(), range));
            reader.pieces.iter_mut().for_each(|piece| piece.knows_end = false);
        }
    }

    fn index(&self, id: ReaderId) -> Result<usize, usize> {
        self.readers.binary_search_by_key(&id, |(id, _)| *id)
    }
}

/// Read-ahead of one opening.
#[derive(Debug, Default)]
pub(super) struct Reader {
    sequence: ReadSequence,
    /// Disjoint pieces by offset.
    pieces: VecDeque<Ahead>,
    next: u64,
}

/// Data of one read-ahead READ, pending or received.
#[derive(Debug)]
struct Ahead {
    id: AheadId,
    offset: u64,
    len: usize,
    memory: Lease,
    /// Time of the request.
    asked: Instant,
    /// Number of bytes that the reader has consumed.
    served: usize,
    /// `true` if the piece can show the end of the file: the server had all writes when it was requested, and
    /// nothing was written since.
    knows_end: bool,
    /// Result; `None` while the READ is pending.
    arrived: Option<ReadDone>,
}

/// Source of a part of a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The server, directly.
    Direct(Range<u64>),
    /// Read-ahead data.
    Ahead(AheadId, Range<u64>),
}

/// State of a read-ahead part.
pub(super) enum Fetched {
    /// Received bytes, short only at the end of the file.
    Ready { bytes: Source, eof: bool, memory: Lease },
    /// Not received yet.
    Pending,
    /// Discarded, or without bytes of this range: the reader must fetch them from the server.
    Discarded,
}

impl Reader {
    /// Returns the sources of the bytes of a read, in order. Discards read-ahead older than `time`, and all
    /// of it if the read is not sequential.
    pub(super) fn asked(
        &mut self,
        range: &Range<u64>,
        limits: &ReadAheadLimits,
        now: Instant,
        time: Duration,
    ) -> Vec<Part> {
        if !self.sequence.follows(range, limits) {
            self.pieces.clear();
            return vec![Part::Direct(range.clone())];
        }
        self.pieces.retain(|piece| now.saturating_duration_since(piece.asked) < time);
        let mut parts = Vec::new();
        let mut at = range.start;
        for piece in &self.pieces {
            let covered = piece.range();
            if covered.end <= at || covered.start >= range.end {
                continue;
            }
            if at < covered.start {
                parts.push(Part::Direct(at..covered.start));
            }
            let start = at.max(covered.start);
            at = covered.end.min(range.end);
            parts.push(Part::Ahead(piece.id, start..at));
            // The file ends in this piece, so no READ is needed for the remainder.
            if piece.ends_file() && at < range.end {
                return parts;
            }
        }
        if at < range.end {
            parts.push(Part::Direct(at..range.end));
        }
        parts
    }

    /// Returns the next range to read ahead for a reader at this range, in a file with this end. `None` if
    /// enough was read ahead, or the limit is reached.
    pub(super) fn next(
        &mut self,
        reading: &Range<u64>,
        file_end: u64,
        limits: &ReadAheadLimits,
    ) -> Option<Range<u64>> {
        let known_end = self.pieces.back().map_or(0, |piece| piece.range().end);
        let next = self.sequence.next(known_end, file_end, limits)?;
        let size = |range: &Range<u64>| usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
        let held_max = limits.window_max.saturating_add(size(reading));
        let mut held: usize = self.pieces.iter().map(|piece| piece.len).sum();
        // Discard pieces behind the reader.
        while held.saturating_add(size(&next)) > held_max {
            let first = self.pieces.front().filter(|piece| piece.range().end <= reading.start)?;
            held -= first.len;
            self.pieces.pop_front();
        }
        Some(next)
    }

    /// Registers a READ of these bytes. `knows_end` is `true` if the server has all writes, so that its end
    /// of file is valid.
    pub(super) fn fetch(
        &mut self,
        range: &Range<u64>,
        memory: Lease,
        now: Instant,
        knows_end: bool,
    ) -> AheadId {
        self.next += 1;
        let id = AheadId(self.next);
        let (offset, len) = (range.start, (range.end - range.start) as usize);
        let piece = Ahead { id, offset, len, memory, asked: now, served: 0, knows_end, arrived: None };
        let index = self.pieces.partition_point(|other| other.offset < offset);
        self.pieces.insert(index, piece);
        id
    }

    /// Records the result of a READ, `None` if it failed. A piece without bytes is discarded.
    pub(super) fn fetched(&mut self, id: AheadId, result: Option<ReadDone>) {
        let Some(index) = self.pieces.iter().position(|piece| piece.id == id) else { return };
        match result {
            Some(done) if done.count > 0 => {
                if let Some(piece) = self.pieces.get_mut(index) {
                    // A short piece ends at its count.
                    piece.len = done.count;
                    piece.arrived = result;
                }
            }
            _ => {
                self.pieces.remove(index);
            }
        }
    }

    /// Returns the state of a part, with its bytes if they were received.
    pub(super) fn part(&self, id: AheadId, range: &Range<u64>) -> Fetched {
        let Some(piece) = self.pieces.iter().find(|piece| piece.id == id) else { return Fetched::Discarded };
        let Some(arrived) = piece.arrived else { return Fetched::Pending };
        let start = range.start.saturating_sub(piece.offset) as usize;
        let end = (range.end.saturating_sub(piece.offset) as usize).min(arrived.count);
        if start >= end {
            return Fetched::Discarded;
        }
        let eof = piece.ends_file() && end == arrived.count;
        Fetched::Ready { bytes: piece.memory.source(start..end), eof, memory: piece.memory.clone() }
    }

    /// Records that the reader has consumed bytes of a piece; a consumed piece is discarded.
    pub(super) fn served(&mut self, id: AheadId, bytes: usize) {
        let Some(index) = self.pieces.iter().position(|piece| piece.id == id) else { return };
        let Some(piece) = self.pieces.get_mut(index) else { return };
        piece.served += bytes;
        if piece.served >= piece.len {
            self.pieces.remove(index);
        }
    }
}

impl Ahead {
    fn ends_file(&self) -> bool {
        self.knows_end && self.arrived.is_some_and(|arrived| arrived.eof)
    }

    fn range(&self) -> Range<u64> {
        self.offset..self.offset.saturating_add(self.len as u64)
    }
}
