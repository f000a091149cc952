//! The order of quiet writes (docs/protocols/vrpc.md, "Quiet requests"): the link's thread takes no further
//! request while a quiet write is performed.
//!
//! Only that link waits. Heartbeats, other links and the link's pending requests run on other threads, and
//! the end of the link ends the wait.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use tombolo_core::lock;

/// The turn of one link's quiet writes: taken by a write from its start to its reply.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    state: Mutex<TurnState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct TurnState {
    is_taken: bool,
    has_ended: bool,
}

/// A turn that lasts until this is dropped, on any thread.
#[derive(Debug)]
pub(crate) struct TurnGuard(Arc<Turn>);

impl Turn {
    /// Takes the turn for the request that the link's thread is starting.
    pub(crate) fn take(self: &Arc<Self>) -> TurnGuard {
        lock(&self.state).is_taken = true;
        TurnGuard(self.clone())
    }

    /// Waits on the link's thread until the turn is over or the link has ended.
    pub(crate) fn wait(&self) {
        let mut state = lock(&self.state);
        while state.is_taken && !state.has_ended {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends the present wait and all later ones, because the link has ended.
    pub(crate) fn end(&self) {
        lock(&self.state).has_ended = true;
        self.changed.notify_all();
    }
}

impl Drop for TurnGuard {
    fn drop(&mut self) {
        lock(&self.0.state).is_taken = false;
        self.0.changed.notify_all();
    }
}
