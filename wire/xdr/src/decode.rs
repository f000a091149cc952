//! Decoding of XDR values from a message.

use crate::{Error, Result, padded};

/// A type that can be decoded from XDR. Values that are slices borrow from the message.
pub trait Decode<'a>: Sized {
    /// Decodes one value and advances behind it. After an error the decoder's position is unspecified.
    ///
    /// # Errors
    /// The bytes are not a valid value.
    fn decode(xdr: &mut Decoder<'a>) -> Result<Self>;
}

/// A cursor over a message.
///
/// Padding must be present, and its contents are ignored: RFC 4506 §3 requires zeroes of senders and nothing
/// of receivers.
#[derive(Clone, Debug)]
pub struct Decoder<'a> {
    rest: &'a [u8],
    all_bytes: usize,
}

impl<'a> Decoder<'a> {
    /// Returns a decoder of `bytes`, which must be private memory.
    #[inline]
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, all_bytes: bytes.len() }
    }

    /// Returns the number of bytes decoded.
    #[inline]
    #[must_use]
    pub const fn position(&self) -> usize {
        self.all_bytes - self.rest.len()
    }

    /// Returns the bytes not decoded yet.
    #[inline]
    #[must_use]
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Fails unless all bytes have been decoded.
    ///
    /// # Errors
    /// [`Error::Trailing`] if some are left.
    pub const fn finish(self) -> Result<()> {
        match self.rest.len() {
            0 => Ok(()),
            extra_bytes => Err(Error::Trailing { extra_bytes }),
        }
    }

    /// Decodes a value of any type.
    ///
    /// # Errors
    /// Those of the type.
    #[inline]
    pub fn value<T: Decode<'a>>(&mut self) -> Result<T> {
        T::decode(self)
    }

    /// Decodes an unsigned integer (RFC 4506 §4.2).
    ///
    /// # Errors
    /// [`Error::Short`].
    #[inline]
    pub fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_be_bytes)
    }

    /// Decodes an integer (§4.1).
    ///
    /// # Errors
    /// [`Error::Short`].
    #[inline]
    pub fn i32(&mut self) -> Result<i32> {
        self.array().map(i32::from_be_bytes)
    }

    /// Decodes an unsigned hyper integer (§4.5).
    ///
    /// # Errors
    /// [`Error::Short`].
    #[inline]
    pub fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// Decodes a boolean (§4.4): 0 or 1, nothing else.
    ///
    /// # Errors
    /// [`Error::Short`], [`Error::BadBool`].
    #[inline]
    pub fn bool(&mut self) -> Result<bool> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(Error::BadBool(other)),
        }
    }

    /// Decodes fixed-length opaque data (§4.9) whose length is a constant.
    ///
    /// # Errors
    /// [`Error::Short`].
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let bytes = self.fixed(N)?;
        bytes.first_chunk().copied().ok_or(Error::Short { missing_bytes: N })
    }

    /// Decodes fixed-length opaque data (§4.9).
    ///
    /// # Errors
    /// [`Error::Short`], even if only the padding is missing.
    #[inline]
    pub fn fixed(&mut self, len: usize) -> Result<&'a [u8]> {
        let with_padding = padded(len);
        match (self.rest.get(..len), self.rest.get(with_padding..)) {
            (Some(bytes), Some(rest)) => {
                self.rest = rest;
                Ok(bytes)
            }
            _ => Err(Error::Short { missing_bytes: with_padding.saturating_sub(self.rest.len()) }),
        }
    }

    /// Decodes variable-length opaque data or a string (§4.10, §4.11) of at most `limit` bytes.
    ///
    /// # Errors
    /// [`Error::TooLong`] beyond the limit, whether or not the bytes are present; [`Error::Short`].
    #[inline]
    pub fn opaque(&mut self, limit: usize) -> Result<&'a [u8]> {
        let len = self.length(limit)?;
        self.fixed(len)
    }

    /// Decodes the length of variable-length data or of a list, of at most `limit`.
    ///
    /// # Errors
    /// [`Error::TooLong`], [`Error::Short`].
    #[inline]
    pub fn length(&mut self, limit: usize) -> Result<usize> {
        let announced = self.u32()?;
        match usize::try_from(announced) {
            Ok(len) if len <= limit => Ok(len),
            _ => Err(Error::TooLong { announced, limit }),
        }
    }
}

