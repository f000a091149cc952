//! Search for unreadable blocks of a disk.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tombolo_core::Error;
use tombolo_core::block::{BlockDevice, Range};

use super::fault::{Fault, Step};
use super::pieces::Piece;
use super::tally::Watched;
use super::transfer::{Buffers, read};
use super::walk::{Walk, unit_bytes};

/// The unreadable ranges of a disk.
#[derive(Debug, Default)]
pub struct Unreadable {
    /// The first unreadable ranges in order, with their errors.
    pub ranges: Vec<(Range, Error)>,
    /// Total number of unreadable ranges, including those not in `ranges`.
    pub count: u64,
    /// Total length of the unreadable ranges in bytes.
    pub bytes: u64,
    /// End of the last unreadable range.
    end: u64,
    /// `true` if the search was stopped before the end.
    pub is_stopped: bool,
}

impl Unreadable {
    fn add(&mut self, range: Range, error: Error, ranges_max: usize) {
        self.bytes += range.len_bytes;
        let continues = self.count > 0 && self.end == range.offset;
        self.end = range.end();
        if !continues {
            self.count += 1;
            if self.ranges.len() < ranges_max {
                self.ranges.push((range, error));
            }
        } else if self.count as usize == self.ranges.len()
            && let Some((last, _)) = self.ranges.last_mut()
        {
            last.len_bytes += range.len_bytes;
        }
    }
}

/// Reads all data of a disk and reports the blocks that fail, of 4 KiB or the disk's larger block size; lists
/// at most `ranges_max` ranges. A failed query of the allocation map is returned as an error.
pub async fn unreadable(
    disk: Arc<dyn BlockDevice>,
    ranges_max: usize,
    stop: &AtomicBool,
    watched: Watched,
) -> Result<Unreadable, Fault> {
    let unit_bytes = unit_bytes([&*disk]);
    let mut walk = Walk::over(disk.clone(), 0, unit_bytes);
    let (buffers, mut found) = (Buffers::default(), Unreadable::default());
    let begin = |piece| failures(disk.clone(), buffers.clone(), piece, unit_bytes, watched.clone());
    while let Some(failures) = walk.next(stop, begin).await? {
        for (range, error) in failures {
            found.add(range, error, ranges_max);
        }
    }
    found.is_stopped = walk.is_stopped;
    Ok(found)
}

/// Returns the unreadable blocks of a piece.
async fn failures(
    disk: Arc<dyn BlockDevice>,
    buffers: Buffers,
    piece: Piece,
    unit_bytes: u64,
    watched: Watched,
) -> Result<Vec<(Range, Error)>, Fault> {
    let Piece { range, is_zero } = piece;
    if is_zero {
        watched.zeroes(range.len_bytes);
        return Ok(Vec::new());
    }
    let (buffer, mut failed) = (buffers.take(), Vec::new());
    if read(&*disk, range, &buffer, Step::Read).await.is_err() {
        let mut offset = range.offset;
        while offset < range.end() {
            let block = Range { offset, len_bytes: unit_bytes.min(range.end() - offset) };
            if let Err(fault) = read(&*disk, block, &buffer, Step::Read).await {
                failed.push((block, fault.error));
            }
            offset = block.end();
        }
    }
    buffers.give(buffer);
    watched.data(range.len_bytes);
    Ok(failed)
}
