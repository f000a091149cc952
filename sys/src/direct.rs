//! Direct I/O: past the page cache (open(2), O_DIRECT).

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, OFlags, StatxFlags, fcntl_getfl, fcntl_setfl, statx};

use crate::errno::{Errno, Result, retry};

/// Where the kernel does not say more (before Linux 6.1): what every disk of today takes.
const CAUTIOUS_BYTES: u32 = 4096;

/// What direct transfers have to be multiples of, in bytes: powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alignment {
    /// The address of each part of the memory.
    pub memory_bytes: u32,
    /// The place in the file, and each length.
    pub range_bytes: u32,
}

/// From now on transfers of this open file are direct. EINVAL where the file system has no such transfers.
pub fn enable(file: BorrowedFd<'_>) -> Result<Alignment> {
    let flags = fcntl_getfl(file.as_fd())?;
    retry(|| fcntl_setfl(file, flags | OFlags::DIRECT))?;
    let found = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)?;
    let is_told = found.stx_mask & StatxFlags::DIOALIGN.bits() != 0;
    let [memory_bytes, range_bytes] = match is_told {
        // statx(2): both are 0 where direct I/O is not supported for this file.
        true if found.stx_dio_offset_align == 0 => return Err(Errno::INVAL),
        true => [found.stx_dio_mem_align, found.stx_dio_offset_align],
        false => [CAUTIOUS_BYTES; 2],
    };
    let is_power = memory_bytes.is_power_of_two() && range_bytes.is_power_of_two();
    if is_power { Ok(Alignment { memory_bytes, range_bytes }) } else { Err(Errno::INVAL) }
}
