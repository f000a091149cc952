//! Disks and what others make of them: the client of NBD with our server and with those of others; another's
//! driver of virtio-blk; images of QEMU.

mod common;
mod driver;
mod extended;
mod lost;
mod model;
mod odd_length;
mod qcow2;
mod qcow2_check;
mod tls;
