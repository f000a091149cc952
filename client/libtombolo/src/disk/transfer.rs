//! Transfer of one piece: reading, zero detection, writing.

use std::sync::{Arc, Mutex};

use tombolo_core::block::{BlockDevice, Range, Zeroing};
use tombolo_core::{Error, Result as CoreResult, Stability, lock};
use tombolo_mem::Buffer;

use super::fault::{Fault, Step};
use super::pieces::{PIECE_BYTES, cx};

/// Minimum length and alignment of zeroes that are skipped or become a hole, in bytes.
pub(super) const ZERO_UNIT_BYTES: usize = 4 << 10;

/// Buffers of completed pieces, for reuse.
#[derive(Clone, Debug, Default)]
pub(super) struct Buffers(Arc<Mutex<Vec<Buffer>>>);

impl Buffers {
    pub fn take(&self) -> Buffer {
        let kept = lock(&self.0).pop();
        kept.unwrap_or_else(|| Buffer::new(PIECE_BYTES as usize))
    }

    pub fn give(&self, buffer: Buffer) {
        lock(&self.0).push(buffer);
    }
}

/// Fills the beginning of `buffer` from the disk.
pub(super) async fn read(
    disk: &dyn BlockDevice,
    range: Range,
    buffer: &Buffer,
    step: Step,
) -> Result<(), Fault> {
    let answer = disk.read(&cx(), range.offset, buffer.sink(0..range.len_bytes as usize));
    disk.submit();
    answer.resolve().await.map_err(Fault::at(step, range.offset))
}

/// Returns the first `len` bytes of a buffer that was read into.
pub(super) fn bytes_of(buffer: &mut Buffer, len: u64) -> CoreResult<&[u8]> {
    let bytes = buffer.as_slice().and_then(|bytes| bytes.get(..len as usize));
    bytes.ok_or_else(|| Error::io("the disk still uses the buffer of a completed read"))
}

/// Writes a part of `buffer` to the disk; the buffer's start corresponds to offset `base`.
pub(super) async fn write(
    disk: &dyn BlockDevice,
    base: u64,
    part: std::ops::Range<usize>,
    buffer: &Buffer,
) -> Result<(), Fault> {
    let offset = base + part.start as u64;
    let answer = disk.write(&cx(), offset, Stability::Unstable, buffer.source(part));
    disk.submit();
    answer.resolve().await.map_err(Fault::at(Step::Write, offset))
}

pub(super) async fn zero(disk: &dyn BlockDevice, range: Range) -> Result<(), Fault> {
    let how = Zeroing { may_unmap: true, ..Zeroing::default() };
    let answer = disk.write_zeroes(&cx(), range, how);
    disk.submit();
    answer.resolve().await.map_err(Fault::at(Step::Zero, range.offset))
}
