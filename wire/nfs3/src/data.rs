//! References to file data in a message.

use std::ops::Range;

use tombolo_wire_xdr::{Decode, Decoder, Encode, Encoder, Error, Result, padded};

/// The position of the data of a WRITE's arguments or of a READ's results.
///
/// The data are always last in their message, so the decoder needs only the bytes before them. Encoding
/// writes the length; data and padding follow from another buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data {
    start: usize,
    len_bytes: u32,
}

impl Data {
    /// Returns the description of data that the caller sends behind the encoded part, with their padding.
    #[inline]
    #[must_use]
    pub const fn to_send(len_bytes: u32) -> Self {
        Self { start: 0, len_bytes }
    }

    /// Returns the length announced in the message, in bytes.
    #[inline]
    #[must_use]
    pub const fn len_bytes(&self) -> u32 {
        self.len_bytes
    }

    /// Returns the position in a message of `message_bytes`; the decoder must have begun at the message's
    /// first byte.
    ///
    /// # Errors
    /// [`Error::Short`] if data or padding extend beyond the message.
    #[inline]
    pub fn range(&self, message_bytes: usize) -> Result<Range<usize>> {
        let len = self.len_bytes as usize;
        match self.start.saturating_add(padded(len)).checked_sub(message_bytes) {
            None | Some(0) => Ok(self.start..self.start.saturating_add(len)),
            Some(missing_bytes) => Err(Error::Short { missing_bytes }),
        }
    }
}

impl<'a> Decode<'a> for Data {
    #[inline]
    fn decode(xdr: &mut Decoder<'a>) -> Result<Self> {
        let len_bytes = xdr.u32()?;
        Ok(Self { start: xdr.position(), len_bytes })
    }
}

impl Encode for Data {
    #[inline]
    fn encode(&self, xdr: &mut Encoder<'_>) {
        xdr.u32(self.len_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_and_padding_must_lie_in_the_message() {
        let mut xdr = Decoder::new(&[9, 9, 9, 9, 0, 0, 0, 5]);
        xdr.u32().unwrap();
        let data: Data = xdr.value().unwrap();
        assert_eq!(data.range(16), Ok(8..13));
        assert_eq!(data.range(15), Err(Error::Short { missing_bytes: 1 }));
        let hostile: Data = Decoder::new(&[0xff; 4]).value().unwrap();
        assert!(hostile.range(4096).is_err());
    }
}
