use thiserror::Error as ThisError;
use tombolo_core::block::BlockSizeError;

/// Why there is no overlay.
#[derive(Debug, ThisError)]
pub enum OverlayError {
    /// It begins with something else.
    #[error("not an overlay")]
    NotAnOverlay,
    /// The base is read in larger units than an overlay is written in.
    #[error("the base has blocks of {found} bytes, and a base may have {max} at most")]
    BaseBlocks {
        /// The base's, in bytes.
        found: u32,
        /// An overlay's own, in bytes.
        max: u64,
    },
    /// The header is damaged, or lies.
    #[error("the overlay's header is damaged: {0}")]
    Damaged(&'static str),
    /// A later version made it.
    #[error("an overlay of version {0}, which this program does not know")]
    Version(u32),
    /// The redo log has no room for its blocks.
    #[error("the overlay ends after {found} bytes, where it should have {wanted}: it was cut off")]
    TooShort {
        /// Its length, in bytes.
        found: u64,
        /// What its header says that it has, in bytes.
        wanted: u64,
    },
    /// It was sealed, and has other pages than then.
    #[error(
        "the overlay is not as it was when it was finished: it was copied while that went on, or only in part"
    )]
    Torn,
    /// It is sealed, and is to be written to.
    #[error("the overlay is finished: nothing is written to it any more")]
    Sealed,
    /// What the blocks that are not here are taken from is not what it was.
    #[error(
        "the base is not what it was when the overlay was made: what was written to the overlay does not fit it any more"
    )]
    BaseChanged,
    /// The memory in which its states are to be kept has other ones.
    #[error(
        "the memory for what was not flushed belongs to another overlay, or to another version of this program"
    )]
    OtherMemory,
    /// It would have no length, or more than there can be.
    #[error("an overlay has from one block to {max} bytes, not {size_bytes}")]
    Size {
        /// What was asked for, in bytes.
        size_bytes: u64,
        /// The longest, in bytes.
        max: u64,
    },
    /// A name or a mark of the base is longer than the header has room for.
    #[error("the base's name is too long: {max} bytes are the most")]
    NameTooLong {
        /// In bytes.
        max: usize,
    },
    /// The block size is none.
    #[error(transparent)]
    BlockSize(#[from] BlockSizeError),
    /// The redo log cannot be read or written.
    #[error(transparent)]
    Io(#[from] tombolo_core::Error),
}
