//! Calls that have come to their end, told once no lock is held.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

use super::call_entry::CallEntry;
use super::pending::Outcome;
use super::shared::Shared;
use smallvec::SmallVec;
use tombolo_mem::Source;

/// Calls that have come to their end, and others to wake. Only [`wake`](Self::wake) drops anything: the owner
/// of memory may do anything when it comes back.
#[derive(Default)]
pub(super) struct Finished {
    /// A sending caller finds one or two, the engine many.
    pub(super) calls: SmallVec<[(Box<CallEntry>, Outcome); 2]>,
    /// Those of them that were told, to be used again.
    told: SmallVec<[Box<CallEntry>; 2]>,
    /// Other waiters.
    pub(super) wakers: Vec<Waker>,
    /// Data of calls that ended before.
    pub(super) data: Vec<Source>,
}

impl Finished {
    /// Drops the memory of calls that have ended, and wakes the waiters.
    pub(super) fn wake(&mut self, shared: &Shared) {
        self.data.clear();
        if !self.calls.is_empty() {
            for (mut entry, outcome) in self.calls.drain(..) {
                entry.let_go();
                self.wakers.extend(entry.cell.as_ref().and_then(|cell| cell.put(outcome)));
                self.told.push(entry);
            }
            let mut state = shared.lock();
            self.told.drain(..).for_each(|entry| state.keep_entry(entry));
        }
        for waker in self.wakers.drain(..) {
            // It may go on with a task right here; if that panics, the others shall be woken all the same.
            if catch_unwind(AssertUnwindSafe(|| waker.wake())).is_err() {
                tracing::error!(callee = &*shared.label, "task panicked on its reply");
            }
        }
    }
}
