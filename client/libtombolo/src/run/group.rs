//! Completion of a group of tasks.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use event_listener::Event;

/// A count of members; [`Group::ended`] completes when the last is dropped.
#[derive(Debug, Default)]
pub(crate) struct Group(Arc<State>);

#[derive(Debug, Default)]
struct State {
    members: AtomicUsize,
    empty: Event,
}

/// Membership in a [`Group`]; [`Group::ended`] waits until it is dropped.
#[derive(Debug)]
pub(crate) struct Member(Arc<State>);

impl Group {
    /// Adds a member, for whose drop [`ended`](Self::ended) waits.
    pub fn member(&self) -> Member {
        self.0.members.fetch_add(1, Ordering::Relaxed);
        Member(self.0.clone())
    }

    /// Waits until there are no members.
    pub fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let state = self.0.clone();
        async move {
            loop {
                let empty = state.empty.listen();
                if state.members.load(Ordering::Acquire) == 0 {
                    return;
                }
                empty.await;
            }
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if self.0.members.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.empty.notify(usize::MAX);
        }
    }
}
