//! A guest's FUSE client, and its disk driver, in this process: they speak to a virtio-fs or virtio-blk
//! server straight on the queues, as a guest's kernel would, with no virtual machine in between.

mod client;
mod disk;
mod work;

pub use client::{Guest, with_nul};
pub use disk::{DiskGuest, Requests as DiskRequests, Way};
pub use tombolo_vhost_driver::Wait;
pub use work::{SharedGuest, create_unlink, getattr, lookup, open_release, outstanding, read, write};
