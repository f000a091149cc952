//! Allocation of a disk.

use tombolo_core::block::{Allocation, BlockDevice};

use super::fault::Fault;
use super::pieces::extents_from;

/// Number of bytes by allocation; together the whole disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Number of bytes that may contain data.
    pub data_bytes: u64,
    /// Number of bytes that are allocated and read as zeroes.
    pub zero_bytes: u64,
    /// Number of bytes that are not allocated and read as zeroes.
    pub hole_bytes: u64,
}

impl Room {
    /// Queries all extents of the disk, some at a time.
    pub async fn of(disk: &dyn BlockDevice) -> Result<Self, Fault> {
        let (mut room, mut offset) = (Self::default(), 0);
        loop {
            let end = disk.geometry().size_bytes;
            if offset >= end {
                return Ok(room);
            }
            for extent in extents_from(disk, offset, end).await? {
                offset += extent.len_bytes;
                *match extent.allocation {
                    Allocation::Data => &mut room.data_bytes,
                    Allocation::Zero => &mut room.zero_bytes,
                    Allocation::Hole => &mut room.hole_bytes,
                } += extent.len_bytes;
            }
        }
    }
}
