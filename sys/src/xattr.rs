//! Extended attributes, also by `O_PATH` descriptors; never through a symbolic link.
//!
//! The calls that take a descriptor refuse `O_PATH`, so paths through `/proc/self/fd` are used.

use std::os::fd::BorrowedFd;

use rustix::fs::{self as rfs, XattrFlags};

use crate::errno::{Result, retry};
use crate::open::OwnPath;

/// The precondition of setting a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetMode {
    /// None: the value is created or replaced.
    Any,
    /// The attribute does not exist; EEXIST if it does.
    Create,
    /// The attribute exists; ENODATA if it does not.
    Replace,
}

/// Reads a value into `value`. Returns its length, also for an empty buffer.
///
/// ERANGE if the buffer is too short, ENODATA if there is no such attribute.
pub fn value(fd: BorrowedFd<'_>, name: &[u8], value: &mut [u8]) -> Result<usize> {
    retry(|| rfs::getxattr(OwnPath::of(fd).as_bytes(), name, &mut *value))
}

/// Sets the value of an attribute, subject to the precondition `mode`.
pub fn set(fd: BorrowedFd<'_>, name: &[u8], value: &[u8], mode: SetMode) -> Result<()> {
    let flags = match mode {
        SetMode::Any => XattrFlags::empty(),
        SetMode::Create => XattrFlags::CREATE,
        SetMode::Replace => XattrFlags::REPLACE,
    };
    retry(|| rfs::setxattr(OwnPath::of(fd).as_bytes(), name, value, flags))
}

/// Lists the names, each terminated by NUL, in `names`. Returns their length, also for an empty buffer.
pub fn list(fd: BorrowedFd<'_>, names: &mut [u8]) -> Result<usize> {
    retry(|| rfs::listxattr(OwnPath::of(fd).as_bytes(), &mut *names))
}

/// Removes an attribute; ENODATA if it does not exist.
pub fn remove(fd: BorrowedFd<'_>, name: &[u8]) -> Result<()> {
    retry(|| rfs::removexattr(OwnPath::of(fd).as_bytes(), name))
}
