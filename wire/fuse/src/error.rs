//! Errors of decoding a request, and their effects.

use crate::errno::Errno;
use crate::opcode::Opcode;
use tombolo_core::fs::NameError;

/// The reason why a request was refused. Independent of the file system: the bytes themselves are invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Shorter than a request header.
    #[error("request of {found_bytes} bytes is shorter than a header")]
    NoHeader {
        /// Number of bytes passed to the decoder.
        found_bytes: usize,
    },
    /// Operation unknown to this codec.
    #[error("unknown operation {0}")]
    UnknownOpcode(u32),
    /// Too short or too long for the operation, or an inconsistent length.
    #[error("{opcode:?} of {found_bytes} bytes: {what}")]
    Length {
        /// Operation of the request, for the log.
        opcode: Opcode,
        /// Description of the problem, for the log.
        what: &'static str,
        /// Length of the request according to its header.
        found_bytes: usize,
    },
    /// An invalid name.
    #[error("{opcode:?}: {source}")]
    Name {
        /// Operation of the request, for the log.
        opcode: Opcode,
        /// Reason why the bytes are not a name.
        source: NameError,
    },
    /// A field with an invalid value.
    #[error("{opcode:?}: {what}")]
    Field {
        /// Operation of the request, for the log.
        opcode: Opcode,
        /// Description of the field and its problem, for the log.
        what: &'static str,
    },
}

impl DecodeError {
    /// Returns the errno with which the request is answered.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            DecodeError::UnknownOpcode(_) => Errno::ENOSYS,
            DecodeError::Name { source: NameError::TooLong, .. } => Errno::ENAMETOOLONG,
            _ => Errno::EINVAL,
        }
    }

    /// Returns `true` for an error that no kernel causes: the peer is broken or hostile.
    #[must_use]
    pub fn is_violation(&self) -> bool {
        match self {
            DecodeError::UnknownOpcode(_) | DecodeError::Field { .. } => false,
            DecodeError::Name { source, .. } => !matches!(source, NameError::TooLong),
            DecodeError::NoHeader { .. } | DecodeError::Length { .. } => true,
        }
    }
}
