//! Asynchronous queries.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr;

use libtombolo::Last;
use tombolo_core::fs::Attr;
use tombolo_core::{Answer, Result};

use crate::TomboloTree;
use crate::boundary::{Failure, guarded_int, path_of, tree_of};
use crate::stat::Stat;

/// Callback of [`tombolo_stat_async`], called once with its context, 0 or a negative error number, and the
/// attributes if it is 0.
pub type Callback = unsafe extern "C" fn(*mut c_void, c_int, *const Stat);

/// Flag `TOMBOLO_LSTAT`: a symbolic link at the end of the path is not followed.
const LSTAT: c_uint = 1;
/// Result `TOMBOLO_DONE`: the function itself called the callback.
const DONE: c_int = 1;
/// Result `TOMBOLO_LATER`: another thread calls the callback, or has called it already.
const LATER: c_int = 0;

/// Requests attributes and calls back; documented in the header.
///
/// # Safety
/// `tree` is null or an open tree, `path` null or a string; `callback` is null or may be called with
/// `context` once, from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_stat_async(
    tree: *const TomboloTree,
    path: *const c_char,
    flags: c_uint,
    callback: Option<Callback>,
    context: *mut c_void,
) -> c_int {
    guarded_int(|| {
        // SAFETY: null or an open tree, which is not closed before this returns.
        let tree = unsafe { tree_of(tree) }?;
        // SAFETY: null or a string, which the caller keeps until this returns.
        let path = unsafe { path_of(path) }?;
        let last = match flags {
            0 => Last::Follow,
            LSTAT => Last::Keep,
            _ => return Err(Failure::INVALID),
        };
        let function = callback.ok_or(Failure::INVALID)?;
        match tree.attr(path, last) {
            Answer::Done(result) => {
                Waiter { function, context, is_told: false }.tell(result);
                Ok(DONE)
            }
            Answer::Later(later) => {
                let waiter = Waiter { function, context, is_told: false };
                tree.waiting.spawner().spawn(async move { waiter.tell(later.await) });
                Ok(LATER)
            }
        }
    })
}

/// A pending callback, called once: with the answer, or on drop with `-ECANCELED`.
struct Waiter {
    function: Callback,
    context: *mut c_void,
    is_told: bool,
}

// SAFETY: the caller of `tombolo_stat_async`, the only place that makes one, guarantees that the function may
// be called with the context from any thread.
unsafe impl Send for Waiter {}

impl Waiter {
    fn tell(mut self, result: Result<Attr>) {
        match result {
            Ok(attr) => self.call(0, &Stat::from(&attr)),
            Err(error) => self.call(Failure::from(error).0, ptr::null()),
        }
    }

    fn call(&mut self, result: c_int, stat: *const Stat) {
        self.is_told = true;
        // SAFETY: the caller of `tombolo_stat_async` guarantees that `function` may be called once with
        // `context`; `is_told` ensures that this is the only call.
        unsafe { (self.function)(self.context, result, stat) }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if !self.is_told {
            self.call(-libc::ECANCELED, ptr::null());
        }
    }
}
