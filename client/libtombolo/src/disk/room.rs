//! How much of a disk is what.

use tombolo_core::block::{Allocation, BlockDevice};

use super::fault::Fault;
use super::pieces::extents_from;

/// How many bytes are what; together the whole disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// There may be data.
    pub data_bytes: u64,
    /// Room is taken, and it reads as zeroes.
    pub zero_bytes: u64,
    /// No room is taken, and it reads as zeroes.
    pub hole_bytes: u64,
}

impl Room {
    /// Asks the disk for all its extents, some at a time.
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
