use crate::error::OutOfBounds;
use crate::region::Region;
use crate::vector::{Vector, memory};

/// Memory that an answer is written into: a guest's pages, a reader's buffer.
///
/// Keeps its regions alive, so it stays valid on every thread; a clone refers to the same memory. Others may
/// change the bytes during a write, which affects nothing but the contents. No method panics.
#[derive(Clone, Default)]
pub struct Sink(pub(crate) Vector);

impl Sink {
    /// Appends `len` bytes of the region from `offset`. Fails if they are not inside the region, if the
    /// region is read-only, or if the total would exceed `isize::MAX` bytes.
    pub fn push(&mut self, region: &Region, offset: usize, len: usize) -> Result<(), OutOfBounds> {
        region.writable(offset, len)?;
        self.0.push(region, offset, len)
    }

    /// Writes `bytes` at offset `at`. Returns the number of bytes written, less than `bytes.len()` at the
    /// sink's end.
    #[inline]
    pub fn write_at(&self, at: usize, bytes: &[u8]) -> usize {
        self.0.write_at(at, bytes)
    }

    /// Writes `len` zeroes at offset `at`. Returns the number of zeroes written, less than `len` at the
    /// sink's end.
    pub fn zero(&self, at: usize, len: usize) -> usize {
        self.0.zero(at, len)
    }
}

/// The whole region; empty for a read-only one.
impl From<&Region> for Sink {
    fn from(region: &Region) -> Sink {
        let mut sink = Sink::new();
        // `push` refuses a read-only region. It accepts any other: a whole region is inside itself and no
        // longer than an allocation can be.
        let _ = sink.push(region, 0, region.len());
        sink
    }
}

memory!(Sink);
