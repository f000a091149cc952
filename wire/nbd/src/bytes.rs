//! Decoding of numbers and names, in network byte order.

use crate::{Malformed, NAME_BYTES_MAX, Result};

/// The remaining bytes of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(*bytes)
    }

    pub(crate) fn u16(&mut self) -> Result<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_be_bytes)
    }

    pub(crate) fn magic(&mut self, magic: u64) -> Result<()> {
        if self.u64()? == magic { Ok(()) } else { Err(Malformed::Magic) }
    }

    /// Decodes a name preceded by its length.
    pub(crate) fn name(&mut self) -> Result<&'a str> {
        let len = self.u32()?;
        self.take(len as usize).and_then(name)
    }

    pub(crate) fn end(self) -> Result<()> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed::Length(self.0.len() as u64)) }
    }
}

/// Decodes a name that consists of all of these bytes.
pub(crate) fn name(bytes: &[u8]) -> Result<&str> {
    if bytes.len() > NAME_BYTES_MAX {
        return Err(Malformed::Length(bytes.len() as u64));
    }
    std::str::from_utf8(bytes).map_err(|_| Malformed::Name)
}

/// Encodes a length; saturates at 4 GiB, which no message reaches.
pub(crate) fn length(bytes: usize) -> [u8; 4] {
    u32::try_from(bytes).unwrap_or(u32::MAX).to_be_bytes()
}

pub(crate) fn put_name(out: &mut Vec<u8>, name: &str) {
    out.extend(length(name.len()));
    out.extend(name.as_bytes());
}
