//! Errors of calls.

use std::sync::Arc;

use thiserror::Error;
use tombolo_shm::link::FRAME_BYTES;

use crate::end::EndReason;

/// Reason why a call has no answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LineError {
    /// The link has ended. The server may or may not have executed the request.
    #[error("{label}: link lost: {why}")]
    Lost {
        /// Name of the line.
        label: Arc<str>,
        /// Reason for the end.
        why: EndReason,
    },
    /// The arguments are too long; nothing was sent.
    #[error("{len_bytes} bytes of arguments exceed the maximum of {FRAME_BYTES}")]
    TooLong {
        /// Length of the arguments.
        len_bytes: usize,
    },
}
