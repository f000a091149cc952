use std::io;

/// A span that does not lie inside its region, an access that is not aligned, or a write to a region that is
/// read-only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at offset {offset} do not fit a region of {region_len} bytes")]
pub struct OutOfBounds {
    /// Where the span was to begin, in bytes from the start of the region.
    pub offset: usize,
    /// How long it was to be, in bytes.
    pub len: usize,
    /// The region's length in bytes; 0 for a write to one that is read-only, where nothing has room.
    pub region_len: usize,
}

/// Why a file could not be mapped as a region.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// The length is zero, or offset and length do not fit the address space.
    #[error("no mapping of {len} bytes at file offset {offset} is possible")]
    Span {
        /// Offset in the file, in bytes.
        offset: u64,
        /// Length asked for, in bytes.
        len: u64,
    },
    /// The regular file ends before the mapping would.
    #[error("a mapping up to byte {end} passes the end of the file at {file_len}")]
    PastEnd {
        /// First byte after the mapping.
        end: u64,
        /// Length of the file in bytes.
        file_len: u64,
    },
    /// All [`REGION_LIMIT`](crate::REGION_LIMIT) places for mapped regions are taken.
    #[error("{} regions are mapped already", crate::REGION_LIMIT)]
    TooMany,
    /// The operating system refused.
    #[error("the system refuses to map the file")]
    System(#[from] io::Error),
}
