//! A pool of threads that run tasks.
//!
//! A task is polled by a thread of the pool, never within the call that wakes it: so the receiver of a
//! server's replies continues while the pool reads the next file, and the two overlap.

use std::fmt;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use async_executor::Executor;
use event_listener::Event;

use super::block_on;

/// Threads that poll tasks. Dropping it ends them; unfinished tasks are dropped.
pub struct ThreadPool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    executor: Executor<'static>,
    closed: AtomicBool,
    end: Event,
}

impl ThreadPool {
    /// Starts at least one thread.
    pub fn start(threads: usize) -> io::Result<Self> {
        let mut pool = Self { shared: Arc::default(), threads: Vec::new() };
        for _ in 0..threads.max(1) {
            let shared = pool.shared.clone();
            let thread = std::thread::Builder::new().name("tombolo-tasks".into());
            match thread.spawn(move || shared.run()) {
                Ok(thread) => pool.threads.push(thread),
                Err(error) if pool.threads.is_empty() => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, "cannot start a thread: continuing with fewer");
                    break;
                }
            }
        }
        Ok(pool)
    }

    /// Returns a handle with which tasks can spawn others.
    pub fn spawner(&self) -> Spawner {
        Spawner(Arc::downgrade(&self.shared))
    }
}

impl Shared {
    /// Runs tasks on this thread. A panic ends only its task: its message was printed, and the task is
    /// dropped.
    fn run(&self) {
        while catch_unwind(AssertUnwindSafe(|| block_on(self.executor.run(self.ended())))).is_err() {}
    }

    async fn ended(&self) {
        let end = self.end.listen();
        if !self.closed.load(Ordering::Acquire) {
            end.await;
        }
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Release);
        self.shared.end.notify(usize::MAX);
        for thread in self.threads.drain(..) {
            // A thread of the pool that drops the pool cannot join itself; it ends after its task.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

impl fmt::Debug for ThreadPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ThreadPool({} threads)", self.threads.len())
    }
}

/// A handle that spawns tasks on a pool. It does not keep the pool alive, as tasks own such handles.
#[derive(Clone)]
pub struct Spawner(Weak<Shared>);

impl Spawner {
    /// Runs a future on the pool, or drops it if the pool has ended. No thread waits for it; a panic ends
    /// only this task.
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        if let Some(shared) = self.open() {
            shared.executor.spawn(future).detach();
        }
    }

    /// Returns `true` if the pool has ended, so that tasks are dropped without running.
    pub fn is_closed(&self) -> bool {
        self.open().is_none()
    }

    fn open(&self) -> Option<Arc<Shared>> {
        self.0.upgrade().filter(|shared| !shared.closed.load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc;
    use std::task::Poll;
    use std::time::Duration;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn a_wake_up_during_a_poll_is_not_lost() {
        let pool = ThreadPool::start(2).unwrap();
        for _ in 0..2_000 {
            let (sender, receiver) = mpsc::channel();
            let mut asked = 0;
            pool.spawner().spawn(poll_fn(move |context| {
                asked += 1;
                if asked == 3 {
                    sender.send(()).unwrap();
                    return Poll::Ready(());
                }
                let waker = context.waker().clone();
                std::thread::spawn(move || waker.wake());
                Poll::Pending
            }));
            receiver.recv_timeout(PATIENCE).expect("the wake-up was lost");
        }
    }

    #[test]
    fn a_panic_ends_its_task_alone() {
        let pool = ThreadPool::start(1).unwrap();
        pool.spawner().spawn(async { panic!("planned") });
        let (sender, receiver) = mpsc::channel();
        pool.spawner().spawn(async move { sender.send(()).unwrap() });
        receiver.recv_timeout(PATIENCE).expect("the thread is gone");
    }

    #[test]
    fn tasks_that_wait_are_dropped_at_the_end() {
        struct Guard(Arc<AtomicUsize>);
        impl Drop for Guard {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let dropped = Arc::new(AtomicUsize::new(0));
        let pool = ThreadPool::start(1).unwrap();
        let (waker_out, waker) = mpsc::channel();
        let guard = Guard(dropped.clone());
        pool.spawner().spawn(async move {
            let _guard = guard;
            poll_fn(|context| {
                waker_out.send(context.waker().clone()).unwrap();
                Poll::<()>::Pending
            })
            .await;
        });
        let waker = waker.recv_timeout(PATIENCE).unwrap();
        drop(pool);
        assert_eq!(dropped.load(Ordering::Relaxed), 1);
        waker.wake();
    }
}
