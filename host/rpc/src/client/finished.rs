//! Delivery of outcomes while no lock is held.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

use super::call_entry::CallEntry;
use super::pending::Outcome;
use super::shared::SharedClient;
use smallvec::SmallVec;
use tombolo_mem::Source;

/// Ended calls, and other waiters to wake. Memory of calls is dropped in [`wake`](Self::wake) only, with no
/// lock held, as its destructor may run any code.
#[derive(Default)]
pub(super) struct Finished {
    /// Ended calls: one or two for a sending caller, many for the receiver thread.
    pub(super) calls: SmallVec<[(Box<CallEntry>, Outcome); 2]>,
    /// Entries to be returned for reuse.
    delivered: SmallVec<[Box<CallEntry>; 2]>,
    /// Wakers of tasks that wait for a call, a permit or a timer.
    pub(super) wakers: Vec<Waker>,
    /// Data of calls that had ended before their sending finished.
    pub(super) data: Vec<Source>,
}

impl Finished {
    /// Drops the memory of ended calls, and wakes the waiters.
    pub(super) fn wake(&mut self, shared: &SharedClient) {
        self.data.clear();
        if !self.calls.is_empty() {
            for (mut entry, outcome) in self.calls.drain(..) {
                entry.release_resources();
                self.wakers.extend(entry.cell.as_ref().and_then(|cell| cell.put(outcome)));
                self.delivered.push(entry);
            }
            let mut state = shared.lock();
            self.delivered.drain(..).for_each(|entry| state.keep_entry(entry));
        }
        for waker in self.wakers.drain(..) {
            // A wake-up may run a task on this thread; if that task panics, the other tasks must be woken
            // nevertheless.
            if catch_unwind(AssertUnwindSafe(|| waker.wake())).is_err() {
                tracing::error!(callee = &*shared.label, "task panicked on its reply");
            }
        }
    }
}
