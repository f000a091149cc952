//! A disk under test, with short forms of requests.

use std::sync::Arc;

use tombolo_core::block::{Allocation, BlockDevice, Extent, Range, Zeroing};
use tombolo_core::{Answer, Ctx, Error, Result, SessionId, Stability};
use tombolo_mem::{Buffer, Source};

/// A disk and the context of all requests. Every method waits for its answer.
pub struct Bench {
    /// The disk.
    pub disk: Arc<dyn BlockDevice>,
    /// The context.
    pub cx: Ctx,
}

pub(super) fn range(offset: u64, len_bytes: u64) -> Range {
    Range { offset, len_bytes }
}

/// Returns bytes without zeroes that differ between sectors and between values of `salt`.
pub(super) fn pattern(salt: u64, len_bytes: u64) -> Vec<u8> {
    let cycle: Vec<u8> = (0..251 + 512).map(|at| (at % 251) as u8 + 1).collect();
    let mut bytes = vec![0; len_bytes as usize];
    for (sector, piece) in (0..).zip(bytes.chunks_mut(512)) {
        let start = (salt.wrapping_mul(31).wrapping_add(sector * 7) % 251) as usize;
        piece.copy_from_slice(&cycle[start..start + piece.len()]);
    }
    bytes
}

pub(super) fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(4096).all(|piece| *piece == [0; 4096][..piece.len()])
}

impl Bench {
    /// Creates a bench for `disk`.
    pub fn new(disk: Arc<dyn BlockDevice>) -> Self {
        Self { disk, cx: Ctx::root(SessionId(1)) }
    }

    /// Submits a request and waits for its answer.
    pub fn answered<T>(&self, request: Answer<T>) -> Result<T> {
        self.disk.submit();
        request.wait()
    }

    /// Reads `len_bytes` bytes.
    pub fn read(&self, offset: u64, len_bytes: u64) -> Result<Vec<u8>> {
        let mut buffer = Buffer::new(len_bytes as usize);
        self.answered(self.disk.read(&self.cx, offset, buffer.sink(0..buffer.len())))?;
        Ok(buffer.as_slice().expect("nothing holds an answered read's memory").to_vec())
    }

    /// Writes bytes without making them stable.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.write_stable(offset, bytes, Stability::Unstable)
    }

    /// Writes bytes with this stability.
    pub fn write_stable(&self, offset: u64, bytes: &[u8], stability: Stability) -> Result<()> {
        self.answered(self.disk.write(&self.cx, offset, stability, Source::from(bytes.to_vec())))
    }

    /// Flushes the disk.
    pub fn flush(&self) -> Result<()> {
        self.answered(self.disk.flush(&self.cx))
    }

    /// Discards a range.
    pub fn discard(&self, range: Range) -> Result<()> {
        self.answered(self.disk.discard(&self.cx, range))
    }

    /// Writes zeroes.
    pub fn write_zeroes(&self, range: Range, how: Zeroing) -> Result<()> {
        self.answered(self.disk.write_zeroes(&self.cx, range, how))
    }

    /// Queries at most `count_max` extents.
    pub fn extents(&self, range: Range, count_max: usize) -> Result<Vec<Extent>> {
        let extents = self.answered(self.disk.extents(&self.cx, range, count_max))?;
        Ok(extents.as_slice().to_vec())
    }

    /// Changes the size.
    pub fn set_size(&self, size_bytes: u64) -> Result<()> {
        self.answered(self.disk.resize().expect("it can be resized").set_size(&self.cx, size_bytes))
    }

    /// Returns the range's extents.
    ///
    /// # Panics
    /// If they do not cover the range exactly, equal neighbours are not merged, or an extent reported as zero
    /// is not.
    pub fn check_extents(&self, of: Range) -> Vec<Extent> {
        let extents = self.extents(of, usize::MAX).expect("extents");
        assert_eq!(extents.iter().map(|extent| extent.len_bytes).sum::<u64>(), of.len_bytes, "{extents:?}");
        assert!(extents.iter().all(|extent| extent.len_bytes > 0), "{extents:?}");
        assert!(extents.windows(2).all(|two| two[0].allocation != two[1].allocation), "{extents:?}");
        let mut at = of.offset;
        for extent in &extents {
            let reads_zero = is_zero(&self.read(at, extent.len_bytes).expect("read"));
            assert!(reads_zero || extent.allocation == Allocation::Data, "data at {at}: {extent:?}");
            at += extent.len_bytes;
        }
        extents
    }
}

/// Asserts that the request was refused as invalid.
pub(super) fn refused<T: std::fmt::Debug>(result: &Result<T>, what: &str) {
    assert!(matches!(result, Err(Error::InvalidArgument)), "{what}: {result:?}");
}
