//! The block waist: the contract of a disk.
//!
//! A front end (virtio-blk, NBD) calls a [`BlockDevice`]; a back end (an image file, a file of any file
//! system, a server of another host) answers it; layers (statistics, delay, faults) are a block device over a
//! block device. One value serves all its clients at once. Operations take a [`Ctx`](crate::Ctx) and return
//! an [`Answer`](crate::Answer); data is transferred from and to the client's memory, as in the file-system
//! waist.
//!
//! # Guarantees
//!
//! - Ranges are checked in one place, by the front end with [`Geometry::check`]; a back end refuses a range
//!   that ends beyond the disk and need not check anything else.
//! - Concurrent operations may take effect in any order, sector by sector: a read concurrent with a write of
//!   the same sector returns old or new data. An operation that begins after another was answered sees its
//!   effect, whichever client sent it.
//! - [`flush`](BlockDevice::flush) makes durable every write that was **answered** before it began, of all
//!   clients (as NBD's multi-conn requires). After a power loss each sector has the contents last flushed, or
//!   written since, or is torn between those.
//! - After a failed write each sector is old, new or torn. A failed flush may lose the data it covered, and
//!   no later flush recovers them: where the storage reports a loss only once (fsync(2)), all later flushes
//!   fail too ([`FlushLoss`]).

mod bounds;
mod device;
mod extent;
mod forward;
mod geometry;
mod opening;
mod size;

pub use bounds::{Bounds, FlushLoss};
pub use device::{BlockDevice, Profile, Resize, Zeroing};
pub use extent::{Allocation, Extent, Extents};
pub use geometry::{BlockSizeError, Geometry, Range, RangeError, SECTOR_BYTES, SIZE_BYTES_MAX};
pub use opening::OpenOptions;
pub use size::{SizeWatch, Sizes};
