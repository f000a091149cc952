//! The id that was used last, beside the lock of the others.
//!
//! A caller with one request at a time takes the same id again and again: one exchange to take it and one to give it back, in the place
//! of a lock each (docs/decisions/shm-rings.md). To do without, delete this file and what the compiler misses then.

use std::sync::atomic::{AtomicU64, Ordering};

/// There is none.
const NONE: u64 = u64::MAX;

/// An id that is free, or none.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct IdCache(AtomicU64);

impl Default for IdCache {
    fn default() -> Self {
        Self(AtomicU64::new(NONE))
    }
}

impl IdCache {
    /// Takes it.
    #[inline]
    pub(super) fn take(&self) -> Option<u32> {
        if self.is_empty() {
            return None;
        }
        u32::try_from(self.0.swap(NONE, Ordering::SeqCst)).ok()
    }

    /// Puts an id there, if there is none. Comes before whatever is looked at afterwards, for all threads.
    #[inline]
    pub(super) fn put(&self, id: u32) -> bool {
        self.is_empty()
            && self.0.compare_exchange(NONE, id.into(), Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.load(Ordering::SeqCst) == NONE
    }
}
