//! A call that is sent when it is made, before it is awaited.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use tombolo_core::lock;
use tombolo_host_runtime::task;

/// A future that was polled once on the creating thread: its call is on the wire or queued, whatever that
/// thread does next.
pub(super) enum StartedCall<T> {
    UnderWay(Pin<Box<dyn Future<Output = T> + Send>>),
    /// Polled by a task.
    Driven(Arc<Mutex<Driven<T>>>),
    /// Completed at once; `None` once the result was taken.
    Done(Option<T>),
}

impl<T> StartedCall<T> {
    pub(super) fn new(call: impl Future<Output = T> + Send + 'static) -> Self {
        let mut call: Pin<Box<dyn Future<Output = T> + Send>> = Box::pin(call);
        // The waiter polls the call again, with its own waker.
        match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => Self::Done(Some(result)),
            Poll::Pending => Self::UnderWay(call),
        }
    }
}

/// The outcome of a driven call.
pub(super) struct Driven<T> {
    outcome: Option<std::thread::Result<T>>,
    waiter: Option<Waker>,
}

impl<T: Send + 'static> StartedCall<T> {
    /// Spawns a task that polls the call, also without a waiter. Over a link, a reply that nobody takes
    /// occupies memory and its in-flight permit, so a call that is awaited late would block others.
    pub(super) fn driven(self) -> Self {
        let Self::UnderWay(mut call) = self else { return self };
        let driven = Arc::new(Mutex::new(Driven { outcome: None, waiter: None }));
        let told = driven.clone();
        task::spawn(async move {
            // A panic must not block the waiter for ever.
            let guarded =
                poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| call.as_mut().poll(context))) {
                    Ok(polled) => polled.map(Ok),
                    Err(panic) => Poll::Ready(Err(panic)),
                });
            let outcome = guarded.await;
            let waiter = {
                let mut driven = lock(&told);
                driven.outcome = Some(outcome);
                driven.waiter.take()
            };
            waiter.into_iter().for_each(Waker::wake);
        });
        Self::Driven(driven)
    }
}

impl<T: Unpin> Future for StartedCall<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        match &mut *self {
            Self::UnderWay(call) => call.as_mut().poll(context),
            Self::Driven(driven) => {
                let mut driven = lock(driven);
                match driven.outcome.take() {
                    Some(Ok(result)) => Poll::Ready(result),
                    Some(Err(panic)) => {
                        drop(driven);
                        resume_unwind(panic)
                    }
                    None => {
                        driven.waiter = Some(context.waker().clone());
                        Poll::Pending
                    }
                }
            }
            Self::Done(result) => result.take().map_or(Poll::Pending, Poll::Ready),
        }
    }
}
