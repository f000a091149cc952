//! Trees: how they are opened and closed, and what they count.

use std::ffi::{CStr, c_char, c_int};

use libtombolo::{CacheOptions, CachedTree, ThreadPool};

use crate::boundary::{Failure, guarded_int, path_of, tree_of};
use crate::connect;

/// A tree as C knows it: a pointer to something.
#[derive(Debug)]
pub struct TomboloTree {
    /// One thread. Dropped first: what it waits for is given up, and each callback told.
    pub(crate) waiting: ThreadPool,
    pub(crate) cached: CachedTree,
}

/// `struct tombolo_counts`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Questions that were answered by what is remembered.
    pub from_memory: u64,
    /// Questions that were not.
    pub asked: u64,
    /// Requests that were sent for those.
    pub requests: u64,
}

const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => panic!("a version with a zero in it"),
};

/// Opens a tree: see the header.
///
/// # Safety
/// `socket` and `export_name` are null or strings; `tree` is null or leads to room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_open(
    socket: *const c_char,
    export_name: *const c_char,
    tree: *mut *mut TomboloTree,
) -> c_int {
    guarded_int(|| {
        if tree.is_null() {
            return Err(Failure::INVALID);
        }
        // SAFETY: it leads to room for a pointer.
        unsafe { tree.write(std::ptr::null_mut()) };
        // SAFETY: null or a string, which the caller keeps until this returns.
        let socket = unsafe { path_of(socket) }?;
        let name = match export_name.is_null() {
            true => return Err(Failure::INVALID),
            // SAFETY: it is no null, so a string, which the caller keeps until this returns.
            false => unsafe { CStr::from_ptr(export_name) }.to_bytes(),
        };
        let cached = CachedTree::new(connect::attach(socket, name)?, CacheOptions::default());
        let waiting = ThreadPool::start(1).map_err(|error| connect::system(&error))?;
        let opened = Box::into_raw(Box::new(TomboloTree { waiting, cached }));
        // SAFETY: it leads to room for a pointer.
        unsafe { tree.write(opened) };
        Ok(0)
    })
}

/// Closes a tree: see the header.
///
/// # Safety
/// `tree` is null or was given by [`tombolo_open`], was not closed, and no function is in it or called with
/// it from now on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_close(tree: *mut TomboloTree) {
    guarded_int(|| {
        if !tree.is_null() {
            // SAFETY: the box that `tombolo_open` gave away, which nothing uses any more.
            drop(unsafe { Box::from_raw(tree) });
        }
        Ok(0)
    });
}

/// How questions were answered so far: see the header.
///
/// # Safety
/// `tree` is null or an open tree; `counts` is null or leads to room for them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_counts(tree: *const TomboloTree, counts: *mut Counts) -> c_int {
    guarded_int(|| {
        // SAFETY: null or an open tree, which is not closed before this returns.
        let tree = unsafe { tree_of(tree) }?;
        if counts.is_null() {
            return Err(Failure::INVALID);
        }
        let libtombolo::Counts { from_memory, asked, requests } = tree.cached.counts();
        // SAFETY: it leads to room for them.
        unsafe { counts.write(Counts { from_memory, asked, requests }) };
        Ok(0)
    })
}

/// The library's version: see the header.
#[unsafe(no_mangle)]
pub extern "C" fn tombolo_version() -> *const c_char {
    VERSION.as_ptr()
}
