//! Blocking on a future without a runtime.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

/// Polls `future` on this thread until it is ready, sleeping between polls. Not for a thread that serves a
/// queue or receives replies: the future may depend on what that thread does next.
///
/// Calls may be nested. Allocates once per thread.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = unpark_waker();
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            // `park` returns at once if an earlier wake-up has left a token, so no wake-up is lost; another
            // future's token costs one extra poll.
            Poll::Pending => thread::park(),
        }
    }
}

/// Returns a waker that unparks the calling thread. Allocates once per thread.
pub fn unpark_waker() -> Waker {
    thread_local! {
        static UNPARK: Waker = Waker::from(Arc::new(Unpark(thread::current())));
    }
    UNPARK.with(Waker::clone)
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
pub(crate) mod tests {
    use super::*;
    use std::future::poll_fn;

    /// Returns a future that is ready at its second poll, which another thread triggers.
    pub(crate) fn slow(value: u32) -> impl Future<Output = u32> {
        let mut polled = false;
        poll_fn(move |context| {
            if std::mem::replace(&mut polled, true) {
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
    fn nested_block_on_loses_no_wake_up() {
        let outer = async { slow(1).await + block_on(slow(10)) + slow(100).await };
        assert_eq!(block_on(outer), 111);
    }
}
