//! Waiting for bulk memory.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use tombolo_core::lock;

/// Waiters for bulk memory of a link, woken when memory is returned.
#[derive(Debug, Default)]
pub(super) struct BulkSpace {
    waiters: Mutex<Vec<Waker>>,
    is_waited: AtomicBool,
    /// Lock held while the two spans of a pair are taken: no other holder finds only one of them taken.
    pair: Mutex<()>,
}

impl BulkSpace {
    /// Registers a waker for returned memory. The caller must retry afterwards, as memory may have been
    /// returned meanwhile.
    pub(super) fn wait(&self, waiter: &Waker) {
        let mut waiters = lock(&self.waiters);
        if !waiters.iter().any(|waker| waker.will_wake(waiter)) {
            waiters.push(waiter.clone());
        }
        self.is_waited.store(true, Ordering::SeqCst);
    }

    /// Runs `take` while no other thread has taken only one span of a pair.
    pub(super) fn with_whole_pairs<T>(&self, take: impl FnOnce() -> T) -> T {
        let _pair = lock(&self.pair);
        take()
    }

    /// Wakes the waiters: memory may have been returned, or the link is lost.
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
