use crate::region::Region;
use crate::sink::Sink;
use crate::source::Source;
use std::ops::Range;

/// A private allocation that is lent to I/O as [`Sink`] or [`Source`], and used again afterwards.
///
/// While a sink or a source of it is held the bytes cannot be borrowed: [`as_slice`](Self::as_slice) and
/// [`as_mut_slice`](Self::as_mut_slice) say `None`.
#[derive(Debug)]
pub struct Buffer(Region);

impl Buffer {
    /// `len` zeroed bytes on a page boundary.
    pub fn new(len: usize) -> Buffer {
        Buffer(Region::heap(len))
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The part of `range` that lies inside the buffer, to be written into.
    pub fn sink(&self, range: Range<usize>) -> Sink {
        let mut sink = Sink::new();
        let (offset, len) = self.clip(range);
        // Clipped to the buffer, so it fits.
        let _ = sink.push(&self.0, offset, len);
        sink
    }

    /// The part of `range` that lies inside the buffer, to be read from.
    pub fn source(&self, range: Range<usize>) -> Source {
        let mut source = Source::new();
        let (offset, len) = self.clip(range);
        // Clipped to the buffer, so it fits.
        let _ = source.push(&self.0, offset, len);
        source
    }

    /// The bytes, if no sink or source of this buffer is left. Needs `&mut self` so that none can be made
    /// meanwhile.
    pub fn as_slice(&mut self) -> Option<&[u8]> {
        self.0.exclusive().map(|bytes| &*bytes)
    }

    /// The bytes, to change, if no sink or source of this buffer is left.
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
    fn a_lent_buffer_is_a_slice_again_only_when_everything_lent_is_gone() {
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
