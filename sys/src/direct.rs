//! Direct I/O, bypassing the page cache (open(2), O_DIRECT).

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, OFlags, StatxFlags, fcntl_getfl, fcntl_setfl, statx};

use crate::errno::{Errno, Result, retry};

/// Alignment where the kernel does not report it (before Linux 6.1): sufficient for current disks.
const CAUTIOUS_BYTES: u32 = 4096;

/// Alignment requirements of direct I/O, in bytes: powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alignment {
    /// Alignment of the address of each segment.
    pub memory_bytes: u32,
    /// Alignment of the file offset, and of each length.
    pub range_bytes: u32,
}

/// Makes all further transfers of this open file direct, and returns the alignment that they require. EINVAL
/// where the file system does not support it.
pub fn enable(file: BorrowedFd<'_>) -> Result<Alignment> {
    let flags = fcntl_getfl(file.as_fd())?;
    retry(|| fcntl_setfl(file, flags | OFlags::DIRECT))?;
    let found = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)?;
    let is_reported = found.stx_mask & StatxFlags::DIOALIGN.bits() != 0;
    let [memory_bytes, range_bytes] = match is_reported {
        // statx(2): both are 0 where direct I/O is not supported for this file.
        true if found.stx_dio_offset_align == 0 => return Err(Errno::INVAL),
        true => [found.stx_dio_mem_align, found.stx_dio_offset_align],
        false => [CAUTIOUS_BYTES; 2],
    };
    let is_power = memory_bytes.is_power_of_two() && range_bytes.is_power_of_two();
    if is_power { Ok(Alignment { memory_bytes, range_bytes }) } else { Err(Errno::INVAL) }
}
