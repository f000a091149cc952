//! How arguments come in from C, and how errors go out.

use std::ffi::{c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;

use tombolo_core::Error;
use tombolo_wire_fuse::status::to_errno;

use crate::TomboloTree;

/// A negative error number, as Linux's system calls return them.
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

/// Longest path, in bytes, with the zero at its end.
const PATH_MAX: usize = libc::PATH_MAX as usize;

/// What `call` returns, or a negative error number; `-EIO` if it panics.
#[inline]
pub(crate) fn guarded(call: impl FnOnce() -> Result<usize, Failure>) -> isize {
    // What a panic leaves behind is guarded by locks that bear it.
    match catch_unwind(AssertUnwindSafe(call)).unwrap_or(Err(Failure::BROKEN)) {
        Ok(value) => isize::try_from(value).unwrap_or(isize::MAX),
        Err(Failure(number)) => number as isize,
    }
}

/// As [`guarded`], for functions whose values are small.
#[inline]
pub(crate) fn guarded_int(call: impl FnOnce() -> Result<c_int, Failure>) -> c_int {
    match catch_unwind(AssertUnwindSafe(call)).unwrap_or(Err(Failure::BROKEN)) {
        Ok(value) => value,
        Err(Failure(number)) => number,
    }
}

/// The tree that a program names.
///
/// # Safety
/// `tree` is null or was given by `tombolo_open`, and is not closed before the reference is gone.
#[inline]
pub(crate) unsafe fn tree_of<'t>(tree: *const TomboloTree) -> Result<&'t TomboloTree, Failure> {
    // SAFETY: null is told apart by `as_ref`; otherwise it is the box that `tombolo_open` gave away, which
    // the caller keeps.
    unsafe { tree.as_ref() }.ok_or(Failure::INVALID)
}

/// The bytes of a path, which must be neither empty nor longer than the kernel takes them.
///
/// # Safety
/// `path` is null or leads to bytes with a zero among them, which are not changed before the slice is gone.
#[inline]
pub(crate) unsafe fn path_of<'p>(path: *const c_char) -> Result<&'p [u8], Failure> {
    if path.is_null() {
        return Err(Failure::INVALID);
    }
    // SAFETY: nothing is read behind the zero, which the caller promises, nor behind PATH_MAX bytes.
    match unsafe { libc::strnlen(path, PATH_MAX) } {
        0 => Err(Failure(-libc::ENOENT)),
        PATH_MAX => Err(Failure(-libc::ENAMETOOLONG)),
        // SAFETY: so many bytes were read just now, and the caller keeps them as they are.
        length => Ok(unsafe { slice::from_raw_parts(path.cast(), length) }),
    }
}

/// Copies as much as there is room for.
///
/// # Safety
/// `buffer` leads to `size` bytes that nothing else refers to meanwhile.
pub(crate) unsafe fn copy_out(bytes: &[u8], buffer: *mut u8, size: usize) -> usize {
    let count = bytes.len().min(size);
    // SAFETY: `count` is no more than either has; memory of the caller and of ours do not overlap.
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
