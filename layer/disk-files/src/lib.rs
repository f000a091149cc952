//! A directory whose files are disks, the inverse of `layer/file-disk`. Programs that need a file, such as a
//! VMM that maps a guest's memory, can use any kind of disk.
//!
//! A file has its disk's size. Its bytes can be read, written, synced, zeroed and freed (fallocate(2),
//! `FALLOC_FL_PUNCH_HOLE`). Names and attributes cannot be changed; times stay the same after writes, because
//! a kernel drops its cache and mappings of a file whose times change. Writes need not be aligned.
//! After a failed write every fsync(2) of the file fails. A failure to free space is reported to its caller
//! only.
//!
//! Non-goals: resizing disks while they are files.
//!
//! Main types: [`DiskFiles`].
//!
//! Reading order: `file` (bytes on a disk), `files` (the directory), `file_system` (the waist).
#![forbid(unsafe_code)]

mod file;
mod file_system;
mod files;

pub use files::DiskFiles;
