//! Why a message cannot be understood, or cannot be said.

use thiserror::Error;
use tombolo_core::fs::NameError;

/// Why bytes are not a message. Their sender breaks the protocol: the link is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The kind is not one of this version.
    #[error("kind {0} is unknown")]
    UnknownKind(u32),
    /// The answer is to another kind of request.
    #[error("kind {found:#x} where {expected:#x} was expected")]
    WrongKind {
        /// The kind that an answer to the request has.
        expected: u32,
        /// The kind that came.
        found: u32,
    },
    /// A flag is not one of this version, or has no meaning in this kind.
    #[error("flags {0:#x} are unknown here")]
    UnknownFlags(u32),
    /// A byte that has no meaning in this version is not zero.
    #[error("a reserved field is not zero")]
    Reserved,
    /// A field has a value that it cannot have.
    #[error("{value} is no {field}")]
    Value {
        /// What the field says.
        field: &'static str,
        /// What it held.
        value: u64,
    },
    /// A name is not one.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The frame ends before what the body announced.
    #[error("the frame lacks {missing_bytes} bytes")]
    FrameShort {
        /// How many more it should have.
        missing_bytes: usize,
    },
    /// Something follows in the frame that the body did not announce.
    #[error("{extra_bytes} bytes of the frame mean nothing")]
    FrameLong {
        /// How many.
        extra_bytes: usize,
    },
    /// A reference is empty, or leaves its domain's address space.
    #[error("{len_bytes} bytes at {address:#x} cannot be referred to")]
    Reference {
        /// The global address.
        address: u64,
        /// How many bytes.
        len_bytes: u32,
    },
    /// A list has more entries than it may have, or none.
    #[error("a list of {0} entries")]
    ListLength(u64),
    /// The status is not one of this version.
    #[error("status {0} is unknown")]
    UnknownStatus(u32),
}

/// Why a message cannot be encoded. Nothing of it may be sent then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum EncodeError {
    /// The frame has no room for it.
    #[error("the message does not fit into its frame")]
    FrameFull,
    /// A value does not fit its field.
    #[error("{value} is no {field}")]
    Value {
        /// What the field says.
        field: &'static str,
        /// The value.
        value: u64,
    },
    /// Requests of this kind are not answered so.
    #[error("no answer to a request of kind {0:?}")]
    WrongReply(crate::Kind),
}
