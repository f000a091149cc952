//! What can be wrong with a request.

use crate::errno::Errno;
use crate::opcode::Opcode;
use tombolo_core::fs::NameError;

/// Why a request was refused. None of these depends on the file system: the bytes alone are wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Fewer bytes than a request header.
    #[error("request of {found_bytes} bytes is shorter than a header")]
    NoHeader {
        /// What there was.
        found_bytes: usize,
    },
    /// The operation is not part of the protocol as this codec knows it.
    #[error("unknown operation {0}")]
    UnknownOpcode(u32),
    /// The request is too short or too long for its operation, or states a wrong length.
    #[error("{opcode:?} of {found_bytes} bytes: {what}")]
    Length {
        /// The operation.
        opcode: Opcode,
        /// What is wrong.
        what: &'static str,
        /// The length of the request as its header tells it.
        found_bytes: usize,
    },
    /// A name that no directory can hold.
    #[error("{opcode:?}: {source}")]
    Name {
        /// The operation.
        opcode: Opcode,
        /// What is wrong with the name.
        source: NameError,
    },
    /// A field has a value that means nothing.
    #[error("{opcode:?}: {what}")]
    Field {
        /// The operation.
        opcode: Opcode,
        /// Which field, and why.
        what: &'static str,
    },
}

impl DecodeError {
    /// The errno to answer with.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            DecodeError::UnknownOpcode(_) => Errno::ENOSYS,
            DecodeError::Name { source: NameError::TooLong, .. } => Errno::ENAMETOOLONG,
            _ => Errno::EINVAL,
        }
    }

    /// Would no kernel ever send this? Then the peer is broken or hostile.
    #[must_use]
    pub fn is_violation(&self) -> bool {
        match self {
            DecodeError::UnknownOpcode(_) | DecodeError::Field { .. } => false,
            DecodeError::Name { source, .. } => !matches!(source, NameError::TooLong),
            DecodeError::NoHeader { .. } | DecodeError::Length { .. } => true,
        }
    }
}
