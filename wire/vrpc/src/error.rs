//! Errors of decoding and encoding messages.

use thiserror::Error;
use tombolo_core::fs::NameError;

/// The reason why bytes are not a message. The sender has violated the protocol, and the link is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// A kind unknown to this version.
    #[error("unknown kind {0}")]
    UnknownKind(u32),
    /// An answer whose kind is not that of the request's answer.
    #[error("kind {found:#x}, expected {expected:#x}")]
    WrongKind {
        /// The kind of an answer to the request.
        expected: u32,
        /// The kind found.
        found: u32,
    },
    /// A flag unknown to this version, or invalid for this kind.
    #[error("unknown flags {0:#x}")]
    UnknownFlags(u32),
    /// A reserved byte that is not zero.
    #[error("a reserved field is not zero")]
    Reserved,
    /// A value that the field's type does not allow.
    #[error("invalid {field}: {value}")]
    Value {
        /// Name of the field, for the log.
        field: &'static str,
        /// The value found.
        value: u64,
    },
    /// An invalid name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The frame is shorter than the body requires.
    #[error("the frame is {missing_bytes} bytes too short")]
    FrameShort {
        /// Minimum number of missing bytes.
        missing_bytes: usize,
    },
    /// The frame is longer than the body requires.
    #[error("{extra_bytes} trailing bytes in the frame")]
    FrameLong {
        /// Number of extra bytes.
        extra_bytes: usize,
    },
    /// A reference that is empty, or leaves its domain's address space.
    #[error("invalid reference to {len_bytes} bytes at {address:#x}")]
    Reference {
        /// Global address of the first byte.
        address: u64,
        /// Length, in bytes.
        len_bytes: u32,
    },
    /// A list that is longer or shorter than its message allows.
    #[error("invalid length of a list: {0}")]
    ListLength(u64),
    /// A status unknown to this version.
    #[error("unknown status {0}")]
    UnknownStatus(u32),
}

/// The reason why a message cannot be encoded. Its partial encoding must not be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum EncodeError {
    /// The frame has no space for the message.
    #[error("the message does not fit into its frame")]
    FrameFull,
    /// A value that the format cannot carry in its field.
    #[error("invalid {field}: {value}")]
    Value {
        /// Name of the field, for the log.
        field: &'static str,
        /// Value that was to be encoded.
        value: u64,
    },
    /// A reply that does not answer requests of this kind.
    #[error("no answer to a request of kind {0:?}")]
    WrongReply(crate::Kind),
}
