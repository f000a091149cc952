//! Trees: opening, closing and counters.

use std::ffi::{CStr, c_char, c_int};

use libtombolo::{CacheOptions, CachedTree, ThreadPool};

use crate::boundary::{Failure, guarded_int, path_of, tree_of};
use crate::connect;

/// A tree, opaque to C.
#[derive(Debug)]
pub struct TomboloTree {
    /// Thread that runs asynchronous calls. Dropped first: its tasks are cancelled, and each of their
    /// callbacks is called.
    pub(crate) waiting: ThreadPool,
    pub(crate) cached: CachedTree,
}

/// Counts of how queries were answered: `struct tombolo_counts`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Queries answered from the cache.
    pub from_memory: u64,
    /// All other queries, most of which were sent to the server.
    pub asked: u64,
    /// Requests sent for the queries in `asked`.
    pub requests: u64,
}

const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => panic!("a version with a zero in it"),
};

/// Opens a tree; documented in the header.
///
/// # Safety
/// `place` and `export_name` are null or strings; `tree` is null or points to a writable pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_open(
    place: *const c_char,
    export_name: *const c_char,
    tree: *mut *mut TomboloTree,
) -> c_int {
    guarded_int(|| {
        if tree.is_null() {
            return Err(Failure::INVALID);
        }
        // SAFETY: points to a writable pointer.
        unsafe { tree.write(std::ptr::null_mut()) };
        // SAFETY: null or a string, which the caller keeps until this returns.
        let place = unsafe { path_of(place) }?;
        let name = match export_name.is_null() {
            true => return Err(Failure::INVALID),
            // SAFETY: not null, so a string, which the caller keeps until this returns.
            false => unsafe { CStr::from_ptr(export_name) }.to_bytes(),
        };
        let cached = CachedTree::new(connect::attach(place, name)?, CacheOptions::default());
        let waiting = ThreadPool::start(1).map_err(|error| connect::system(&error))?;
        let opened = Box::into_raw(Box::new(TomboloTree { waiting, cached }));
        // SAFETY: points to a writable pointer.
        unsafe { tree.write(opened) };
        Ok(0)
    })
}

/// Closes a tree; documented in the header.
///
/// # Safety
/// `tree` is null or was returned by [`tombolo_open`] and is not closed yet; no function is using it or is
/// called with it from now on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_close(tree: *mut TomboloTree) {
    guarded_int(|| {
        if !tree.is_null() {
            // SAFETY: the box that `tombolo_open` returned, which nothing uses any more.
            drop(unsafe { Box::from_raw(tree) });
        }
        Ok(0)
    });
}

/// Returns how queries were answered so far; documented in the header.
///
/// # Safety
/// `tree` is null or an open tree; `counts` is null or points to writable counters.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_counts(tree: *const TomboloTree, counts: *mut Counts) -> c_int {
    guarded_int(|| {
        // SAFETY: null or an open tree, which is not closed before this returns.
        let tree = unsafe { tree_of(tree) }?;
        if counts.is_null() {
            return Err(Failure::INVALID);
        }
        let libtombolo::Counts { from_memory, asked, requests } = tree.cached.counts();
        // SAFETY: points to writable counters.
        unsafe { counts.write(Counts { from_memory, asked, requests }) };
        Ok(0)
    })
}

/// Returns the library's version; documented in the header.
#[unsafe(no_mangle)]
pub extern "C" fn tombolo_version() -> *const c_char {
    VERSION.as_ptr()
}
