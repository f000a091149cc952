//! Asking the kernel what the calling thread may do.

use std::os::fd::{AsRawFd, BorrowedFd};

use crate::errno::{Result, check, retry};

/// Search a directory, execute a file.
pub const EXECUTE: u32 = 1;
/// Write.
pub const WRITE: u32 = 2;
/// Read.
pub const READ: u32 = 4;

/// Whether the thread, with its present credentials, may do all of `mask` with what `fd` stands for; EACCES
/// if not.
///
/// A mask of 0 asks whether it is there, which it is. Needs Linux 5.8.
pub fn check_access(fd: BorrowedFd<'_>, mask: u32) -> Result<()> {
    retry(|| {
        // SAFETY: the path is an empty C string, and the kernel reads nothing else of ours.
        let outcome = unsafe {
            libc::syscall(
                libc::SYS_faccessat2,
                fd.as_raw_fd(),
                c"".as_ptr(),
                mask,
                libc::AT_EACCESS | libc::AT_EMPTY_PATH,
            )
        };
        check(outcome).map(drop)
    })
}
