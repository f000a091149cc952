//! Scatter-gather lists for sending on sockets without copies.

use std::marker::PhantomData;

use smallvec::SmallVec;
use tombolo_mem::{Segment, Source};

/// Maximum number of spans per call (`IOV_MAX`).
pub(crate) const SPANS_MAX: usize = 1024;

/// Number of spans stored without an allocation.
const SPANS_INLINE: usize = 64;

/// A list of borrowed spans to send.
///
/// Accepts up to 1,024 spans and ignores further ones; [`len_bytes`](Self::len_bytes) returns the accepted
/// length.
#[derive(Default)]
pub struct Gather<'a> {
    pub(crate) spans: SmallVec<[libc::iovec; SPANS_INLINE]>,
    /// Number of bytes still to be omitted from those that are added.
    skip: usize,
    len_bytes: usize,
    borrowed: PhantomData<&'a [u8]>,
}

impl<'a> Gather<'a> {
    /// Returns an empty list that omits the first `skip` of the bytes added to it.
    pub fn new(skip: usize) -> Self {
        Self { skip, ..Self::default() }
    }

    /// Adds bytes that no other process can change.
    pub fn bytes(&mut self, bytes: &'a [u8]) {
        // The kernel only reads sent data; the pointer is mutable because iovec is used in both directions.
        self.push(bytes.as_ptr().cast_mut(), bytes.len());
    }

    /// Adds bytes that others may change concurrently: the bytes sent are then a mix of old and new ones.
    pub fn source(&mut self, source: &'a Source) {
        for segment in source.segments() {
            self.push(segment.ptr, segment.len);
        }
    }

    /// Returns the number of accepted bytes, without those that are skipped.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Copies the first `limit` bytes of the list, or all if there are fewer, for a caller that transforms
    /// them, as TLS does.
    pub fn to_vec(&self, limit: usize) -> Vec<u8> {
        let mut copy = vec![0; self.len_bytes.min(limit)];
        let mut rest = copy.as_mut_slice();
        for span in &self.spans {
            let segment = Segment { ptr: span.iov_base.cast(), len: span.iov_len };
            // SAFETY: the list borrows the contents of its spans.
            let len = unsafe { segment.read(rest) };
            rest = rest.split_at_mut(len).1;
        }
        copy
    }

    /// Returns `true` if the byte at `offset` of the list is the first of a span, perhaps of a message. TLS
    /// ends no chunk with such a byte, because a message can be withdrawn until its first byte is sent.
    pub fn begins_at(&self, offset: usize) -> bool {
        let mut start = 0;
        for span in &self.spans {
            if start >= offset {
                break;
            }
            start += span.iov_len;
        }
        start == offset && offset < self.len_bytes
    }

    /// Returns `true` if the list has 1,024 spans and ignores further ones.
    pub fn is_full(&self) -> bool {
        self.spans.len() >= SPANS_MAX
    }

    fn push(&mut self, start: *mut u8, len: usize) {
        let skipped = self.skip.min(len);
        self.skip -= skipped;
        if skipped == len || self.is_full() {
            return;
        }
        let len = len - skipped;
        self.spans.push(libc::iovec { iov_base: start.wrapping_add(skipped).cast(), iov_len: len });
        self.len_bytes += len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_sent_before_are_left_out() {
        let source = Source::from(b"defg".to_vec());
        for (skip, left) in [(0, 7), (2, 5), (3, 4), (4, 3), (7, 0), (9, 0)] {
            let mut gather = Gather::new(skip);
            gather.bytes(b"abc");
            gather.source(&source);
            assert_eq!(gather.len_bytes(), left);
            assert_eq!(gather.spans.iter().map(|span| span.iov_len).sum::<usize>(), left);
            assert_eq!(gather.to_vec(usize::MAX), &b"abcdefg"[7 - left..]);
            assert_eq!(gather.to_vec(2), &b"abcdefg"[7 - left..][..left.min(2)]);
            let begins: Vec<usize> = (skip..9).filter(|at| gather.begins_at(at - skip)).collect();
            let second = (skip < 3).then_some(3);
            let wanted: Vec<usize> = (skip < 7).then_some(skip).into_iter().chain(second).collect();
            assert_eq!(begins, wanted);
        }
    }

    #[test]
    fn a_full_list_takes_no_more() {
        let mut gather = Gather::new(0);
        (0..2000).for_each(|_| gather.bytes(b"x"));
        assert!(gather.is_full());
        assert_eq!(gather.len_bytes(), SPANS_MAX);
    }
}
