use crate::error::OutOfBounds;
use crate::region::Region;
use crate::vector::{Segment, Vector};
use std::fmt;

/// Memory that an answer is written into: a guest's pages, a reader's buffer.
///
/// References its regions, so it stays valid wherever it is sent; a clone refers to the same memory. Others
/// may change the bytes while we write: they see our data sooner or later, and cannot harm us. No method
/// panics.
#[derive(Clone, Default)]
pub struct Sink(pub(crate) Vector);

impl Sink {
    /// Returns a sink without memory; [`push`](Self::push) adds some.
    pub fn new() -> Sink {
        Sink::default()
    }

    /// Returns the length, in bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns `true` if there is no memory.
    pub fn is_empty(&self) -> bool {
        self.0.len() == 0
    }

    /// Appends `len` bytes of the region from `offset`. Fails if they are not inside the region, if the
    /// region is read-only, or if the total would exceed `isize::MAX` bytes.
    pub fn push(&mut self, region: &Region, offset: usize, len: usize) -> Result<(), OutOfBounds> {
        region.writable(offset, len)?;
        self.0.push(region, offset, len)
    }

    /// Appends the other sink's memory, cut where the total would exceed `isize::MAX` bytes.
    pub fn append(&mut self, other: Sink) {
        self.0.append(other.0);
    }

    /// Keeps the first `n` bytes, or all if there are fewer.
    pub fn truncate(&mut self, n: usize) {
        self.0.truncate(n);
    }

    /// Drops the first `n` bytes, or all if there are fewer.
    pub fn advance(&mut self, n: usize) {
        self.0.advance(n);
    }

    /// Keeps the bytes before `at` and returns the following ones, if any.
    pub fn split_off(&mut self, at: usize) -> Sink {
        Sink(self.0.split_off(at))
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

    /// Returns the spans, for a system call that writes to them. Valid as long as this sink (or a clone)
    /// lives.
    pub fn segments(&self) -> impl ExactSizeIterator<Item = Segment> + Clone + '_ {
        self.0.segments()
    }

    /// Returns `true` if some of the memory lost its file: see [`Region::is_poisoned`].
    pub fn is_poisoned(&self) -> bool {
        self.0.is_poisoned()
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

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sink({} bytes in {} segments)", self.len(), self.segments().len())
    }
}
