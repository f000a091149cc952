//! Synchronisation to stable storage. All functions block on disk I/O.

use std::os::fd::BorrowedFd;

use crate::errno::{Result, retry};

/// Synchronises data and attributes of one file or directory.
pub fn file(fd: BorrowedFd<'_>) -> Result<()> {
    retry(|| rustix::fs::fsync(fd))
}

/// Synchronises the data, and the attributes needed to read them.
pub fn data(fd: BorrowedFd<'_>) -> Result<()> {
    retry(|| rustix::fs::fdatasync(fd))
}

/// Synchronises the whole file system of `fd`, which must not be opened with `O_PATH`.
pub fn file_system(fd: BorrowedFd<'_>) -> Result<()> {
    retry(|| rustix::fs::syncfs(fd))
}
