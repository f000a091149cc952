//! Bounded concurrency of work for the origin.

use std::future::Future;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use tombolo_host_runtime::{lock, task};

/// A limited number of futures that run concurrently.
#[derive(Debug)]
pub(super) struct Window {
    under_way: Mutex<usize>,
    ended: Condvar,
    width: usize,
}

/// Guard that records the end of a future, even if the future panics or is dropped.
struct Ending(Arc<Window>);

impl Window {
    pub(super) fn new(width: usize) -> Arc<Self> {
        Arc::new(Self { under_way: Mutex::new(0), ended: Condvar::new(), width: width.max(1) })
    }

    /// Starts `work`. Blocks the calling thread until fewer futures than the limit are running.
    pub(super) fn start(self: &Arc<Self>, work: impl Future<Output = ()> + Send + 'static) {
        *self.until_fewer_than(self.width) += 1;
        let ending = Ending(self.clone());
        task::spawn(async move {
            let _ending = ending;
            work.await;
        });
    }

    pub(super) fn wait(&self) {
        drop(self.until_fewer_than(1));
    }

    fn until_fewer_than(&self, count: usize) -> std::sync::MutexGuard<'_, usize> {
        let waited = self.ended.wait_while(lock(&self.under_way), |under_way| *under_way >= count);
        waited.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        *lock(&self.0.under_way) -= 1;
        self.0.ended.notify_all();
    }
}
