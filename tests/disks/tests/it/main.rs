//! Disks together with foreign programs: the NBD client with Tombolo's and other servers; a foreign driver of
//! virtio-blk; images of QEMU.

mod common;
mod driver;
mod extended;
mod lost;
mod model;
mod odd_length;
mod qcow2;
mod qcow2_check;
mod tls;
