//! Progress of changes that the server defers.

use std::ffi::{c_int, c_uint};
use std::time::Duration;

use libtombolo::Reached;

use crate::TomboloTree;
use crate::boundary::{Failure, guarded_int, tree_of};

/// Progress of changes: `struct tombolo_watermarks`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watermarks {
    /// Number of the latest change.
    pub change: u64,
    /// Number of the last change up to which the server's local disk has all changes.
    pub on_disk: u64,
    /// Number of the last change up to which the origin has everything, except attributes that it refused.
    pub at_origin: u64,
}

/// Stage `TOMBOLO_ON_DISK`: the server's local disk has the changes.
const ON_DISK: c_uint = 1;
/// Stage `TOMBOLO_AT_ORIGIN`: the origin has the changes.
const AT_ORIGIN: c_uint = 2;

/// Returns the progress of changes; documented in the header.
///
/// # Safety
/// `tree` is null or an open tree; `out` is null or points to writable watermarks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_watermarks(tree: *const TomboloTree, out: *mut Watermarks) -> c_int {
    guarded_int(|| {
        // SAFETY: null or an open tree, which is not closed before this returns.
        let tree = unsafe { tree_of(tree) }?;
        if out.is_null() {
            return Err(Failure::INVALID);
        }
        let marks = tree.cached.tree().watermarks().wait()?;
        let marks = Watermarks { change: marks.change, on_disk: marks.on_disk, at_origin: marks.at_origin };
        // SAFETY: points to writable watermarks.
        unsafe { out.write(marks) };
        Ok(0)
    })
}

/// Waits until changes have reached a stage; documented in the header.
///
/// # Safety
/// `tree` is null or an open tree.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_wait(tree: *const TomboloTree, place: c_uint, timeout_ms: c_int) -> c_int {
    guarded_int(|| {
        // SAFETY: null or an open tree, which is not closed before this returns.
        let tree = unsafe { tree_of(tree) }?;
        let place = match place {
            ON_DISK => Reached::LocalDisk,
            AT_ORIGIN => Reached::Origin,
            _ => return Err(Failure::INVALID),
        };
        let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        tree.cached.tree().wait_for_changes(place, timeout)?;
        Ok(0)
    })
}
