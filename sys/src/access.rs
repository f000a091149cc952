//! Permission checks by the kernel for the calling thread.

use std::os::fd::{AsRawFd, BorrowedFd};

use crate::errno::{Result, check, retry};

/// Execute a file, or search a directory.
pub const EXECUTE: u32 = 1;
/// Write to a file, or change the entries of a directory.
pub const WRITE: u32 = 2;
/// Read a file, or list a directory.
pub const READ: u32 = 4;

/// Succeeds if the thread, with its current credentials, has all of `mask` on the object of `fd`; otherwise
/// fails, mostly with EACCES; with EROFS for [`WRITE`] on a read-only file system.
///
/// A mask of 0 checks for existence, which always succeeds. Needs Linux 5.8.
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
