//! Waiting for bulk memory.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use tombolo_host_runtime::lock;

/// The waiters for bulk memory of a link. Giving memory back wakes them.
#[derive(Debug, Default)]
pub(super) struct BulkSpace {
    waiters: Mutex<Vec<Waker>>,
    is_waited: AtomicBool,
    /// Locked while two spans are taken, from before the first until both or none are.
    pair: Mutex<()>,
}

impl BulkSpace {
    /// Has the waiter woken when there may be some. To be looked for once more after this, for it may have
    /// come meanwhile.
    pub(super) fn wait(&self, waiter: &Waker) {
        let mut waiters = lock(&self.waiters);
        if !waiters.iter().any(|waker| waker.will_wake(waiter)) {
            waiters.push(waiter.clone());
        }
        self.is_waited.store(true, Ordering::SeqCst);
    }

    /// Takes memory while no other thread has the first of two spans only.
    pub(super) fn with_whole_pairs<T>(&self, take: impl FnOnce() -> T) -> T {
        let _pair = lock(&self.pair);
        take()
    }

    /// Some may have been given back, or the link was lost.
    pub(super) fn changed(&self) {
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
