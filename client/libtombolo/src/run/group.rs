//! Knowing when all that was begun has ended.

use std::future::Future;
use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

/// Counts its members; [`Group::ended`] is ready when the last is gone.
#[derive(Debug, Default)]
pub(crate) struct Group(Arc<State>);

#[derive(Debug, Default)]
struct State {
    members: AtomicUsize,
    waker: Mutex<Option<Waker>>,
}

/// One that a [`Group`] waits for, until it is dropped.
#[derive(Debug)]
pub(crate) struct Member(Arc<State>);

impl Group {
    /// One more to wait for.
    pub fn member(&self) -> Member {
        self.0.members.fetch_add(1, Ordering::Relaxed);
        Member(self.0.clone())
    }

    /// Waits until there are no members. At most one task waits at a time.
    pub fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let state = self.0.clone();
        poll_fn(move |context| {
            if state.members.load(Ordering::Acquire) == 0 {
                return Poll::Ready(());
            }
            *state.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(context.waker().clone());
            // The last may have gone before the waker was there.
            if state.members.load(Ordering::Acquire) == 0 { Poll::Ready(()) } else { Poll::Pending }
        })
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if self.0.members.fetch_sub(1, Ordering::AcqRel) == 1 {
            let waker = self.0.waker.lock().unwrap_or_else(PoisonError::into_inner).take();
            waker.into_iter().for_each(Waker::wake);
        }
    }
}
