//! Wakers that are woken once no lock is held any more.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

use smallvec::SmallVec;

/// So many are woken at a time.
const WAKES: usize = 16;

/// Wakers that are woken once no lock is held: waking may run a task at once. Dropping this wakes them too,
/// since they are registered nowhere else any more.
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

    /// Whether the wakers of another answer, two at most, have no space.
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

/// Wakes one, which may run a task. If that panics, the other waiting tasks are not to suffer.
pub(super) fn wake(waker: Waker) {
    if catch_unwind(AssertUnwindSafe(|| waker.wake())).is_err() {
        tracing::error!("a task that was woken by an answer panicked");
    }
}

impl Drop for Wakes {
    fn drop(&mut self) {
        self.wake_all();
    }
}
