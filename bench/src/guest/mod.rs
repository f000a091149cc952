//! FUSE client and disk driver of a guest in this process: they use the queues of a virtio-fs or virtio-blk
//! server directly, like a guest's kernel but without a virtual machine.

mod client;
mod disk;
mod work;

pub use client::{Guest, with_nul};
pub use disk::{DiskGuest, Requests as DiskRequests, Way};
pub use tombolo_vhost_driver::Wait;
pub use work::{SharedGuest, create_unlink, getattr, lookup, open_release, outstanding, read, write};
