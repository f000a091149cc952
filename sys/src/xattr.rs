//! Extended attributes, on places (`O_PATH`) too, and on the link itself where the place is one.
//!
//! The calls that take a descriptor refuse a place, so the path goes through `/proc/self/fd`.

use std::os::fd::BorrowedFd;

use rustix::fs::{self as rfs, XattrFlags};

use crate::errno::{Result, retry};
use crate::open::OwnPath;

/// What must be true for a value to be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetMode {
    /// Make or replace.
    Any,
    /// EEXIST if it is there.
    Create,
    /// ENODATA if it is not.
    Replace,
}

/// Reads a value into `value`; returns its length. With an empty buffer, only the length.
///
/// ERANGE if the buffer is too short, ENODATA if there is no such attribute.
pub fn value(fd: BorrowedFd<'_>, name: &[u8], value: &mut [u8]) -> Result<usize> {
    retry(|| rfs::getxattr(OwnPath::of(fd).as_bytes(), name, &mut *value))
}

/// Sets a value.
pub fn set(fd: BorrowedFd<'_>, name: &[u8], value: &[u8], mode: SetMode) -> Result<()> {
    let flags = match mode {
        SetMode::Any => XattrFlags::empty(),
        SetMode::Create => XattrFlags::CREATE,
        SetMode::Replace => XattrFlags::REPLACE,
    };
    retry(|| rfs::setxattr(OwnPath::of(fd).as_bytes(), name, value, flags))
}

/// Lists the names, each ended by NUL, into `names`; returns the length. With an empty buffer, only the
/// length.
pub fn list(fd: BorrowedFd<'_>, names: &mut [u8]) -> Result<usize> {
    retry(|| rfs::listxattr(OwnPath::of(fd).as_bytes(), &mut *names))
}

/// Takes an attribute away.
pub fn remove(fd: BorrowedFd<'_>, name: &[u8]) -> Result<()> {
    retry(|| rfs::removexattr(OwnPath::of(fd).as_bytes(), name))
}
