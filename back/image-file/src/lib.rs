//! Disks stored in files of this host: raw images, block devices, and qcow2 images with their backing files.
//!
//! Transfers of at most 1 MiB between a raw image and the page cache run on the calling thread while they are
//! quick; operations that wait for a disk, and most of qcow2 images, go to a pool. A raw image can be used
//! past the page cache, through io_uring. Holes are preserved, and discarded space is freed if the file
//! system can. By default the file is locked as QEMU locks its images, so that neither opens an image that
//! the other writes.
//!
//! Non-goals: guessing the format (the guest controls the contents, and must not choose it); files of other
//! file systems than the host's.
//!
//! Main types: [`ImageFile`], [`Qcow2Image`].
//!
//! Reading order: `opening`, `claim` (the locks), `image` (the block device), `transfer`, `direct`, `holes`;
//! `qcow2`.
#![forbid(unsafe_code)]

mod claim;
mod direct;
mod holes;
mod image;
mod opening;
mod qcow2;
mod transfer;

pub use image::ImageFile;
pub use opening::{LinkPolicy, Locked, OpenError, lock_open_image};
pub use qcow2::{ChainLink, Checked, Damage, Qcow2Image, Qcow2OpenError, Unsupported};
