//! Waiting for a permit of the in-flight limit.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::shared::SharedClient;

/// A future that is ready when a permit is free, or the client has ended.
///
/// Waiters are woken once a quarter of the limit is free, so that a woken task can make several calls at
/// once. All waiters are woken, so each must check again with
/// [`has_permit`](super::RpcClient::has_permit).
pub struct NextPermit {
    shared: Arc<SharedClient>,
    waits: bool,
}

impl NextPermit {
    pub(super) fn new(shared: Arc<SharedClient>) -> Self {
        Self { shared, waits: false }
    }
}

impl Future for NextPermit {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.shared.lock();
        let is_ready = if self.waits { state.has_many_permits() } else { state.has_permit() };
        if is_ready || state.ended {
            return Poll::Ready(());
        }
        if !state.permit_waiters.iter().any(|waker| waker.will_wake(context.waker())) {
            state.permit_waiters.push(context.waker().clone());
        }
        drop(state);
        self.waits = true;
        Poll::Pending
    }
}
