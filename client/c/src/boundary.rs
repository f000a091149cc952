//! Conversion of arguments from C and of errors to C.

use std::ffi::{c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;

use tombolo_core::Error;
use tombolo_wire_fuse::status::to_errno;

use crate::TomboloTree;

/// A negative error number, as in Linux's system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure(pub c_int);

impl Failure {
    pub const INVALID: Self = Self(-libc::EINVAL);
    pub const BROKEN: Self = Self(-libc::EIO);
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self(to_errno(&error).to_wire())
    }
}

/// Maximum length of a path in bytes, including the terminating zero.
const PATH_MAX: usize = libc::PATH_MAX as usize;

/// Returns the result of `call`, or a negative error number; `-EIO` if it panics.
#[inline]
pub(crate) fn guarded(call: impl FnOnce() -> Result<usize, Failure>) -> isize {
    // All state that a panic leaves behind is in locks that tolerate poisoning.
    match catch_unwind(AssertUnwindSafe(call)).unwrap_or(Err(Failure::BROKEN)) {
        Ok(value) => isize::try_from(value).unwrap_or(isize::MAX),
        Err(Failure(number)) => number as isize,
    }
}

/// Returns the same as [`guarded`] as a `c_int`, for functions that return no length.
#[inline]
pub(crate) fn guarded_int(call: impl FnOnce() -> Result<c_int, Failure>) -> c_int {
    match catch_unwind(AssertUnwindSafe(call)).unwrap_or(Err(Failure::BROKEN)) {
        Ok(value) => value,
        Err(Failure(number)) => number,
    }
}

/// Returns the tree of a handle.
///
/// # Safety
/// `tree` is null or was returned by `tombolo_open`, and is not closed while the reference lives.
#[inline]
pub(crate) unsafe fn tree_of<'t>(tree: *const TomboloTree) -> Result<&'t TomboloTree, Failure> {
    // SAFETY: `as_ref` handles null; otherwise it is the box that `tombolo_open` returned, which the caller
    // keeps open.
    unsafe { tree.as_ref() }.ok_or(Failure::INVALID)
}

/// Returns the bytes of a path; fails with `ENOENT` if it is empty, and with `ENAMETOOLONG` if it is longer
/// than `PATH_MAX` with its terminating zero.
///
/// # Safety
/// `path` is null or points to a zero-terminated string, unchanged while the slice lives.
#[inline]
pub(crate) unsafe fn path_of<'p>(path: *const c_char) -> Result<&'p [u8], Failure> {
    if path.is_null() {
        return Err(Failure::INVALID);
    }
    // SAFETY: reads at most up to the zero that the caller guarantees, and at most PATH_MAX bytes.
    match unsafe { libc::strnlen(path, PATH_MAX) } {
        0 => Err(Failure(-libc::ENOENT)),
        PATH_MAX => Err(Failure(-libc::ENAMETOOLONG)),
        // SAFETY: these bytes were just read, and the caller leaves them unchanged.
        length => Ok(unsafe { slice::from_raw_parts(path.cast(), length) }),
    }
}

/// Copies as much as the buffer holds and returns the count.
///
/// # Safety
/// `buffer` points to `size` bytes that nothing else refers to meanwhile.
pub(crate) unsafe fn copy_out(bytes: &[u8], buffer: *mut u8, size: usize) -> usize {
    let count = bytes.len().min(size);
    // SAFETY: `count` is within both, and memory of the caller and of the library do not overlap.
    unsafe { buffer.copy_from_nonoverlapping(bytes.as_ptr(), count) };
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_io_error() {
        assert_eq!(guarded_int(|| panic!("planned")), -libc::EIO);
        assert_eq!(guarded(|| panic!("planned")), -libc::EIO as isize);
    }
}
