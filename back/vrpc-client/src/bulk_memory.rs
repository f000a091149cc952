//! Allocation of a link's bulk memory (shared memory for data that exceed a request's frame), and waits for
//! it.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use tombolo_core::{Interrupt, Wakers};
use tombolo_shm::area::{Area, Span};

/// Allocates `len_bytes` contiguously, waiting until that is possible. The caller ensures that the area is at
/// least as large, and that `waiters` are woken when a span is freed or the link is lost. Returns `None` if
/// the link is lost or the request interrupted before that.
pub(crate) async fn wait(
    waiters: &Wakers,
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
        waiters.add(context.waker());
        // Tried again: a span freed before the registration has not woken this waiter.
        match area.take(len_bytes) {
            Some(span) => Poll::Ready(Some(span)),
            None if is_lost() => Poll::Ready(None),
            None => Poll::Pending,
        }
    })
    .await
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
