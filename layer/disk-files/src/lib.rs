//! A directory whose files are disks: what `layer/file-disk` does, the other way round. So programs that want
//! a file, such as a VMM that maps a guest's memory, have a disk of any kind.
//!
//! A file is as long as its disk. Its bytes can be read, written, made durable, and given back (fallocate(2),
//! `FALLOC_FL_PUNCH_HOLE`); nothing else of the directory or the files changes, their times neither: a kernel
//! drops what it keeps of a file whose times move, and what is mapped of it. Writes need not be of whole
//! blocks. After one that failed no fsync(2) of the file succeeds any more.
//!
//! Not here: disks that are resized while they are files.
//!
//! Main types: [`DiskFiles`].
//!
//! Reading order: `file` (bytes on a disk), `files` (the directory), `file_system` (the waist).
#![forbid(unsafe_code)]

mod file;
mod file_system;
mod files;

pub use files::DiskFiles;
