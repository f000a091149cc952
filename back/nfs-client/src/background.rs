//! Work that continues after its operation was answered: flushes of unflushed data, and removals of files
//! that were unlinked while open.

use std::future::Future;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;
use tombolo_core::lock;

/// Counter of background work, so that an unmount can wait for it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Background(Arc<Count>);

#[derive(Debug, Default)]
struct Count {
    under_way: Mutex<usize>,
    changed: Condvar,
}

impl Background {
    /// Starts work in the background, for which [`wait`](Self::wait) waits.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        *lock(&self.0.under_way) += 1;
        let done = Done(self.0.clone());
        tombolo_host_runtime::task::spawn(async move {
            let _done = done;
            work.await;
        });
    }

    /// Blocks until all work has ended or the timeout has passed; returns `false` on time-out.
    pub(crate) fn wait(&self, timeout: Duration) -> bool {
        let under_way = lock(&self.0.under_way);
        let waited = self.0.changed.wait_timeout_while(under_way, timeout, |count| *count > 0);
        *waited.unwrap_or_else(PoisonError::into_inner).0 == 0
    }
}

/// Guard that counts down when the work ends or is dropped.
struct Done(Arc<Count>);

impl Drop for Done {
    fn drop(&mut self) {
        *lock(&self.0.under_way) -= 1;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::{Poll, Waker};

    use super::*;

    #[test]
    fn wait_returns_when_background_work_has_ended() {
        let background = Background::default();
        assert!(background.wait(Duration::ZERO));
        let gate: Arc<Mutex<Option<Waker>>> = Arc::default();
        let (asked, seen) = (gate.clone(), AtomicBool::new(false));
        background.spawn(poll_fn(move |context| {
            if seen.swap(true, Ordering::SeqCst) {
                return Poll::Ready(());
            }
            *asked.lock().expect("not poisoned") = Some(context.waker().clone());
            Poll::Pending
        }));
        assert!(!background.wait(Duration::from_millis(10)));
        let opener = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(10));
            gate.lock().expect("not poisoned").take().expect("it was polled").wake();
        });
        assert!(background.wait(Duration::from_secs(20)));
        opener.join().expect("the gate was opened");
    }
}
