//! Permission checks by the kernel for the calling thread.

use std::os::fd::{AsRawFd, BorrowedFd};

use crate::errno::{Result, check, retry};

/// Permission to execute a file, or to search a directory.
pub const EXECUTE: u32 = 1;
/// Permission to write to a file, or to change the entries of a directory.
pub const WRITE: u32 = 2;
/// Permission to read a file, or to list a directory.
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
