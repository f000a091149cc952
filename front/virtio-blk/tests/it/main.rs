//! The virtio-blk device, driven over its virtqueues by well-behaved and by malicious guests.

mod device;
mod guest;
mod lies;
mod ram_disk;
