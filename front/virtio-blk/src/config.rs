//! Device configuration: feature bits and configuration space.

use bitflags::bitflags;
use tombolo_core::block::{Geometry, Profile, SECTOR_BYTES};

bitflags! {
    /// Feature bits of a block device (virtio 1.2, §5.2.3).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Features: u64 {
        /// The field `size_max` of the configuration is valid.
        const SIZE_MAX = 1 << 1;
        /// The field `seg_max` of the configuration is valid.
        const SEG_MAX = 1 << 2;
        /// The device is read-only.
        const READ_ONLY = 1 << 5;
        /// The field `blk_size` of the configuration is valid.
        const BLOCK_SIZE = 1 << 6;
        /// The device has a cache and a flush request.
        const FLUSH = 1 << 9;
        /// The topology fields of the configuration are valid.
        const TOPOLOGY = 1 << 10;
        /// The driver may select the cache mode (`writeback`).
        const CONFIG_WCE = 1 << 11;
        /// The field `num_queues` of the configuration is valid.
        const MULTI_QUEUE = 1 << 12;
        /// The device has a discard request.
        const DISCARD = 1 << 13;
        /// The device has a write-zeroes request.
        const WRITE_ZEROES = 1 << 14;
    }
}

impl Features {
    /// Returns the features to offer for a disk with this profile.
    pub(crate) fn of(profile: Profile) -> Self {
        let mut features =
            Self::SIZE_MAX | Self::SEG_MAX | Self::BLOCK_SIZE | Self::TOPOLOGY | Self::MULTI_QUEUE;
        if profile.read_only {
            return features | Self::READ_ONLY;
        }
        features |= Self::WRITE_ZEROES;
        features.set(Self::DISCARD, profile.discards);
        // Without a cache there is nothing to flush or to select.
        features.set(Self::FLUSH | Self::CONFIG_WCE, profile.has_cache);
        features
    }
}

/// Maximum number of data segments in a request; with header and status they fill the default queue of QEMU's
/// vhost-user-blk, 128 descriptors.
pub(crate) const SEGMENTS_MAX: u32 = 126;
/// Maximum length of a data segment in bytes.
pub(crate) const SEGMENT_BYTES_MAX: u32 = 128 << 10;
/// Maximum number of sectors that one request discards or zeroes: 2 GiB, which bounds its duration.
pub(crate) const RANGE_SECTORS_MAX: u32 = 1 << 22;

/// Offset of `writeback` (§5.2.4), which the driver may write.
pub(crate) const WRITEBACK_OFFSET: u32 = 32;

const CONFIG_BYTES: usize = 60;

/// Encodes the configuration space (§5.2.4, `struct virtio_blk_config`), little-endian.
pub(crate) fn space(
    geometry: &Geometry,
    profile: Profile,
    queues: u16,
    writeback: bool,
) -> [u8; CONFIG_BYTES] {
    let mut space = Space { bytes: [0; CONFIG_BYTES], at: 0 };
    let sector_bytes = u64::from(SECTOR_BYTES);
    space.put(&(geometry.size_bytes / sector_bytes).to_le_bytes());
    space.put(&SEGMENT_BYTES_MAX.to_le_bytes());
    space.put(&SEGMENTS_MAX.to_le_bytes());
    // Cylinders, heads and sectors are not offered.
    space.put(&[0; 4]);
    space.put(&geometry.block_bytes.to_le_bytes());
    let blocks = |bytes: u32| bytes / geometry.block_bytes.max(1);
    let physical_blocks = blocks(geometry.physical_block_bytes).max(1);
    space.put(&[physical_blocks.ilog2() as u8, 0]);
    space.put(&u16::try_from(physical_blocks).unwrap_or(u16::MAX).to_le_bytes());
    space.put(&blocks(geometry.optimal_bytes).to_le_bytes());
    space.put(&[u8::from(writeback), 0]);
    space.put(&queues.to_le_bytes());
    let unit_sectors = geometry.discard_granularity_bytes.max(geometry.block_bytes) / SECTOR_BYTES;
    for word in [RANGE_SECTORS_MAX, 1, unit_sectors, RANGE_SECTORS_MAX, 1] {
        space.put(&word.to_le_bytes());
    }
    space.put(&[u8::from(profile.discards)]);
    space.bytes
}

struct Space {
    bytes: [u8; CONFIG_BYTES],
    at: usize,
}

impl Space {
    fn put(&mut self, field: &[u8]) {
        if let Some(place) = self.bytes.get_mut(self.at..self.at + field.len()) {
            place.copy_from_slice(field);
        }
        self.at += field.len();
    }
}
