use crate::error::OutOfBounds;
use crate::region::Region;
use crate::vector::{Segment, Vector};
use std::fmt;

/// Memory that an answer is written into: a guest's pages, a reader's buffer.
///
/// Holds its regions, so it stays valid wherever it is sent; a clone names the same memory. Others may change
/// the bytes while we write: what is written is seen by them sooner or later, and never harms us. No method
/// panics.
#[derive(Clone, Default)]
pub struct Sink(pub(crate) Vector);

impl Sink {
    /// A sink without any memory; [`push`](Self::push) adds some.
    pub fn new() -> Sink {
        Sink::default()
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no room at all.
    pub fn is_empty(&self) -> bool {
        self.0.len() == 0
    }

    /// Adds `len` bytes of the region from `offset` at the end. Fails if they do not lie inside the region,
    /// if the region is read-only, or if the whole would pass `isize::MAX` bytes.
    pub fn push(&mut self, region: &Region, offset: usize, len: usize) -> Result<(), OutOfBounds> {
        region.writable(offset, len)?;
        self.0.push(region, offset, len)
    }

    /// Adds the other sink's memory at the end, cut where the whole would pass `isize::MAX` bytes.
    pub fn append(&mut self, other: Sink) {
        self.0.append(other.0);
    }

    /// Keeps the first `n` bytes. Longer than it is: no effect.
    pub fn truncate(&mut self, n: usize) {
        self.0.truncate(n);
    }

    /// Drops the first `n` bytes, or all if there are fewer.
    pub fn advance(&mut self, n: usize) {
        self.0.advance(n);
    }

    /// Keeps the bytes before `at` and hands out the rest, which is empty if there are fewer.
    pub fn split_off(&mut self, at: usize) -> Sink {
        Sink(self.0.split_off(at))
    }

    /// Writes `bytes` at offset `at`; says how many fitted.
    #[inline]
    pub fn write_at(&self, at: usize, bytes: &[u8]) -> usize {
        self.0.write_at(at, bytes)
    }

    /// Writes `len` zeroes at offset `at`; says how many fitted.
    pub fn zero(&self, at: usize, len: usize) -> usize {
        self.0.zero(at, len)
    }

    /// The spans, for a system call that writes into them. They are valid as long as this sink (or a clone)
    /// lives.
    pub fn segments(&self) -> impl ExactSizeIterator<Item = Segment> + Clone + '_ {
        self.0.segments()
    }

    /// Whether some of the memory lost its file: see [`Region::is_poisoned`].
    pub fn is_poisoned(&self) -> bool {
        self.0.is_poisoned()
    }
}

/// All of the region; nothing of a read-only one.
impl From<&Region> for Sink {
    fn from(region: &Region) -> Sink {
        let mut sink = Sink::new();
        // Refused if the region is read-only; otherwise it lies inside itself and is no longer than an
        // allocation can be.
        let _ = sink.push(region, 0, region.len());
        sink
    }
}

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sink({} bytes in {} segments)", self.len(), self.segments().len())
    }
}
