//! Threads of one mount: as many receive as there is work for; the others sleep.
//!
//! A request wakes one of the threads waiting at the device, a different one each time. Two threads waiting
//! for one program's requests would alternate and miss each other's CPU caches. Therefore one thread waits at
//! the device; it calls another when several programs send requests without a pause, or before a large
//! transfer; a thread that finds no request while others receive goes back to sleep.

use tombolo_core::lock;

use super::buffer_pool::BufferPool;
use crate::session::Session;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// State shared by the threads of one mount.
#[derive(Debug)]
pub(super) struct ThreadPool {
    pub(super) session: Arc<Session>,
    pub(super) buffers: Arc<BufferPool>,
    /// Number of receiving threads; written under the mutex, read without.
    receiving: AtomicUsize,
    state: Mutex<PoolState>,
    called: Condvar,
}

#[derive(Debug, Default)]
struct PoolState {
    /// Number of sleeping threads that have not been called.
    asleep: usize,
    /// Number of called threads that have not woken up yet.
    calls: usize,
    ended: bool,
}

impl ThreadPool {
    pub(super) fn new(session: Arc<Session>, buffers: Arc<BufferPool>) -> Arc<ThreadPool> {
        Arc::new(ThreadPool {
            session,
            buffers,
            receiving: AtomicUsize::new(0),
            state: Mutex::default(),
            called: Condvar::new(),
        })
    }

    /// Begins to receive: at once if no thread receives, otherwise when called. Returns `false` once the
    /// mount has ended.
    pub(super) fn enter(&self) -> bool {
        let mut state = lock(&self.state);
        if self.receiving.load(Ordering::Relaxed) == 0 {
            self.receiving.store(1, Ordering::Relaxed);
            return !state.ended;
        }
        state.asleep += 1;
        while state.calls == 0 && !state.ended {
            state = self.called.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        // The calling thread has already counted this one as receiving.
        state.calls = state.calls.saturating_sub(1);
        !state.ended
    }

    /// Calls one more thread, if any sleeps.
    pub(super) fn call(&self) {
        let mut state = lock(&self.state);
        if state.asleep > 0 {
            state.asleep -= 1;
            state.calls += 1;
            self.receiving.fetch_add(1, Ordering::Relaxed);
            self.called.notify_one();
        }
    }

    /// Returns `true` if the calling thread is the only one that receives.
    pub(super) fn is_alone(&self) -> bool {
        self.receiving.load(Ordering::Relaxed) <= 1
    }

    /// Ends the receiving of an idle thread if others receive. Returns `true` if so: the thread must then
    /// [enter](Self::enter) again.
    pub(super) fn leave(&self) -> bool {
        if self.is_alone() {
            return false;
        }
        let _state = lock(&self.state);
        if self.is_alone() {
            return false;
        }
        self.receiving.fetch_sub(1, Ordering::Relaxed);
        true
    }

    pub(super) fn end(&self) {
        lock(&self.state).ended = true;
        self.session.end_openings();
        self.called.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;
    use tombolo_back_memory::Memory;
    use tombolo_core::SessionId;
    use tombolo_core::fs::{Client, Export, PermissionCheck};

    fn pool() -> Arc<ThreadPool> {
        let client = Client { session: SessionId(1), label: String::new(), checks: PermissionCheck::Caller };
        let session =
            Session::new(SessionId(1), Memory::default().attach(&client).unwrap(), Default::default());
        ThreadPool::new(session, BufferPool::new(8192))
    }

    #[test]
    fn one_receives_and_others_come_when_they_are_called() {
        let pool = pool();
        assert!(pool.enter() && pool.is_alone() && !pool.leave(), "the last one stays");
        let (sender, receiver) = mpsc::channel();
        let second = pool.clone();
        let thread = thread::spawn(move || {
            while second.enter() {
                sender.send(()).unwrap();
                assert!(second.leave());
            }
        });
        for _ in 0..100 {
            assert!(receiver.recv_timeout(Duration::from_millis(1)).is_err(), "no thread was called");
            while pool.is_alone() && receiver.try_recv().is_err() {
                pool.call();
            }
            while receiver.try_recv().is_ok() {}
            while !pool.is_alone() {
                thread::yield_now();
            }
            while receiver.try_recv().is_ok() {}
        }
        pool.end();
        thread.join().unwrap();
    }
}
