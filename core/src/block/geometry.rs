//! Sizes of a disk, and ranges on it.

use thiserror::Error as ThisError;

use crate::Error;

/// The unit that virtio counts in (virtio 1.2, §5.2.4), and the smallest block, in bytes.
pub const SECTOR_BYTES: u32 = 512;

/// The longest disk that an image's header or a server may claim, in bytes: what is longer takes years to look through.
pub const SIZE_BYTES_MAX: u64 = 1 << 55;

/// The sizes of a disk. Only [`size_bytes`](Self::size_bytes) changes during its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Length, in bytes; a multiple of `block_bytes`.
    pub size_bytes: u64,
    /// The smallest unit that can be read or written, in bytes: a power of two from 512 to 64 KiB. Offsets and lengths are multiples.
    pub block_bytes: u32,
    /// The unit below which a write costs a read, in bytes: a power of two, at least `block_bytes`.
    pub physical_block_bytes: u32,
    /// What is best read or written at a time, in bytes; 0: no preference.
    pub optimal_bytes: u32,
    /// The unit that discarding works in, in bytes; a power of two. Parts of units are kept.
    pub discard_granularity_bytes: u32,
}

impl Geometry {
    /// The largest block, in bytes.
    pub const BLOCK_BYTES_MAX: u32 = 64 << 10;

    /// A disk of blocks of 512 bytes that lies in pages of 4 KiB, as a file does. A part of a block at its end does not count.
    pub fn of_file(size_bytes: u64) -> Self {
        Self {
            size_bytes: size_bytes - size_bytes % u64::from(SECTOR_BYTES),
            block_bytes: SECTOR_BYTES,
            physical_block_bytes: 4096,
            optimal_bytes: 0,
            discard_granularity_bytes: 4096,
        }
    }

    /// The same in blocks of this size, a part of which at the end does not count.
    pub fn in_blocks(self, block_bytes: u32) -> Result<Self, BlockSizeError> {
        if !block_bytes.is_power_of_two() || !(SECTOR_BYTES..=Self::BLOCK_BYTES_MAX).contains(&block_bytes) {
            return Err(BlockSizeError { block_bytes });
        }
        Ok(Self {
            size_bytes: self.size_bytes - self.size_bytes % u64::from(block_bytes),
            block_bytes,
            physical_block_bytes: self.physical_block_bytes.max(block_bytes),
            discard_granularity_bytes: self.discard_granularity_bytes.max(block_bytes),
            ..self
        })
    }

    /// The range, if it consists of whole blocks inside the disk.
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

/// Some bytes of a disk, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Where it begins, in bytes.
    pub offset: u64,
    /// How long it is, in bytes.
    pub len_bytes: u64,
}

impl Range {
    /// Where it ends; `None` if no number says that.
    #[inline]
    pub fn checked_end(&self) -> Option<u64> {
        self.offset.checked_add(self.len_bytes)
    }

    /// Where it ends, or the largest number.
    #[inline]
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.len_bytes)
    }
}

/// A block size that no disk has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ThisError)]
#[error("a block size is a power of two from 512 to 65536 bytes, not {block_bytes}")]
pub struct BlockSizeError {
    /// What was asked for, in bytes.
    pub block_bytes: u32,
}

/// A range that a disk does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ThisError)]
pub enum RangeError {
    /// It does not consist of whole blocks.
    #[error("not a multiple of the block size of {block_bytes} bytes")]
    Unaligned {
        /// The block size, in bytes.
        block_bytes: u32,
    },
    /// It ends beyond the disk.
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
    fn a_part_of_a_sector_at_the_end_of_a_file_does_not_count() {
        assert_eq!(Geometry::of_file(1025).size_bytes, 1024);
    }

    #[test]
    fn a_part_of_a_larger_block_does_not_count_either_and_some_sizes_are_none() {
        let disk = Geometry::of_file(20_000).in_blocks(8192).expect("a size");
        assert_eq!((disk.size_bytes, disk.block_bytes, disk.physical_block_bytes), (16_384, 8192, 8192));
        for block_bytes in [0, 256, 1000, 1 << 17] {
            assert_eq!(
                Geometry::of_file(1 << 20).in_blocks(block_bytes),
                Err(BlockSizeError { block_bytes })
            );
        }
    }
}
