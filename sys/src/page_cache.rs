//! What the kernel keeps of files in memory.

use std::num::NonZero;
use std::os::fd::BorrowedFd;

use rustix::fs::{Advice, fadvise};

use crate::errno::{Result, retry};

/// Has the kernel begin to read what it does not have of a range, in bytes, and does not wait for that (posix_fadvise(2)). It reads the first part
/// of it only: as much as it reads ahead on this file system at most, and 128 KiB where it reads nothing ahead (Linux, `force_page_cache_ra`).
pub fn will_need(file: BorrowedFd<'_>, offset: u64, len_bytes: NonZero<u64>) -> Result<()> {
    retry(|| fadvise(file, offset, Some(len_bytes), Advice::WillNeed))
}
