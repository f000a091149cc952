use crate::error::OutOfBounds;
use crate::region::Region;
use crate::sink::Sink;
use crate::vector::{Vector, memory};

/// Memory that is read from: a request, or the data of a write.
///
/// Keeps its regions alive, so it stays valid on every thread; a clone refers to the same memory. Others may
/// change the bytes at any time, so two reads may differ: copy once, then check. No method panics.
#[derive(Clone, Default)]
pub struct Source(pub(crate) Vector);

impl Source {
    /// Appends `len` bytes of the region from `offset`. Fails if they are not inside the region, or if the
    /// total would exceed `isize::MAX` bytes.
    pub fn push(&mut self, region: &Region, offset: usize, len: usize) -> Result<(), OutOfBounds> {
        self.0.push(region, offset, len)
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

    /// Returns the region, and the offset and length of each part in it, in order; `None` unless all bytes
    /// ever added are in one region. For callers that can pass another process references to the region
    /// instead of copies.
    pub fn within(&self) -> Option<(&Region, impl ExactSizeIterator<Item = (usize, usize)> + Clone + '_)> {
        self.0.within()
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

memory!(Source);
