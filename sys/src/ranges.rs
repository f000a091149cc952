//! File ranges: allocation, holes and data, copies within the kernel.

use std::os::fd::BorrowedFd;

use rustix::fs::{self as rfs, SeekFrom};

/// Modes of `fallocate` (`FALLOC_FL_*`).
pub use rustix::fs::FallocateFlags as AllocateMode;

use crate::errno::{Result, retry};

/// Allocates, punches, zeroes, collapses or inserts a range, according to `mode`. May block on disk I/O.
pub fn allocate(fd: BorrowedFd<'_>, mode: AllocateMode, offset: u64, len: u64) -> Result<()> {
    retry(|| rfs::fallocate(fd, mode, offset, len))
}

/// Returns the offset of the next data at or after `offset`; ENXIO if there are none.
pub fn next_data(fd: BorrowedFd<'_>, offset: u64) -> Result<u64> {
    rfs::seek(fd, SeekFrom::Data(offset))
}

/// Returns the offset of the next hole at or after `offset`, the end of the file at the latest; ENXIO if
/// `offset` is the end or beyond.
pub fn next_hole(fd: BorrowedFd<'_>, offset: u64) -> Result<u64> {
    rfs::seek(fd, SeekFrom::Hole(offset))
}

/// Copies up to `len` bytes from one file to another, possibly by sharing blocks. Returns the number of
/// bytes.
pub fn copy(from: BorrowedFd<'_>, at: u64, to: BorrowedFd<'_>, to_at: u64, len: usize) -> Result<usize> {
    let (mut at, mut to_at) = (at, to_at);
    retry(|| rfs::copy_file_range(from, Some(&mut at), to, Some(&mut to_at), len))
}
