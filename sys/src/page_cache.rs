//! The kernel's page cache of a file.

use std::ffi::c_void;
use std::num::NonZero;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use rustix::fs::{Advice, fadvise};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::param::page_size;

use crate::errno::{Errno, Result, check, retry};

/// Starts read-ahead of the uncached part of a range, in bytes, without waiting (posix_fadvise(2)). Only the
/// beginning is read: at most the larger of the file's read-ahead window and the device's transfer size,
/// which is 128 KiB for a file system without a device (Linux, `force_page_cache_ra`).
pub fn will_need(file: BorrowedFd<'_>, offset: u64, len_bytes: NonZero<u64>) -> Result<()> {
    retry(|| fadvise(file, offset, Some(len_bytes), Advice::WillNeed))
}

/// A file whose presence in the page cache can be queried, by an otherwise unused mapping. The probe keeps
/// the file open.
pub struct PageCacheProbe {
    start: NonNull<c_void>,
    len: usize,
}

impl PageCacheProbe {
    /// Maps the first `len_bytes` of a file that is open for reading (mmap(2)). Pages beyond its end are
    /// never cached.
    pub fn of(file: BorrowedFd<'_>, len_bytes: NonZero<u64>) -> Result<Self> {
        let len = usize::try_from(len_bytes.get()).map_err(|_| Errno::OVERFLOW)?;
        let (null, flags) = (std::ptr::null_mut(), MapFlags::SHARED | MapFlags::NORESERVE);
        // SAFETY: the kernel chooses an unused address.
        let start = unsafe { mmap(null, len, ProtFlags::READ, flags, file, 0) }?;
        Ok(Self { start: NonNull::new(start).ok_or(Errno::NOMEM)?, len })
    }

    /// Returns `true` if the page at this offset, in bytes, is cached and its data have arrived
    /// (mincore(2)). Always `true` for a file of another user that this process may not write. EINVAL beyond
    /// the mapping.
    pub fn is_here(&self, offset: u64) -> Result<bool> {
        let offset = usize::try_from(offset).ok().filter(|offset| *offset < self.len).ok_or(Errno::INVAL)?;
        let page = self.start.as_ptr().wrapping_byte_add(offset - offset % page_size());
        let mut state = 0_u8;
        // SAFETY: the result for one byte, i.e. one page, is one byte; the memory itself is not accessed.
        check(unsafe { libc::mincore(page, 1, &raw mut state) }.into())?;
        Ok(state & 1 != 0)
    }
}

impl Drop for PageCacheProbe {
    fn drop(&mut self) {
        // SAFETY: `of` has mapped this length there, and nothing refers to it.
        let _ = unsafe { munmap(self.start.as_ptr(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn written_pages_are_cached_and_holes_are_not() {
        let (file, page) = (tempfile::tempfile().expect("a file"), page_size() as u64);
        file.set_len(16 << 20).expect("a hole");
        file.write_all_at(b"x", 3 * page).expect("a page");
        let cached =
            PageCacheProbe::of(file.as_fd(), NonZero::new(16 << 20).expect("not zero")).expect("mapped");
        assert_eq!(cached.is_here(3 * page), Ok(true));
        assert_eq!(cached.is_here(4 * page - 1), Ok(true));
        assert_eq!(cached.is_here(8 << 20), Ok(false));
        assert_eq!(cached.is_here(16 << 20), Err(Errno::INVAL));
        file.set_len(0).expect("nothing is left");
        assert_eq!(cached.is_here(3 * page), Ok(false));
    }
}
