//! Disks and what others make of them: the client of NBD with our server and with those of others; images of QEMU.

mod common;
mod lost;
mod model;
mod qcow2;
