//! Waiting for a future on this thread.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

/// Polls `future` on this thread until it is ready, and sleeps meanwhile. For programs without a runtime,
/// tools and tests: a thread that others wait for (one that serves a queue, or that receives) must never call
/// it.
///
/// It may be called within a future that is waited for in the same way. It allocates nothing but once for
/// each thread.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    thread_local! {
        static UNPARK: Waker = Waker::from(Arc::new(Unpark(thread::current())));
    }
    let mut future = pin!(future);
    let waker = UNPARK.with(Waker::clone);
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            // A wake-up that came before leaves a token, so none is lost; one that another future left costs
            // a poll.
            Poll::Pending => thread::park(),
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;

    /// Ready at the second poll, which another thread asks for.
    fn slow(value: u32) -> impl Future<Output = u32> {
        let mut asked = false;
        poll_fn(move |context| {
            if std::mem::replace(&mut asked, true) {
                return Poll::Ready(value);
            }
            let waker = context.waker().clone();
            thread::spawn(move || waker.wake());
            Poll::Pending
        })
    }

    #[test]
    fn no_wake_up_is_lost() {
        for value in 0..1000 {
            assert_eq!(block_on(slow(value)), value);
        }
    }

    #[test]
    fn waiting_within_waiting_takes_no_wake_up_from_the_outer_one() {
        let outer = async { slow(1).await + block_on(slow(10)) + slow(100).await };
        assert_eq!(block_on(outer), 111);
    }
}
