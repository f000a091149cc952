//! Names of directory entries, validated once at the boundary.

use std::fmt;

use smallvec::SmallVec;
use thiserror::Error;

/// Maximum length of a name, in bytes (`NAME_MAX` of Linux).
pub const NAME_MAX: usize = 255;

/// The name of one directory entry: 1 to 255 bytes, no `/`, no NUL, neither `.` nor `..`.
///
/// Values are validated at construction, so no back end receives a name that could escape from a directory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name<'a>(&'a [u8]);

/// The reason why bytes are not a [`Name`] or [`XattrName`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NameError {
    /// The name is empty.
    #[error("the name is empty")]
    Empty,
    /// The name is longer than 255 bytes.
    #[error("the name is longer than {NAME_MAX} bytes")]
    TooLong,
    /// The name holds a `/` or a NUL byte.
    #[error("the name contains a slash or a NUL byte")]
    ForbiddenByte,
    /// The name is `.` or `..`.
    #[error("`.` and `..` are not valid names")]
    Dots,
}

impl<'a> Name<'a> {
    /// Validates `bytes`.
    pub fn new(bytes: &'a [u8]) -> Result<Self, NameError> {
        match bytes {
            [] => Err(NameError::Empty),
            _ if bytes.len() > NAME_MAX => Err(NameError::TooLong),
            b"." | b".." => Err(NameError::Dots),
            // Checking all bytes is faster than stopping at the first forbidden one.
            _ if bytes.iter().fold(0, |any, &byte| any | u8::from(byte == b'/' || byte == 0)) != 0 => {
                Err(NameError::ForbiddenByte)
            }
            _ => Ok(Self(bytes)),
        }
    }

    /// Returns the bytes, without a terminator.
    #[inline]
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// Copies the name, for an operation that answers later.
    pub fn to_owned(self) -> NameBuf {
        NameBuf(SmallVec::from_slice(self.0))
    }
}

impl fmt::Debug for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

/// An owned [`Name`]. Names of up to 30 bytes are stored inline.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NameBuf(SmallVec<[u8; 30]>);

impl NameBuf {
    /// Borrows the name.
    #[inline]
    pub fn as_name(&self) -> Name<'_> {
        Name(&self.0)
    }
}

impl fmt::Debug for NameBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_name().fmt(f)
    }
}

/// The name of an extended attribute with its namespace (`user.comment`): 1 to 255 bytes, no NUL (xattr(7)).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct XattrName<'a>(&'a [u8]);

impl<'a> XattrName<'a> {
    /// Validates `bytes`.
    pub fn new(bytes: &'a [u8]) -> Result<Self, NameError> {
        match bytes {
            [] => Err(NameError::Empty),
            _ if bytes.len() > NAME_MAX => Err(NameError::TooLong),
            _ if bytes.contains(&0) => Err(NameError::ForbiddenByte),
            _ => Ok(Self(bytes)),
        }
    }

    /// Returns the bytes, without a terminator.
    #[inline]
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// Copies the name, for an operation that answers later.
    pub fn to_owned(self) -> XattrNameBuf {
        XattrNameBuf(self.0.into())
    }
}

/// An owned [`XattrName`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct XattrNameBuf(Box<[u8]>);

impl XattrNameBuf {
    /// Borrows the name.
    #[inline]
    pub fn as_name(&self) -> XattrName<'_> {
        XattrName(&self.0)
    }
}

impl fmt::Debug for XattrName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl From<NameError> for crate::Error {
    fn from(error: NameError) -> Self {
        match error {
            NameError::TooLong => Self::NameTooLong,
            NameError::Empty => Self::NotFound,
            NameError::ForbiddenByte | NameError::Dots => Self::InvalidArgument,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_climb_out_are_refused() {
        for (bytes, error) in [
            (&b""[..], NameError::Empty),
            (b".", NameError::Dots),
            (b"..", NameError::Dots),
            (b"a/b", NameError::ForbiddenByte),
            (b"a\0", NameError::ForbiddenByte),
            (&[b'x'; 256], NameError::TooLong),
        ] {
            assert_eq!(Name::new(bytes), Err(error), "{}", bytes.escape_ascii());
        }
        for bytes in [&b"..."[..], b".a", b"\xff\xfe", &[b'x'; 255]] {
            assert_eq!(Name::new(bytes).unwrap().to_owned().as_name().as_bytes(), bytes);
        }
    }
}
