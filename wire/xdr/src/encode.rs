//! Encoding of XDR values to a vector.

use crate::padding;

/// A type that can be encoded as XDR.
pub trait Encode {
    /// Appends the value with its padding.
    fn encode(&self, xdr: &mut Encoder<'_>);
}

/// Returns a value's encoding.
#[must_use]
pub fn encoded(value: &impl Encode) -> Vec<u8> {
    let mut bytes = Vec::new();
    value.encode(&mut Encoder::new(&mut bytes));
    bytes
}

/// An encoder that appends to a vector.
///
/// Existing contents are retained; positions are relative to where the encoder began.
#[derive(Debug)]
pub struct Encoder<'b> {
    out: &'b mut Vec<u8>,
    start: usize,
}

impl<'b> Encoder<'b> {
    /// Returns an encoder that appends to `out`.
    #[inline]
    pub const fn new(out: &'b mut Vec<u8>) -> Self {
        let start = out.len();
        Self { out, start }
    }

    /// Returns the number of bytes appended.
    #[inline]
    #[must_use]
    pub const fn position(&self) -> usize {
        self.out.len() - self.start
    }

    /// Returns the bytes appended.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.out.get(self.start..).unwrap_or_default()
    }

    /// Reserves capacity for `bytes` more.
    #[inline]
    pub fn reserve(&mut self, bytes: usize) {
        self.out.reserve(bytes);
    }

    /// Removes everything behind `position`, for a caller that withdraws a partial result.
    pub fn truncate(&mut self, position: usize) {
        self.out.truncate(self.start.saturating_add(position));
    }

    /// Overwrites the four bytes at `position`, such as a count that was unknown before. No effect unless
    /// these bytes have been written.
    pub fn patch_u32(&mut self, position: usize, value: u32) {
        let place = self.out.get_mut(self.start..).and_then(|bytes| bytes.get_mut(position..));
        if let Some(place) = place.and_then(|bytes| bytes.first_chunk_mut()) {
            *place = value.to_be_bytes();
        }
    }

    /// Appends any value. Returns the encoder, for chaining.
    #[inline]
    pub fn value<T: Encode + ?Sized>(&mut self, value: &T) -> &mut Self {
        value.encode(self);
        self
    }

    /// Appends an unsigned integer (RFC 4506 §4.2).
    #[inline]
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.raw(&value.to_be_bytes())
    }

    /// Appends an unsigned hyper integer (§4.5).
    #[inline]
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.raw(&value.to_be_bytes())
    }

    /// Appends a boolean (§4.4).
    #[inline]
    pub fn bool(&mut self, value: bool) -> &mut Self {
        self.u32(u32::from(value))
    }

    /// Appends fixed-length opaque data with its padding (§4.9).
    #[inline]
    pub fn fixed(&mut self, bytes: &[u8]) -> &mut Self {
        self.raw(bytes).pad(bytes.len())
    }

    /// Appends variable-length opaque data or a string: length, bytes, padding (§4.10, §4.11).
    ///
    /// Bytes beyond the maximum length of XDR, 2³²−1, are dropped.
    #[inline]
    pub fn opaque(&mut self, bytes: &[u8]) -> &mut Self {
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let bytes = bytes.get(..len as usize).unwrap_or(bytes);
        self.u32(len).fixed(bytes)
    }

    /// Appends the padding that follows `len` bytes of opaque data.
    #[inline]
    pub fn pad(&mut self, len: usize) -> &mut Self {
        self.raw([0; 3].get(..padding(len)).unwrap_or_default())
    }

    /// Appends bytes that are XDR-encoded already.
    #[inline]
    pub fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.out.extend_from_slice(bytes);
        self
    }
}

impl Encode for () {
    #[inline]
    fn encode(&self, _: &mut Encoder<'_>) {}
}

macro_rules! plain {
    ($($type:ident)+) => {$(
        impl Encode for $type {
            #[inline]
            fn encode(&self, xdr: &mut Encoder<'_>) {
                xdr.raw(&self.to_be_bytes());
            }
        }
    )+};
}
plain!(u32 i32 u64);

impl Encode for bool {
    #[inline]
    fn encode(&self, xdr: &mut Encoder<'_>) {
        xdr.bool(*self);
    }
}

/// Fixed-length opaque data.
impl<const N: usize> Encode for [u8; N] {
    #[inline]
    fn encode(&self, xdr: &mut Encoder<'_>) {
        xdr.fixed(self);
    }
}

/// Variable-length opaque data or a string.
impl Encode for &[u8] {
    #[inline]
    fn encode(&self, xdr: &mut Encoder<'_>) {
        xdr.opaque(self);
    }
}

/// Optional data (RFC 4506 §4.19), and any union on a boolean whose FALSE arm is void.
impl<T: Encode> Encode for Option<T> {
    #[inline]
    fn encode(&self, xdr: &mut Encoder<'_>) {
        xdr.bool(self.is_some());
        if let Some(value) = self {
            value.encode(xdr);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_opaque_is_padded_with_zeros() {
        let mut bytes = vec![0xaa];
        let mut xdr = Encoder::new(&mut bytes);
        xdr.opaque(b"abcde").bool(true).fixed(b"xy");
        assert_eq!(xdr.position(), 20);
        assert_eq!(xdr.bytes(), b"\0\0\0\x05abcde\0\0\0\0\0\0\x01xy\0\0");
        assert_eq!(bytes.first(), Some(&0xaa));
    }

    #[test]
    fn encoder_patches_counts_and_truncates_tails() {
        let mut bytes = vec![7; 3];
        let mut xdr = Encoder::new(&mut bytes);
        xdr.u32(0).u64(5);
        xdr.patch_u32(0, 2);
        xdr.patch_u32(9, 0xffff_ffff);
        xdr.truncate(8);
        xdr.truncate(100);
        assert_eq!(bytes, [7, 7, 7, 0, 0, 0, 2, 0, 0, 0, 0]);
    }
}
