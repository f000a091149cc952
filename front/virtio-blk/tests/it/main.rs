//! The virtio-blk device, driven over its virtqueues as a guest's kernel would, and as no kernel would.

mod device;
mod guest;
mod lies;
mod ram_disk;
