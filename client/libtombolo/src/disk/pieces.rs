//! Division of a disk into pieces by its allocation map.

use std::collections::VecDeque;
use std::sync::Arc;

use tombolo_core::block::{Allocation, BlockDevice, Extent, Range};
use tombolo_core::{Ctx, Error, SessionId};

use super::fault::{Fault, Step};

/// Maximum size of one read or write, in bytes.
pub(super) const PIECE_BYTES: u64 = 1 << 20;

/// Maximum size of one skip or zeroing in bytes, small enough for a walk to stop soon.
const ZERO_BYTES_MAX: u64 = 64 << 20;

/// Returns the context of all disk operations.
pub(super) fn cx() -> Ctx {
    Ctx::root(SessionId(0))
}

/// Queries the extents from `offset`, at least one; a caller that needs all up to `end` repeats the query.
pub(super) async fn extents_from(
    disk: &dyn BlockDevice,
    offset: u64,
    end: u64,
) -> Result<Vec<Extent>, Fault> {
    const COUNT_MAX: usize = 1024;
    // Maximum length of one query: NBD has 32-bit lengths.
    const ASKED_MAX: u64 = 1 << 30;
    let range = Range { offset, len_bytes: end.saturating_sub(offset).min(ASKED_MAX) };
    let asked = disk.extents(&cx(), range, COUNT_MAX);
    disk.submit();
    let extents = asked.resolve().await.map_err(Fault::at(Step::Map, offset))?;
    // The caller would repeat a query answered without extents forever.
    if extents.next_offset() <= offset {
        return Err(Fault::at(Step::Map, offset)(Error::io("the disk returned no extents")));
    }
    Ok(extents.as_slice().to_vec())
}

/// A range of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub range: Range,
    /// `true` if the piece is known to be zero.
    pub is_zero: bool,
}

/// Consecutive pieces of a range of a disk, each of whole units except at the end of the range.
pub(super) struct Pieces {
    disk: Arc<dyn BlockDevice>,
    unit_bytes: u64,
    next: u64,
    end: u64,
    /// Extents already queried, from `next` on: the end of each, and `true` if it reads as zeroes.
    known: VecDeque<(u64, bool)>,
}

impl Pieces {
    /// Splits `range`, which begins at a unit, into pieces; `unit_bytes` is a power of two.
    pub fn of(disk: Arc<dyn BlockDevice>, range: Range, unit_bytes: u64) -> Self {
        Self { disk, unit_bytes, next: range.offset, end: range.end(), known: VecDeque::new() }
    }

    pub async fn next(&mut self) -> Option<Result<Piece, Fault>> {
        if self.next >= self.end {
            return None;
        }
        while self.known.front().is_some_and(|(end, _)| *end <= self.next) {
            self.known.pop_front();
        }
        if self.known.is_empty()
            && let Err(fault) = self.ask().await
        {
            return Some(Err(fault));
        }
        let (known_end, is_zero) = *self.known.front()?;
        let piece = self.cut(known_end, is_zero);
        self.next = piece.range.end();
        Some(Ok(piece))
    }

    async fn ask(&mut self) -> Result<(), Fault> {
        let mut end = self.next;
        for extent in extents_from(&*self.disk, self.next, self.end).await? {
            end += extent.len_bytes;
            let is_zero = extent.allocation != Allocation::Data;
            match self.known.back_mut() {
                Some(last) if last.1 == is_zero => last.0 = end,
                _ => self.known.push_back((end, is_zero)),
            }
        }
        Ok(())
    }

    /// Cuts whole units from the beginning of a known extent: of data, all units that it overlaps; of zeroes,
    /// those that it fills.
    fn cut(&self, known_end: u64, is_zero: bool) -> Piece {
        let start = self.next;
        let filled = if known_end >= self.end { self.end } else { known_end - known_end % self.unit_bytes };
        let (end, is_zero) = if is_zero && filled > start {
            (filled.min(start + ZERO_BYTES_MAX), true)
        } else {
            let touched = known_end.checked_next_multiple_of(self.unit_bytes).unwrap_or(u64::MAX);
            (touched.min(start + PIECE_BYTES).min(self.end), false)
        };
        Piece { range: Range { offset: start, len_bytes: end - start }, is_zero }
    }
}
