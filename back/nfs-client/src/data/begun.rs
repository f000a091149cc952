//! A call that is sent before anybody waits for it.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// A future that was polled once when it was made, on the thread that made it: its call is on the wire, or in the queue for it,
/// whatever else that thread is about.
pub(super) enum Begun<T> {
    UnderWay(Pin<Box<dyn Future<Output = T> + Send>>),
    /// It was done at once; nothing once that was told.
    Done(Option<T>),
}

impl<T> Begun<T> {
    pub(super) fn new(call: impl Future<Output = T> + Send + 'static) -> Self {
        let mut call: Pin<Box<dyn Future<Output = T> + Send>> = Box::pin(call);
        // Whoever waits for it polls it again, and is woken.
        match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => Self::Done(Some(result)),
            Poll::Pending => Self::UnderWay(call),
        }
    }
}

impl<T: Unpin> Future for Begun<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        match &mut *self {
            Self::UnderWay(call) => call.as_mut().poll(context),
            Self::Done(result) => result.take().map_or(Poll::Pending, Poll::Ready),
        }
    }
}
