//! Wake-up of tasks that wait for a change of shared state.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use crate::lock;

/// Wakers of tasks that wait for the next change of some state.
#[derive(Debug, Default)]
pub struct Wakers {
    waiters: Mutex<Vec<Waker>>,
    /// `true` if `waiters` is not empty; a change without waiters costs one load.
    is_waited: AtomicBool,
}

impl Wakers {
    /// Registers a waker for the next change. The caller must check the state after this call, because the
    /// change may have happened before it.
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
