//! A handful of threads that run tasks.
//!
//! A task is polled by a thread of the crew, never by whoever wakes it: so the thread that receives a server's replies goes
//! on receiving while the crew reads the next file, and the two overlap.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::JoinHandle;

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Threads that poll tasks. Dropping it ends them; tasks that are not finished then are dropped.
pub(crate) struct Crew {
    queue: Arc<Queue>,
    threads: Vec<JoinHandle<()>>,
}

impl Crew {
    /// Starts at least one thread.
    pub fn start(threads: usize) -> io::Result<Self> {
        let mut crew = Self { queue: Arc::default(), threads: Vec::new() };
        for _ in 0..threads.max(1) {
            let queue = crew.queue.clone();
            let thread = std::thread::Builder::new().name("tombolo-crew".into());
            match thread.spawn(move || queue.serve()) {
                Ok(thread) => crew.threads.push(thread),
                Err(error) if crew.threads.is_empty() => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, "one thread less");
                    break;
                }
            }
        }
        Ok(crew)
    }

    /// What tasks are given to spawn others.
    pub fn spawner(&self) -> Spawner {
        Spawner(self.queue.clone())
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        let left = {
            let mut state = self.queue.lock();
            state.closed = true;
            std::mem::take(&mut state.ready)
        };
        // Tasks may wake others when they go.
        drop(left);
        self.queue.work.notify_all();
        for thread in self.threads.drain(..) {
            // A thread of the crew cannot wait for itself; it ends all the same.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

impl fmt::Debug for Crew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Crew({} threads)", self.threads.len())
    }
}

/// Gives tasks to a crew.
#[derive(Clone)]
pub(crate) struct Spawner(Arc<Queue>);

impl Spawner {
    /// Has a thread of the crew run this. Nobody waits for it; a panic ends the task alone.
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        let task = Task {
            state: AtomicU8::new(QUEUED),
            future: Mutex::new(Some(Box::pin(future))),
            queue: self.0.clone(),
        };
        self.0.push(Arc::new(task));
    }

    /// Whether the crew is gone, and tasks are dropped without having run.
    pub fn is_closed(&self) -> bool {
        self.0.lock().closed
    }
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Default)]
struct State {
    ready: VecDeque<Arc<Task>>,
    sleeping: usize,
    closed: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, task: Arc<Task>) {
        let mut state = self.lock();
        if state.closed {
            drop(state);
            drop(task);
            return;
        }
        state.ready.push_back(task);
        // Whoever is awake takes it with the rest; only a sleeper must be told.
        let wake = state.sleeping > 0;
        drop(state);
        if wake {
            self.work.notify_one();
        }
    }

    /// One thread's life.
    fn serve(&self) {
        let mut state = self.lock();
        loop {
            if let Some(task) = state.ready.pop_front() {
                drop(state);
                // The panic's message has been printed; what the task held is dropped.
                let _ = catch_unwind(AssertUnwindSafe(|| task.poll()));
                state = self.lock();
            } else if state.closed {
                return;
            } else {
                state.sleeping += 1;
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.sleeping -= 1;
            }
        }
    }
}

/// Nobody polls it; the next wake-up queues it.
const IDLE: u8 = 0;
/// It is in the queue.
const QUEUED: u8 = 1;
/// Some thread polls it.
const POLLING: u8 = 2;
/// Some thread polls it, and it must be polled again.
const AGAIN: u8 = 3;
/// It is finished.
const DONE: u8 = 4;

struct Task {
    state: AtomicU8,
    future: Mutex<Option<Work>>,
    queue: Arc<Queue>,
}

impl Task {
    fn poll(self: Arc<Self>) {
        self.state.store(POLLING, Ordering::Release);
        let waker = Waker::from(self.clone());
        // Taken out for the poll: a panic drops it, and with it whatever it owes to others.
        let Some(mut future) = self.slot().take() else { return };
        if let Poll::Ready(()) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            self.state.store(DONE, Ordering::Release);
            return;
        }
        // Back in its place before the state says so: whoever polls it next finds it there.
        *self.slot() = Some(future);
        if self.state.compare_exchange(POLLING, IDLE, Ordering::AcqRel, Ordering::Acquire).is_err() {
            self.state.store(QUEUED, Ordering::Release);
            let queue = self.queue.clone();
            queue.push(self);
        }
    }

    fn slot(&self) -> MutexGuard<'_, Option<Work>> {
        self.future.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        let claim = |state| match state {
            IDLE => Some(QUEUED),
            POLLING => Some(AGAIN),
            _ => None,
        };
        if self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, claim) == Ok(IDLE) {
            let queue = self.queue.clone();
            queue.push(self);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc;
    use std::time::Duration;

    const PATIENCE: Duration = Duration::from_secs(10);

    #[test]
    fn a_wake_up_during_a_poll_is_not_lost() {
        let crew = Crew::start(2).unwrap();
        for _ in 0..2_000 {
            let (sender, receiver) = mpsc::channel();
            let mut asked = 0;
            crew.spawner().spawn(poll_fn(move |context| {
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
        let crew = Crew::start(1).unwrap();
        crew.spawner().spawn(async { panic!("planned") });
        let (sender, receiver) = mpsc::channel();
        crew.spawner().spawn(async move { sender.send(()).unwrap() });
        receiver.recv_timeout(PATIENCE).expect("the thread is gone");
    }

    #[test]
    fn the_end_drops_what_waits() {
        struct Guard(Arc<AtomicUsize>);
        impl Drop for Guard {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let dropped = Arc::new(AtomicUsize::new(0));
        let crew = Crew::start(1).unwrap();
        let (waker_out, waker) = mpsc::channel();
        let guard = Guard(dropped.clone());
        crew.spawner().spawn(async move {
            let _guard = guard;
            poll_fn(|context| {
                waker_out.send(context.waker().clone()).unwrap();
                Poll::<()>::Pending
            })
            .await;
        });
        let waker = waker.recv_timeout(PATIENCE).unwrap();
        drop(crew);
        // Whoever holds the waker holds the task; when told that it may go on, it goes.
        waker.wake();
        assert_eq!(dropped.load(Ordering::Relaxed), 1);
    }
}
