//! What the kernel keeps of files in memory.

use std::ffi::c_void;
use std::num::NonZero;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use rustix::fs::{Advice, fadvise};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::param::page_size;

use crate::errno::{Errno, Result, check, retry};

/// Has the kernel begin to read what it does not have of a range, in bytes, and does not wait for that
/// (posix_fadvise(2)). It reads the first part of it only: as much as it reads ahead on this file system at
/// most, and 128 KiB where it reads nothing ahead (Linux, `force_page_cache_ra`).
pub fn will_need(file: BorrowedFd<'_>, offset: u64, len_bytes: NonZero<u64>) -> Result<()> {
    retry(|| fadvise(file, offset, Some(len_bytes), Advice::WillNeed))
}

/// A file of which it can be told what the kernel has. It is mapped for that, and open as long as this lives;
/// nothing is read through the mapping.
pub struct Kept {
    start: NonNull<c_void>,
    len: usize,
}

impl Kept {
    /// The first `len_bytes` of a file that is open for reading (mmap(2)). What the file has beyond its end
    /// is never here.
    pub fn of(file: BorrowedFd<'_>, len_bytes: NonZero<u64>) -> Result<Self> {
        let len = usize::try_from(len_bytes.get()).map_err(|_| Errno::OVERFLOW)?;
        let (null, flags) = (std::ptr::null_mut(), MapFlags::SHARED | MapFlags::NORESERVE);
        // SAFETY: the kernel chooses a place where nothing is.
        let start = unsafe { mmap(null, len, ProtFlags::READ, flags, file, 0) }?;
        Ok(Self { start: NonNull::new(start).ok_or(Errno::NOMEM)?, len })
    }

    /// Whether the kernel has the page of this offset, in bytes (mincore(2)): not while it is read. Of a file
    /// that is another user's, and may not be written, it says always that it has. EINVAL beyond what is
    /// mapped.
    pub fn is_here(&self, offset: u64) -> Result<bool> {
        let offset = usize::try_from(offset).ok().filter(|offset| *offset < self.len).ok_or(Errno::INVAL)?;
        let page = self.start.as_ptr().wrapping_byte_add(offset - offset % page_size());
        let mut state = 0_u8;
        // SAFETY: of one byte, which is of one page, there is one byte of an answer; the memory itself is not
        // touched.
        check(unsafe { libc::mincore(page, 1, &raw mut state) }.into())?;
        Ok(state & 1 != 0)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // SAFETY: `of` has mapped this much there, and nothing refers to it.
        let _ = unsafe { munmap(self.start.as_ptr(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn what_was_written_is_here_and_a_hole_is_not() {
        let (file, page) = (tempfile::tempfile().expect("a file"), page_size() as u64);
        file.set_len(16 << 20).expect("a hole");
        file.write_all_at(b"x", 3 * page).expect("a page");
        let kept = Kept::of(file.as_fd(), NonZero::new(16 << 20).expect("not zero")).expect("mapped");
        assert_eq!(kept.is_here(3 * page), Ok(true));
        assert_eq!(kept.is_here(4 * page - 1), Ok(true));
        assert_eq!(kept.is_here(8 << 20), Ok(false));
        assert_eq!(kept.is_here(16 << 20), Err(Errno::INVAL));
        file.set_len(0).expect("nothing is left");
        assert_eq!(kept.is_here(3 * page), Ok(false));
    }
}
