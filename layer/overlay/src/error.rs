//! Errors of opening and creating overlays.

use thiserror::Error as ThisError;
use tombolo_core::block::BlockSizeError;

/// Reasons why an overlay cannot be used or created.
#[derive(Debug, ThisError)]
pub enum OverlayError {
    /// The file has no overlay header.
    #[error("not an overlay")]
    NotAnOverlay,
    /// The base's blocks are larger than those of an overlay.
    #[error("the base has blocks of {found} bytes; at most {max} are supported")]
    BaseBlocks {
        /// The base's block size, in bytes.
        found: u32,
        /// The overlay's block size, in bytes.
        max: u64,
    },
    /// The header is damaged or inconsistent.
    #[error("the overlay's header is damaged: {0}")]
    Damaged(&'static str),
    /// The overlay has a format version that this program does not support.
    #[error("overlays of version {0} are not supported")]
    Version(u32),
    /// The redo log is shorter than its blocks require.
    #[error("the overlay has {found} bytes instead of {wanted}: it was truncated")]
    TooShort {
        /// Length found, in bytes.
        found: u64,
        /// Length required by the header, in bytes.
        wanted: u64,
    },
    /// The overlay is sealed, but its block states have changed since.
    #[error("the overlay has changed since it was sealed, or is an incomplete copy")]
    Torn,
    /// Sealed, but opened for writing.
    #[error("the overlay is sealed: it is read-only")]
    Sealed,
    /// The base has changed since the overlay was created.
    #[error(
        "the base image has changed since this overlay was created, so the overlay is unusable; restore the original base (size and modification time)"
    )]
    BaseChanged,
    /// The memory for the overlay's states belongs to another overlay, or another version of this program.
    #[error("the memory for unflushed changes belongs to another overlay or another version of this program")]
    OtherMemory,
    /// The length is less than 512 bytes, not a multiple of 512, or too large.
    #[error("the size of an overlay must be from one block to {max} bytes, not {size_bytes}")]
    Size {
        /// Requested length, in bytes.
        size_bytes: u64,
        /// Maximum length, in bytes.
        max: u64,
    },
    /// The name of the base does not fit into the header.
    #[error("the base's name is too long: at most {max} bytes are supported")]
    NameTooLong {
        /// Maximum length, in bytes.
        max: usize,
    },
    /// The base's fingerprint ([`Header::base_mark`](crate::Header::base_mark)) does not fit into the header.
    #[error("the base's mark is too long: at most {max} bytes are supported")]
    MarkTooLong {
        /// Maximum length, in bytes.
        max: usize,
    },
    /// The requested block size is invalid.
    #[error(transparent)]
    BlockSize(#[from] BlockSizeError),
    /// The redo log cannot be read or written.
    #[error(transparent)]
    Io(#[from] tombolo_core::Error),
}
