//! A disk that is a file of this host: a raw image, a block device, or a qcow2 image with those that it
//! stands on.
//!
//! What the host has in memory is read and written at once, on the thread that asks; what waits for a disk
//! goes to a pool. A raw image can be used past the host's page cache, through io_uring. Holes are kept,
//! discarded room is given back. The file is locked as QEMU locks its images, so that neither opens what the
//! other writes to.
//!
//! Not here: guesses at the format (what a guest writes is not to choose it); files of other file systems
//! than the host's.
//!
//! Main types: [`ImageFile`], [`Qcow2Image`].
//!
//! Reading order: `opening`, `claim` (the locks), `image` (the waist), `transfer`, `direct`, `room` (holes);
//! `qcow2`.
#![forbid(unsafe_code)]

mod claim;
mod direct;
mod image;
mod opening;
mod qcow2;
mod room;
mod transfer;

pub use image::ImageFile;
pub use opening::{Locked, OpenError, Way, claim_open};
pub use qcow2::{ChainLink, Checked, Damage, Qcow2Image, Qcow2OpenError, Unsupported};
