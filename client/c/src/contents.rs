//! Contents of files, links and directories.

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::TomboloTree;
use crate::boundary::{Failure, copy_out, guarded, guarded_int, path_of, tree_of};

/// Callback of [`tombolo_list`] for each entry, with its context, the entry's name, type (`DT_`) and inode
/// number. Any result but 0 ends the listing.
pub type Each = unsafe extern "C" fn(*mut c_void, *const c_char, c_uint, u64) -> c_int;

/// Distance in bits between the type in a mode and that in `DT_` (dirent.h, `IFTODT`).
const TYPE_SHIFT: u32 = 12;

/// Reads a small file; documented in the header.
///
/// # Safety
/// `tree` is null or an open tree, `path` null or a string; `buffer` is null or points to `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_read(
    tree: *const TomboloTree,
    path: *const c_char,
    buffer: *mut c_void,
    size: usize,
) -> isize {
    guarded(|| {
        // SAFETY: null or an open tree, which is not closed before this returns.
        let tree = unsafe { tree_of(tree) }?;
        // SAFETY: null or a string, which the caller keeps until this returns.
        let path = unsafe { path_of(path) }?;
        if buffer.is_null() && size > 0 {
            return Err(Failure::INVALID);
        }
        // Larger than `CacheOptions::file_bytes_max`, by default `TOMBOLO_READ_MAX`.
        let bytes = tree.cached.read(path).wait()?.ok_or(Failure(-libc::EFBIG))?;
        if size > 0 {
            // SAFETY: not null here, so points to `size` bytes of the caller.
            unsafe { copy_out(&bytes, buffer.cast(), size) };
        }
        // All of it, so that the caller sees that its buffer was too small.
        Ok(bytes.len())
    })
}

/// Reads the target of a link; documented in the header.
///
/// # Safety
/// `tree` is null or an open tree, `path` null or a string; `buffer` is null or points to `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_readlink(
    tree: *const TomboloTree,
    path: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> isize {
    guarded(|| {
        // SAFETY: null or an open tree, which is not closed before this returns.
        let tree = unsafe { tree_of(tree) }?;
        // SAFETY: null or a string, which the caller keeps until this returns.
        let path = unsafe { path_of(path) }?;
        if buffer.is_null() || size == 0 {
            return Err(Failure::INVALID);
        }
        let target = tree.cached.read_link(path).wait()?;
        // SAFETY: points to `size` bytes of the caller.
        Ok(unsafe { copy_out(&target, buffer.cast(), size) })
    })
}

/// Lists a directory; documented in the header.
///
/// # Safety
/// `tree` is null or an open tree, `path` null or a string; `each` is null or may be called with `context`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_list(
    tree: *const TomboloTree,
    path: *const c_char,
    each: Option<Each>,
    context: *mut c_void,
) -> c_int {
    guarded_int(|| {
        // SAFETY: null or an open tree, which is not closed before this returns.
        let tree = unsafe { tree_of(tree) }?;
        // SAFETY: null or a string, which the caller keeps until this returns.
        let path = unsafe { path_of(path) }?;
        let each = each.ok_or(Failure::INVALID)?;
        let entries = tree.cached.list(path).wait()?;
        let mut name = Vec::new();
        for entry in entries.iter() {
            name.clear();
            // Names of entries are not NUL-terminated.
            name.extend_from_slice(entry.name.as_name().as_bytes());
            name.push(0);
            // DT_UNKNOWN is 0.
            let kind = entry.file_type.map_or(0, |file_type| file_type.mode_bits() >> TYPE_SHIFT);
            // SAFETY: the caller guarantees that `each` may be called with `context`; `name` is
            // NUL-terminated and lives until `each` returns.
            let end = unsafe { each(context, name.as_ptr().cast(), kind, entry.fileid) };
            if end != 0 {
                return Ok(end);
            }
        }
        Ok(0)
    })
}
