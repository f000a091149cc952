//! Those who wait for the in-flight limit.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::shared::Shared;

/// Ready when there is room below the in-flight limit.
///
/// Who has to wait is woken when a quarter of the limit is free, and after all replies of a turn were seen, so that there is
/// much to do at once. All who wait are woken: look again with [`has_room`](super::RpcClient::has_room).
pub struct Room {
    shared: Arc<Shared>,
    waits: bool,
}

impl Room {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, waits: false }
    }
}

impl Future for Room {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.shared.lock();
        let is_ready = if self.waits { state.has_much_room() } else { state.has_room() };
        if is_ready || state.ended {
            return Poll::Ready(());
        }
        if !state.room.iter().any(|waker| waker.will_wake(context.waker())) {
            state.room.push(context.waker().clone());
        }
        drop(state);
        self.waits = true;
        Poll::Pending
    }
}
