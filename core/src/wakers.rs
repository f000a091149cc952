//! Tasks that wait for a change.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use crate::lock;

/// Wakers of tasks that wait for a change.
#[derive(Debug, Default)]
pub struct Wakers {
    waiters: Mutex<Vec<Waker>>,
    is_waited: AtomicBool,
}

impl Wakers {
    /// Registers a waker for the next change. The caller must check again afterwards, as the change may have
    /// happened meanwhile.
    pub fn add(&self, waiter: &Waker) {
        let mut waiters = lock(&self.waiters);
        if !waiters.iter().any(|waker| waker.will_wake(waiter)) {
            waiters.push(waiter.clone());
        }
        self.is_waited.store(true, Ordering::SeqCst);
    }

    /// Wakes all waiters after a change.
    pub fn changed(&self) {
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
