//! File handles (RFC 1813 §2.3.3, `nfs_fh3`).

use std::fmt;

use tombolo_wire_xdr::{Decode, Decoder, Encode, Encoder, Result};

/// Maximum length of a handle, in bytes (§2.4, `NFS3_FHSIZE`).
pub const HANDLE_BYTES_MAX: usize = 64;

/// A file handle in a message: 0 to 64 bytes that are meaningful to the issuing server only.
///
/// An empty handle is decoded, to be answered BADHANDLE by the server. A longer one violates the type and is
/// garbage.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileHandle<'a>(&'a [u8]);

impl<'a> FileHandle<'a> {
    /// Returns a handle of these bytes; `None` if there are too many.
    #[inline]
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Option<Self> {
        if bytes.len() <= HANDLE_BYTES_MAX { Some(Self(bytes)) } else { None }
    }

    /// Returns the bytes, without meaning to a client.
    #[inline]
    #[must_use]
    pub const fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// Copies the handle out of the message, without an allocation.
    #[must_use]
    pub fn to_owned(self) -> FileHandleBuf {
        let mut bytes = [0; HANDLE_BYTES_MAX];
        for (to, from) in bytes.iter_mut().zip(self.0) {
            *to = *from;
        }
        FileHandleBuf { bytes, len: self.0.len() as u8 }
    }
}

impl fmt::Debug for FileHandle<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl<'a> Decode<'a> for FileHandle<'a> {
    #[inline]
    fn decode(xdr: &mut Decoder<'a>) -> Result<Self> {
        xdr.opaque(HANDLE_BYTES_MAX).map(Self)
    }
}

impl Encode for FileHandle<'_> {
    #[inline]
    fn encode(&self, xdr: &mut Encoder<'_>) {
        xdr.opaque(self.0);
    }
}

/// An owned [`FileHandle`], stored inline.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileHandleBuf {
    /// The bytes; zero behind the handle's end.
    bytes: [u8; HANDLE_BYTES_MAX],
    len: u8,
}

impl FileHandleBuf {
    /// Returns the handle.
    #[inline]
    #[must_use]
    pub fn as_handle(&self) -> FileHandle<'_> {
        FileHandle(self.bytes.get(..usize::from(self.len)).unwrap_or_default())
    }
}

impl fmt::Debug for FileHandleBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_handle().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tombolo_wire_xdr::{Error, encoded};

    #[test]
    fn handles_have_0_to_64_bytes() {
        for len in [0, 1, 63, 64] {
            let bytes = vec![7; len];
            let handle = FileHandle::new(&bytes).unwrap();
            assert_eq!(handle.to_owned().as_handle(), handle);
            assert_eq!(FileHandle::decode(&mut Decoder::new(&encoded(&handle))), Ok(handle));
        }
        assert_eq!(FileHandle::new(&[7; 65]), None);
        let message = encoded(&&[7; 65][..]);
        let garbage = FileHandle::decode(&mut Decoder::new(&message));
        assert_eq!(garbage, Err(Error::TooLong { announced: 65, limit: 64 }));
    }
}
