//! Parts of files: allocate, find holes and data, copy within the kernel.

use std::os::fd::BorrowedFd;

use rustix::fs::{self as rfs, SeekFrom};

/// What `fallocate` does with a range (`FALLOC_FL_*`).
pub use rustix::fs::FallocateFlags as AllocateMode;

use crate::errno::{Result, retry};

/// Allocates, punches, zeroes, collapses or inserts a range, as `mode` says. May wait for a disk.
pub fn allocate(fd: BorrowedFd<'_>, mode: AllocateMode, offset: u64, len: u64) -> Result<()> {
    retry(|| rfs::fallocate(fd, mode, offset, len))
}

/// The next byte at or after `offset` that holds data; ENXIO when there is none.
pub fn next_data(fd: BorrowedFd<'_>, offset: u64) -> Result<u64> {
    rfs::seek(fd, SeekFrom::Data(offset))
}

/// The next byte at or after `offset` in a hole, the end of the file at the latest; ENXIO beyond it.
pub fn next_hole(fd: BorrowedFd<'_>, offset: u64) -> Result<u64> {
    rfs::seek(fd, SeekFrom::Hole(offset))
}

/// Copies up to `len` bytes from one file into another; returns how many. May share blocks instead.
pub fn copy(from: BorrowedFd<'_>, at: u64, to: BorrowedFd<'_>, to_at: u64, len: usize) -> Result<usize> {
    let (mut at, mut to_at) = (at, to_at);
    retry(|| rfs::copy_file_range(from, Some(&mut at), to, Some(&mut to_at), len))
}
