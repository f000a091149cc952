//! A guest's FUSE client in this process: it speaks to a virtio-fs server straight on the queues, as a guest's kernel
//! would, with no virtual machine in between.

mod client;
mod work;

pub use client::{Guest, with_nul};
pub use tombolo_vhost_driver::Wait;
pub use work::{SharedGuest, create_unlink, getattr, lookup, open_release, outstanding, read, write};
