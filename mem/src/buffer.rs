use crate::region::Region;
use crate::sink::Sink;
use crate::source::Source;
use std::ops::Range;

/// A private allocation that I/O uses as [`Sink`] or [`Source`], and that is reused afterwards.
///
/// While a sink or a source of it exists the bytes cannot be borrowed: [`as_slice`](Self::as_slice) and
/// [`as_mut_slice`](Self::as_mut_slice) return `None`.
#[derive(Debug)]
pub struct Buffer(Region);

impl Buffer {
    /// Allocates `len` zeroed, page-aligned bytes.
    pub fn new(len: usize) -> Buffer {
        Buffer(Region::heap(len))
    }

    /// Returns the length, in bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns `true` if the buffer has no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns a sink of the part of `range` inside the buffer.
    pub fn sink(&self, range: Range<usize>) -> Sink {
        let mut sink = Sink::new();
        let (offset, len) = self.clip(range);
        // The range is clipped to the buffer, so `push` cannot fail.
        let _ = sink.push(&self.0, offset, len);
        sink
    }

    /// Returns a source of the part of `range` inside the buffer.
    pub fn source(&self, range: Range<usize>) -> Source {
        let mut source = Source::new();
        let (offset, len) = self.clip(range);
        // The range is clipped to the buffer, so `push` cannot fail.
        let _ = source.push(&self.0, offset, len);
        source
    }

    /// Returns the bytes, if no sink or source of this buffer exists. Takes `&mut self` so that none can be
    /// created while the slice is in use.
    pub fn as_slice(&mut self) -> Option<&[u8]> {
        self.0.exclusive().map(|bytes| &*bytes)
    }

    /// Returns the bytes for modification, if no sink or source of this buffer exists.
    pub fn as_mut_slice(&mut self) -> Option<&mut [u8]> {
        self.0.exclusive()
    }

    fn clip(&self, range: Range<usize>) -> (usize, usize) {
        let end = range.end.min(self.len());
        let start = range.start.min(end);
        (start, end - start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffer_is_borrowable_only_without_sinks_and_sources() {
        let mut buffer = Buffer::new(100);
        let sink = buffer.sink(10..20);
        let copy = sink.clone();
        assert_eq!(sink.write_at(0, b"hello"), 5);
        assert!(buffer.as_slice().is_none());
        drop(sink);
        assert!(buffer.as_mut_slice().is_none(), "a clone still names the memory");
        drop(copy);
        assert_eq!(&buffer.as_slice().unwrap()[8..16], b"\0\0hello\0");
    }

    #[test]
    fn ranges_are_clipped_to_the_buffer() {
        let buffer = Buffer::new(10);
        assert_eq!(buffer.sink(5..50).len(), 5);
        assert_eq!(buffer.source(20..30).len(), 0);
        #[expect(clippy::reversed_empty_ranges)]
        let backwards = buffer.source(8..3);
        assert_eq!(backwards.len(), 0);
        assert_eq!(Buffer::new(0).sink(0..1).write_at(0, b"x"), 0);
    }
}
