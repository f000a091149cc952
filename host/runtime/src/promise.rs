//! A value set later, awaited by any number of futures.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use crate::lock;

/// A value that is set once and awaited by several futures.
#[derive(Debug)]
pub struct Promise<T>(Mutex<PromiseState<T>>);

#[derive(Debug)]
struct PromiseState<T> {
    value: Option<T>,
    wakers: Vec<Waker>,
}

impl<T> Default for Promise<T> {
    fn default() -> Self {
        Self(Mutex::new(PromiseState { value: None, wakers: Vec::new() }))
    }
}

impl<T: Clone> Promise<T> {
    /// Sets the value, unless it is set, and wakes the futures that wait for it, possibly polling them on
    /// this thread.
    pub fn keep(&self, value: T) {
        let wakers = {
            let mut state = lock(&self.0);
            state.value.get_or_insert(value);
            std::mem::take(&mut state.wakers)
        };
        // Wakers are called outside of the lock, because a waiter may run any code.
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Returns a future that is ready once the value is set. It may be dropped at any time.
    pub fn kept(self: Arc<Self>) -> PromiseFuture<T> {
        PromiseFuture(self)
    }
}

/// Future returned by [`Promise::kept`].
#[derive(Debug)]
pub struct PromiseFuture<T>(Arc<Promise<T>>);

impl<T: Clone> Future for PromiseFuture<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let mut state = lock(&self.0.0);
        if let Some(value) = &state.value {
            return Poll::Ready(value.clone());
        }
        if !state.wakers.iter().any(|waker| waker.will_wake(context.waker())) {
            state.wakers.push(context.waker().clone());
        }
        Poll::Pending
    }
}
