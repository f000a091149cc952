//! Allocation of the link's bulk memory, and waits for it.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};

use tombolo_core::{Interrupt, lock};
use tombolo_shm::area::{Area, Span};

/// Waiters for bulk memory. [`changed`](Self::changed) must be called when a span is freed or the link is
/// lost.
#[derive(Debug, Default)]
pub(crate) struct BulkWaiters {
    waiters: Mutex<Vec<Waker>>,
    is_waited: AtomicBool,
}

impl BulkWaiters {
    /// Allocates `len_bytes` contiguously, waiting until that is possible. The caller ensures that the area
    /// is at least as large. Returns `None` if the link is lost or the request interrupted before that.
    pub(crate) async fn wait(
        &self,
        area: &Area,
        len_bytes: u64,
        is_lost: impl Fn() -> bool,
        interrupt: &Interrupt,
    ) -> Option<Span> {
        let mut raised = pin!(interrupt.raised());
        poll_fn(|context| {
            if let Some(span) = area.take(len_bytes) {
                return Poll::Ready(Some(span));
            }
            if interrupt.can_be_raised() && raised.as_mut().poll(context).is_ready() {
                return Poll::Ready(None);
            }
            {
                let mut waiters = lock(&self.waiters);
                if !waiters.iter().any(|waker| waker.will_wake(context.waker())) {
                    waiters.push(context.waker().clone());
                }
                self.is_waited.store(true, Ordering::SeqCst);
            }
            // A span freed before the registration has not woken this waiter.
            match area.take(len_bytes) {
                Some(span) => Poll::Ready(Some(span)),
                None if is_lost() => Poll::Ready(None),
                None => Poll::Pending,
            }
        })
        .await
    }

    /// Wakes the waiters: a span may have been freed, or the link was lost.
    pub(crate) fn changed(&self) {
        if self.is_waited.load(Ordering::SeqCst) {
            let waiters = {
                let mut waiters = lock(&self.waiters);
                self.is_waited.store(false, Ordering::SeqCst);
                std::mem::take(&mut *waiters)
            };
            waiters.into_iter().for_each(Waker::wake);
        }
    }
}

/// Allocates a span of `len_bytes`, or if none is available now, of half of it, a quarter and so on, but not
/// less than `least_bytes`.
pub(crate) fn largest(area: &Area, len_bytes: usize, least_bytes: usize) -> Option<Span> {
    let mut len = len_bytes;
    loop {
        if let Some(span) = area.take(len as u64) {
            return Some(span);
        }
        len /= 2;
        if len < least_bytes {
            return None;
        }
    }
}
