//! A disk that is a file: any file of any file system of the waist, a directory of the host or a far tree
//! behind a cache.
//!
//! What the file system answers at once is answered at once, without an allocation for transfers of few
//! pieces. A flush is an fsync; holes are made and found where the file system has operations on ranges, and
//! zeroes are written where it has none.
//!
//! Not here: formats of images; files of this host without a file system between (`back/image-file` is
//! quicker).
//!
//! Main types: [`FileDisk`], [`OpenError`].
//!
//! Reading order: `opening`, `disk` (the waist), `room` (zeroes and holes).
#![forbid(unsafe_code)]

mod disk;
mod opening;
mod room;

pub use disk::FileDisk;
pub use opening::OpenError;