impl<'a> Decode<'a> for () {
    #[inline]
    fn decode(_: &mut Decoder<'a>) -> Result<Self> {
        Ok(())
    }
}

macro_rules! plain {
    ($($type:ident)+) => {$(
        impl<'a> Decode<'a> for $type {
            #[inline]
            fn decode(xdr: &mut Decoder<'a>) -> Result<Self> {
                xdr.$type()
            }
        }
    )+};
}
plain!(u32 i32 u64 bool);

/// Fixed-length opaque data.
impl<'a, const N: usize> Decode<'a> for [u8; N] {
    #[inline]
    fn decode(xdr: &mut Decoder<'a>) -> Result<Self> {
        xdr.array()
    }
}

/// Variable-length opaque data or a string, limited by the message only.
impl<'a> Decode<'a> for &'a [u8] {
    #[inline]
    fn decode(xdr: &mut Decoder<'a>) -> Result<Self> {
        xdr.opaque(usize::MAX)
    }
}

/// Optional data (RFC 4506 §4.19), and any union on a boolean whose FALSE arm is void.
impl<'a, T: Decode<'a>> Decode<'a> for Option<T> {
    #[inline]
    fn decode(xdr: &mut Decoder<'a>) -> Result<Self> {
        if xdr.bool()? { xdr.value().map(Some) } else { Ok(None) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boolean_is_zero_or_one() {
        assert_eq!(Decoder::new(&[0, 0, 0, 1]).bool(), Ok(true));
        assert_eq!(Decoder::new(&[0, 0, 0, 0]).bool(), Ok(false));
        assert_eq!(Decoder::new(&[0, 0, 0, 2]).bool(), Err(Error::BadBool(2)));
        assert_eq!(Decoder::new(&[1, 0, 0, 0]).bool(), Err(Error::BadBool(1 << 24)));
    }

    #[test]
    fn padding_is_required_but_its_contents_are_ignored() {
        let mut xdr = Decoder::new(&[0, 0, 0, 1, b'x', 9, 9, 9, 0, 0, 0, 5]);
        assert_eq!(xdr.opaque(8), Ok(&b"x"[..]));
        assert_eq!((xdr.position(), xdr.u32()), (8, Ok(5)));
        assert_eq!(xdr.finish(), Ok(()));
        assert_eq!(Decoder::new(&[0, 0, 0, 1, b'x', 0, 0]).opaque(8), Err(Error::Short { missing_bytes: 1 }));
    }

    #[test]
    fn an_announced_length_is_checked_against_limit_and_message() {
        let hostile = [0xff, 0xff, 0xff, 0xff, 1, 2, 3, 4];
        let too_long = Error::TooLong { announced: u32::MAX, limit: 64 };
        assert_eq!(Decoder::new(&hostile).opaque(64), Err(too_long));
        assert!(matches!(Decoder::new(&hostile).opaque(usize::MAX), Err(Error::Short { .. })));
        assert!(matches!(Decoder::new(&hostile).fixed(usize::MAX), Err(Error::Short { .. })));
        let at_limit = [0, 0, 0, 4, 1, 2, 3, 4];
        assert_eq!(Decoder::new(&at_limit).opaque(4), Ok(&[1, 2, 3, 4][..]));
        assert_eq!(Decoder::new(&at_limit).opaque(3), Err(Error::TooLong { announced: 4, limit: 3 }));
    }

    #[test]
    fn truncated_message_reports_missing_bytes() {
        assert_eq!(Decoder::new(&[0; 3]).u32(), Err(Error::Short { missing_bytes: 1 }));
        assert_eq!(Decoder::new(&[0; 3]).u64(), Err(Error::Short { missing_bytes: 5 }));
        assert_eq!(Decoder::new(&[]).array::<8>(), Err(Error::Short { missing_bytes: 8 }));
        assert_eq!(Decoder::new(&[0; 5]).finish(), Err(Error::Trailing { extra_bytes: 5 }));
    }
}
