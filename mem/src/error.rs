use std::io;

/// An access outside of its region, a misaligned access, or a write to a read-only region. Also a list of
/// spans longer than `isize::MAX`, and a number of lines that is not a power of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at offset {offset} do not fit a region of {region_len} bytes")]
pub struct OutOfBounds {
    /// Offset of the access in the region, in bytes.
    pub offset: usize,
    /// Length of the access, in bytes.
    pub len: usize,
    /// Length of the region, in bytes; 0 for a write to a read-only one, which has no writable bytes.
    pub region_len: usize,
}

/// The reason why a file cannot be mapped as a region.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// The length is zero, or offset and length exceed the address space.
    #[error("cannot map {len} bytes at file offset {offset}")]
    Span {
        /// Offset in the file, in bytes.
        offset: u64,
        /// Requested length, in bytes.
        len: u64,
    },
    /// The mapping would extend beyond the end of a regular file.
    #[error("mapping up to byte {end} exceeds the file's length of {file_len} bytes")]
    PastEnd {
        /// Offset of the first byte after the mapping.
        end: u64,
        /// Length of the file, in bytes.
        file_len: u64,
    },
    /// [`REGION_LIMIT`](crate::REGION_LIMIT) regions are mapped.
    #[error("limit of {} mapped regions reached", crate::REGION_LIMIT)]
    TooMany,
    /// A system call failed: to query the file, to install the fault handler, or to map the file.
    #[error("mapping the file failed")]
    System(#[from] io::Error),
}
