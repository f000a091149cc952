//! Comparison of two disks.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tombolo_core::block::{BlockDevice, Range};

use super::fault::{Fault, Step};
use super::pieces::{Piece, Pieces};
use super::tally::Watched;
use super::transfer::{Buffers, bytes_of, read};
use super::walk::{Walk, unit_bytes};
use crate::zeroes::are_zero;

/// The disks that are compared, and the shared state of the comparison.
struct Pair {
    one: Arc<dyn BlockDevice>,
    other: Arc<dyn BlockDevice>,
    unit_bytes: u64,
    buffers: Buffers,
    watched: Watched,
}

/// Compares all of `one` with the beginning of `other`: returns the offset of the first byte that differs, if
/// any. Ends early, as if at the end, when `stop` is set.
pub async fn compare(
    one: Arc<dyn BlockDevice>,
    other: Arc<dyn BlockDevice>,
    stop: &AtomicBool,
    watched: Watched,
) -> Result<Option<u64>, Fault> {
    let unit_bytes = unit_bytes([&*one, &*other]);
    let mut walk = Walk::over(one.clone(), 0, unit_bytes);
    let pair = Arc::new(Pair { one, other, unit_bytes, buffers: Buffers::default(), watched });
    while let Some(found) = walk.next(stop, |piece| pair.clone().piece(piece)).await? {
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

impl Pair {
    async fn piece(self: Arc<Self>, piece: Piece) -> Result<Option<u64>, Fault> {
        let Piece { range, is_zero } = piece;
        let differs = if is_zero { self.is_not_zero(range).await? } else { self.differs(range).await? };
        if is_zero {
            self.watched.zeroes(range.len_bytes);
        } else {
            self.watched.data(range.len_bytes);
        }
        Ok(differs)
    }

    async fn differs(&self, range: Range) -> Result<Option<u64>, Fault> {
        let (mut one, mut other) = (self.buffers.take(), self.buffers.take());
        read(&*self.one, range, &one, Step::Read).await?;
        read(&*self.other, range, &other, Step::ReadCopy).await?;
        let fault = |step| Fault::at(step, range.offset);
        let found = {
            let left = bytes_of(&mut one, range.len_bytes).map_err(fault(Step::Read))?;
            let right = bytes_of(&mut other, range.len_bytes).map_err(fault(Step::ReadCopy))?;
            (left != right).then(|| left.iter().zip(right).take_while(|(a, b)| a == b).count() as u64)
        };
        self.buffers.give(one);
        self.buffers.give(other);
        Ok(found.map(|at| range.offset + at))
    }

    /// Returns the offset of the first non-zero byte that `other` has in the range; `None` if all are zero.
    async fn is_not_zero(&self, range: Range) -> Result<Option<u64>, Fault> {
        let mut pieces = Pieces::of(self.other.clone(), range, self.unit_bytes);
        while let Some(piece) = pieces.next().await {
            let Piece { range, is_zero } = piece?;
            if is_zero {
                continue;
            }
            let mut buffer = self.buffers.take();
            read(&*self.other, range, &buffer, Step::ReadCopy).await?;
            let bytes = bytes_of(&mut buffer, range.len_bytes);
            let bytes = bytes.map_err(Fault::at(Step::ReadCopy, range.offset))?;
            if !are_zero(bytes) {
                let at = bytes.iter().take_while(|byte| **byte == 0).count() as u64;
                return Ok(Some(range.offset + at));
            }
            self.buffers.give(buffer);
        }
        Ok(None)
    }
}
