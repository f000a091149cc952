//! Why a call has no answer.

use std::sync::Arc;

use thiserror::Error;
use tombolo_shm::link::FRAME_BYTES;

use crate::end::End;

/// Why a call has no answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LineError {
    /// The link has ended. Whether the server carried the request out is not known.
    #[error("{label}: the link is lost: {why}")]
    Lost {
        /// What the line is called.
        label: Arc<str>,
        /// Why it ended.
        why: End,
    },
    /// The arguments do not fit; nothing was sent.
    #[error("{len_bytes} bytes of arguments, where {FRAME_BYTES} fit")]
    TooLong {
        /// How many there were.
        len_bytes: usize,
    },
}
