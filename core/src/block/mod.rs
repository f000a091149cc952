//! The block waist: what a disk is.
//!
//! A front end (virtio-blk, NBD) calls a [`BlockDevice`]; a back end (an image file, a file of any file
//! system, a server of another host) answers it; layers (statistics, delay, faults) are a block device over a
//! block device. One value serves all its clients at once. Operations take a [`Ctx`](crate::Ctx) and return
//! an [`Answer`](crate::Answer), data go from and to the client's memory, as in the file-system waist.
//!
//! # What is kept
//!
//! - A range is checked by [`Geometry::check`] in one place, the front end; a back end refuses a range that
//!   ends beyond the disk and need not look at anything else.
//! - Operations under way at the same time may take effect in any order, a sector at a time: a read beside a
//!   write of the same sector sees the old or the new one. What began after another was answered sees its
//!   effect, whichever client asked.
//! - [`flush`](BlockDevice::flush) makes durable whatever was **answered** before it began, of all clients
//!   (NBD's multi-conn promises that). After a loss of power each sector is what was last flushed, or what
//!   was written to it since, or torn between those.
//! - Of a write that failed each sector is old, new or torn. A flush that failed has lost what it says: the
//!   next flush does not make up for it, and fails too where the back end cannot know (fsync(2) reports
//!   once).

mod bounds;
mod device;
mod extent;
mod geometry;
mod opening;
mod size;

pub use bounds::{Bounds, FlushLoss};
pub use device::{BlockDevice, Profile, Resize, Zeroing};
pub use extent::{Allocation, Extent, Extents};
pub use geometry::{BlockSizeError, Geometry, Range, RangeError, SECTOR_BYTES, SIZE_BYTES_MAX};
pub use opening::OpenOptions;
pub use size::{SizeWatch, Sizes};
