//! Sizes of a disk, and ranges on it.

use thiserror::Error as ThisError;

use crate::Error;

/// The unit of virtio offsets (virtio 1.2, §5.2.4) and the smallest block size, in bytes.
pub const SECTOR_BYTES: u32 = 512;

/// Maximum disk length that an image header or a server may claim, in bytes. Reading a longer disk would take
/// more than a year at 1 GB/s.
pub const SIZE_BYTES_MAX: u64 = 1 << 55;

/// The sizes of a disk. Only [`size_bytes`](Self::size_bytes) changes during its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Length, in bytes; a multiple of `block_bytes`.
    pub size_bytes: u64,
    /// The smallest unit that can be read or written, in bytes: a power of two from 512 to 64 KiB. Offsets
    /// and lengths of requests are multiples of it.
    pub block_bytes: u32,
    /// The unit of the storage, in bytes: a power of two, at least `block_bytes`. Writing a part of a unit
    /// costs a read of it.
    pub physical_block_bytes: u32,
    /// Preferred transfer size, in bytes; 0: no preference.
    pub optimal_bytes: u32,
    /// The unit of discarding, in bytes; a power of two. Partial units need not be discarded.
    pub discard_granularity_bytes: u32,
}

impl Geometry {
    /// The largest block, in bytes.
    pub const BLOCK_BYTES_MAX: u32 = 64 << 10;

    /// Returns the geometry of a file: blocks of 512 bytes, in physical blocks of 4 KiB. The missing part of
    /// the last block reads as zeroes, and writing it extends the file.
    pub fn of_file(size_bytes: u64) -> Self {
        Self {
            size_bytes: padded(size_bytes, SECTOR_BYTES),
            block_bytes: SECTOR_BYTES,
            physical_block_bytes: 4096,
            optimal_bytes: 0,
            discard_granularity_bytes: 4096,
        }
    }

    /// Changes the block size of a disk whose file may end within the last block: the length is rounded up
    /// to whole blocks.
    pub fn in_blocks(self, block_bytes: u32) -> Result<Self, BlockSizeError> {
        if !block_bytes.is_power_of_two() || !(SECTOR_BYTES..=Self::BLOCK_BYTES_MAX).contains(&block_bytes) {
            return Err(BlockSizeError::Size { block_bytes });
        }
        Ok(Self {
            size_bytes: padded(self.size_bytes, block_bytes),
            block_bytes,
            physical_block_bytes: self.physical_block_bytes.max(block_bytes),
            discard_granularity_bytes: self.discard_granularity_bytes.max(block_bytes),
            ..self
        })
    }

    /// Changes the block size of a disk that cannot grow: also fails if the last block would be partial.
    pub fn in_whole_blocks(self, block_bytes: u32) -> Result<Self, BlockSizeError> {
        let size_bytes = self.size_bytes;
        match self.in_blocks(block_bytes)? {
            whole if whole.size_bytes == size_bytes => Ok(whole),
            _ => Err(BlockSizeError::Length { size_bytes, block_bytes }),
        }
    }

    /// Returns the range if it consists of whole blocks inside the disk.
    #[inline]
    pub fn check(&self, offset: u64, len_bytes: u64) -> Result<Range, RangeError> {
        if !(offset | len_bytes).is_multiple_of(u64::from(self.block_bytes)) {
            return Err(RangeError::Unaligned { block_bytes: self.block_bytes });
        }
        let range = Range { offset, len_bytes };
        match range.checked_end() {
            Some(end) if end <= self.size_bytes => Ok(range),
            _ => Err(RangeError::BeyondTheEnd { size_bytes: self.size_bytes }),
        }
    }
}

/// Rounds a length up to whole blocks, or down where the rounded number would overflow.
pub(super) fn padded(size_bytes: u64, block_bytes: u32) -> u64 {
    let block_bytes = u64::from(block_bytes);
    size_bytes.checked_next_multiple_of(block_bytes).unwrap_or(size_bytes - size_bytes % block_bytes)
}

/// A contiguous byte range of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Offset of the first byte, from the disk's beginning.
    pub offset: u64,
    /// Length, in bytes.
    pub len_bytes: u64,
}

impl Range {
    /// Returns the end offset; `None` on overflow.
    #[inline]
    pub fn checked_end(&self) -> Option<u64> {
        self.offset.checked_add(self.len_bytes)
    }

    /// Returns the end offset, saturating on overflow.
    #[inline]
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.len_bytes)
    }
}

/// An invalid block size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ThisError)]
pub enum BlockSizeError {
    /// The block size is not a power of two, or outside of the limits.
    #[error("invalid block size of {block_bytes} bytes: must be a power of two from 512 to 65536")]
    Size {
        /// Requested block size, in bytes.
        block_bytes: u32,
    },
    /// The disk's last bytes would be lost.
    #[error(
        "its {size_bytes} bytes are not a multiple of the block size {block_bytes}: use a smaller block size"
    )]
    Length {
        /// The disk's length, in bytes.
        size_bytes: u64,
        /// Requested block size, in bytes.
        block_bytes: u32,
    },
}

/// An invalid range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ThisError)]
pub enum RangeError {
    /// The range does not consist of whole blocks.
    #[error("not a multiple of the block size of {block_bytes} bytes")]
    Unaligned {
        /// The block size, in bytes.
        block_bytes: u32,
    },
    /// The range ends beyond the disk.
    #[error("beyond the end of a disk of {size_bytes} bytes")]
    BeyondTheEnd {
        /// The disk's length, in bytes.
        size_bytes: u64,
    },
}

impl From<RangeError> for Error {
    fn from(_: RangeError) -> Self {
        Self::InvalidArgument
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_blocks_inside_the_disk_are_a_range() {
        let disk = Geometry { block_bytes: 4096, ..Geometry::of_file(1 << 20) };
        let end = RangeError::BeyondTheEnd { size_bytes: 1 << 20 };
        let unaligned = RangeError::Unaligned { block_bytes: 4096 };
        for (offset, len_bytes, fault) in [
            (0, 1 << 20, None),
            (1 << 20, 0, None),
            (1 << 20, 4096, Some(end)),
            ((1 << 20) - 4096, 8192, Some(end)),
            (u64::MAX - 4095, 4096, Some(end)),
            (512, 4096, Some(unaligned)),
            (4096, 512, Some(unaligned)),
        ] {
            assert_eq!(disk.check(offset, len_bytes).err(), fault, "{offset} {len_bytes}");
        }
    }

    #[test]
    fn partial_last_block_is_rounded_up() {
        let lengths = [0, 1, 512, 1025, u64::MAX].map(|len| Geometry::of_file(len).size_bytes);
        assert_eq!(lengths, [0, 512, 512, 1536, u64::MAX - 511]);
        let disk = Geometry::of_file(20_000).in_blocks(8192).expect("a size");
        assert_eq!((disk.size_bytes, disk.block_bytes, disk.physical_block_bytes), (24_576, 8192, 8192));
    }

    #[test]
    fn invalid_block_sizes_are_refused() {
        let disk = Geometry::of_file(1 << 20);
        for block_bytes in [0, 256, 1000, 1 << 17] {
            assert_eq!(disk.in_blocks(block_bytes), Err(BlockSizeError::Size { block_bytes }));
        }
        assert!(disk.in_whole_blocks(4096).is_ok());
        let (size_bytes, block_bytes) = (1536, 1024);
        let cut = Geometry::of_file(size_bytes).in_whole_blocks(block_bytes);
        assert_eq!(cut, Err(BlockSizeError::Length { size_bytes, block_bytes }));
    }
}
