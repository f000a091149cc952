use crate::error::OutOfBounds;
use crate::region::Region;
use crate::sink::Sink;
use crate::vector::{Segment, Vector};
use std::fmt;

/// Memory that is read from: a request, or the data of a write.
///
/// References its regions, so it stays valid wherever it is sent; a clone refers to the same memory. Others
/// may change the bytes while we read, so two reads may differ: copy once, then check. No method panics.
#[derive(Clone, Default)]
pub struct Source(pub(crate) Vector);

impl Source {
    /// Returns a source without bytes; [`push`](Self::push) adds some.
    pub fn new() -> Source {
        Source::default()
    }

    /// Returns the length, in bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns `true` if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.len() == 0
    }

    /// Appends `len` bytes of the region from `offset`. Fails if they are not inside the region, or if the
    /// total would exceed `isize::MAX` bytes.
    pub fn push(&mut self, region: &Region, offset: usize, len: usize) -> Result<(), OutOfBounds> {
        self.0.push(region, offset, len)
    }

    /// Appends the other source's bytes, cut where the total would exceed `isize::MAX` bytes.
    pub fn append(&mut self, other: Source) {
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
    pub fn split_off(&mut self, at: usize) -> Source {
        Source(self.0.split_off(at))
    }

    /// Copies bytes from offset `at` into `out`. Returns the number of bytes copied, less than `out.len()`
    /// at the source's end.
    #[inline]
    pub fn read_at(&self, at: usize, out: &mut [u8]) -> usize {
        self.0.read_at(at, out)
    }

    /// Copies the first `limit` bytes, or all if there are fewer, to private memory.
    pub fn to_vec(&self, limit: usize) -> Vec<u8> {
        let mut bytes = vec![0; self.len().min(limit)];
        let n = self.read_at(0, &mut bytes);
        bytes.truncate(n);
        bytes
    }

    /// Copies from the beginning of the source to the beginning of the sink, up to the length of the shorter
    /// one. Returns the number of bytes copied.
    pub fn copy_to_sink(&self, sink: &Sink) -> usize {
        self.0.copy_to(&sink.0)
    }

    /// Returns the region, if all bytes ever added are in a single one, and the offset and length of each
    /// part in it, in order. Used by callers that can pass another process references to the region instead
    /// of copying.
    pub fn within(&self) -> Option<(&Region, impl ExactSizeIterator<Item = (usize, usize)> + Clone + '_)> {
        self.0.within()
    }

    /// Returns the spans, for a system call that reads them. Valid as long as this source (or a clone) lives.
    pub fn segments(&self) -> impl ExactSizeIterator<Item = Segment> + Clone + '_ {
        self.0.segments()
    }

    /// Returns `true` if some of the memory lost its file: see [`Region::is_poisoned`].
    pub fn is_poisoned(&self) -> bool {
        self.0.is_poisoned()
    }
}

/// Takes ownership of the bytes without copying them.
impl From<Vec<u8>> for Source {
    fn from(bytes: Vec<u8>) -> Source {
        Source::from(&Region::from(bytes))
    }
}

/// The whole region.
impl From<&Region> for Source {
    fn from(region: &Region) -> Source {
        let mut source = Source::new();
        // A whole region is inside itself and no longer than an allocation can be.
        let _ = source.push(region, 0, region.len());
        source
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Source({} bytes in {} segments)", self.len(), self.segments().len())
    }
}
