//! All tests, in one program.

use std::ffi::CStr;
use std::fs::File;
use std::os::fd::FromRawFd;

mod shared;
mod stranger;
mod vectors;

const PAGE: usize = 4096;

fn memfd(name: &CStr, len: usize) -> File {
    // SAFETY: the name ends in NUL.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    assert!(fd >= 0);
    // SAFETY: a new descriptor without another owner.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(len as u64).unwrap();
    file
}
