use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::outcome::Outcome;

/// The reply of an operation under way, awaited by its duplicates. Made when the first of them comes.
#[derive(Debug, Default)]
pub(super) struct PendingReply(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    outcome: Option<Outcome>,
    wakers: Vec<Waker>,
}

impl PendingReply {
    /// Wakes all futures of the outcome.
    pub fn complete(&self, outcome: Outcome) {
        let wakers = {
            let mut state = self.state();
            state.outcome = Some(outcome);
            std::mem::take(&mut state.wakers)
        };
        // Outside of the lock: a waker may run anything.
        wakers.into_iter().for_each(Waker::wake);
    }

    /// A future of the outcome.
    pub fn completed(self: Arc<Self>) -> Completed {
        Completed(self)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See [`PendingReply::completed`].
#[derive(Debug)]
pub(super) struct Completed(Arc<PendingReply>);

impl Future for Completed {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let mut state = self.0.state();
        if let Some(outcome) = &state.outcome {
            return Poll::Ready(outcome.clone());
        }
        if !state.wakers.iter().any(|waker| waker.will_wake(context.waker())) {
            state.wakers.push(context.waker().clone());
        }
        Poll::Pending
    }
}
