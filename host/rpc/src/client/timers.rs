//! Sleeps on the client's clock, ended by the engine's thread.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use super::shared::SharedClient;

/// A future that is ready at a time of the client's clock, or once the client has ended.
pub struct Sleep {
    shared: Arc<SharedClient>,
    until: Instant,
    id: Option<u64>,
}

#[derive(Default)]
pub(super) struct Timers {
    sleepers: BTreeMap<(Instant, u64), Waker>,
    next_id: u64,
}

impl Timers {
    /// Returns the end of the sleep that ends first, or `None` without sleeps.
    pub(super) fn next(&self) -> Option<Instant> {
        self.sleepers.keys().next().map(|(until, _)| *until)
    }

    /// Moves the wakers that are due to `wakers`.
    pub(super) fn take_due(&mut self, now: Instant, wakers: &mut Vec<Waker>) {
        while let Some(first) = self.sleepers.first_entry().filter(|first| first.key().0 <= now) {
            wakers.push(first.remove());
        }
    }

    pub(super) fn take_all(&mut self, wakers: &mut Vec<Waker>) {
        wakers.extend(std::mem::take(&mut self.sleepers).into_values());
    }
}

impl Sleep {
    pub(super) fn new(shared: Arc<SharedClient>, until: Instant) -> Self {
        Self { shared, until, id: None }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let now = this.shared.wire.now();
        let mut state = this.shared.lock();
        if now >= this.until || state.ended {
            return Poll::Ready(());
        }
        let id = *this.id.get_or_insert_with(|| {
            state.timers.next_id += 1;
            state.timers.next_id
        });
        let before = state.timers.sleepers.insert((this.until, id), context.waker().clone());
        let is_earlier = state.arm(this.until);
        drop(state);
        // The former waker is dropped outside of the lock, because it may be the last reference to a task.
        drop(before);
        if is_earlier {
            this.shared.alarm.raise();
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            let waker = self.shared.lock().timers.sleepers.remove(&(self.until, id));
            // The waker is dropped outside of the lock, because it may be the last reference to a task.
            drop(waker);
        }
    }
}
