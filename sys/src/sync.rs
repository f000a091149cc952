//! Making writes durable. All of these wait for a disk.

use std::os::fd::BorrowedFd;

use crate::errno::{Result, retry};

/// Content and attributes of one file.
pub fn file(fd: BorrowedFd<'_>) -> Result<()> {
    retry(|| rustix::fs::fsync(fd))
}

/// Content, and the attributes that it takes to read it back.
pub fn data(fd: BorrowedFd<'_>) -> Result<()> {
    retry(|| rustix::fs::fdatasync(fd))
}

/// The whole file system in which `fd` lies. It must be open, not a place.
pub fn file_system(fd: BorrowedFd<'_>) -> Result<()> {
    retry(|| rustix::fs::syncfs(fd))
}
