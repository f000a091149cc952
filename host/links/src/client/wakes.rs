//! Wakers to be woken without a lock.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

use smallvec::SmallVec;

/// Maximum number of wakers collected before the lead is released to wake them.
const WAKES: usize = 16;

/// Wakers to be called while no lock is held, because waking may run a task at once. Dropping the list also
/// calls them, because they are registered nowhere else.
#[derive(Debug, Default)]
pub(super) struct Wakes(SmallVec<[Waker; WAKES]>);

impl Wakes {
    #[inline]
    pub(super) fn push(&mut self, waker: Option<Waker>) {
        self.0.extend(waker);
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns `true` if two more may not fit: an answer's, and that of the queued request that gets its id.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.0.len() + 2 > WAKES
    }

    #[inline]
    pub(super) fn wake_all(&mut self) {
        if !self.is_empty() {
            self.0.drain(..).for_each(wake);
        }
    }
}

/// Wakes a waker, containing a panic of its task, so that other waiting tasks are not affected.
pub(super) fn wake(waker: Waker) {
    if catch_unwind(AssertUnwindSafe(|| waker.wake())).is_err() {
        tracing::error!("task panicked on its answer");
    }
}

impl Drop for Wakes {
    fn drop(&mut self) {
        self.wake_all();
    }
}
