//! A disk stored in a file of any file system of the waist: a directory of the host, or a remote tree behind
//! a cache.
//!
//! Transfers and flushes that the file system answers immediately are answered immediately, without an
//! allocation for transfers of few segments. A flush is an fsync; holes are punched and found if the file
//! system supports ranges, otherwise zeroes are written and discards have no effect.
//!
//! Non-goals: image formats; files of this host without a file system in between (`back/image-file` is
//! faster).
//!
//! Main types: [`FileDisk`], [`OpenError`].
//!
//! Reading order: `opening`, `disk` (the waist), `holes` (zeroes and holes).
#![forbid(unsafe_code)]

mod disk;
mod holes;
mod opening;

pub use disk::FileDisk;
pub use opening::OpenError;
