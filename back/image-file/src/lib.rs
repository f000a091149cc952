//! A disk that is a file of this host: a raw image, or a block device.
//!
//! What the host has in memory is read and written at once, on the thread that asks; what waits for a disk goes to a pool. Holes are kept,
//! discarded room is given back. The file is locked as QEMU locks its images, so that neither opens what the other writes to.
//!
//! Not here: other formats of images; files of other file systems than the host's.
//!
//! Main types: [`ImageFile`], [`OpenError`].
//!
//! Reading order: `opening`, `claim` (the locks), `image` (the waist), `transfer`, `room` (holes).
#![forbid(unsafe_code)]

mod claim;
mod image;
mod opening;
mod room;
mod transfer;

pub use image::ImageFile;
pub use opening::OpenError;
