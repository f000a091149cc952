//! Futures without a runtime: a spawned task is polled by the thread that wakes it.
//!
//! A pool thread that finishes a read thus continues to send the reply: no queue, no second thread, no
//! wake-up in between. A task must therefore never block. Wake-ups do not nest: a task woken while its thread
//! is polling another one is polled after that returns, so a chain of wake-ups does not grow the stack.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use crate::lock;

/// Polls `future` on this thread, after the task that the thread may be polling, and afterwards on whichever
/// thread wakes it, until it is ready.
///
/// No caller waits for the future, so it must use its result itself. If it panics, the panic propagates to
/// the thread that polled it, and the future is dropped.
pub fn spawn(future: impl Future<Output = ()> + Send + 'static) {
    spawn_boxed(Box::pin(future));
}

/// Spawns a boxed future, as [`spawn`] does.
pub fn spawn_boxed(future: Pin<Box<dyn Future<Output = ()> + Send>>) {
    let task = Arc::new(Task { state: AtomicU8::new(POLLING), future: Mutex::new(Some(future)) });
    run(task);
}

/// State of a task that is not being polled; the next wake-up polls it.
const IDLE: u8 = 0;
/// Being polled by a thread, or in its queue.
const POLLING: u8 = 1;
/// As [`POLLING`], but woken meanwhile: the thread must poll it once more.
const AGAIN: u8 = 2;
/// Finished.
const DONE: u8 = 3;

struct Task {
    state: AtomicU8,
    future: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        let claim = |state| match state {
            IDLE => Some(POLLING),
            POLLING => Some(AGAIN),
            _ => None,
        };
        if self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, claim) == Ok(IDLE) {
            run(self);
        }
    }
}

thread_local! {
    /// Tasks woken while this thread polls one or defers them; `None` at other times.
    static WAITING: RefCell<Option<VecDeque<Arc<Task>>>> = const { RefCell::new(None) };
}

/// Runs work that may wake tasks while it has a lock that they need, such as dropping the guard of an
/// asynchronous lock. Tasks woken on this thread are polled afterwards.
pub fn defer_woken_tasks<T>(work: impl FnOnce() -> T) -> T {
    struct PollWoken;
    impl Drop for PollWoken {
        fn drop(&mut self) {
            let woken = WAITING.with_borrow_mut(Option::take);
            woken.into_iter().flatten().for_each(run);
        }
    }
    let _woken = WAITING.with_borrow_mut(|waiting| match waiting {
        Some(_) => None,
        None => {
            *waiting = Some(VecDeque::new());
            Some(PollWoken)
        }
    });
    work()
}

/// Polls a task in state `POLLING`, and tasks woken on this thread meanwhile. A panic of one does not prevent
/// the others from being polled; the first panic propagates after all are polled. A task woken while the
/// thread unwinds is polled on another thread, if one can be started: a panic of that task during the
/// unwinding would end the process.
fn run(task: Arc<Task>) {
    let mut first = Some(task);
    let nested = WAITING.with_borrow_mut(|waiting| match waiting {
        Some(queue) => {
            queue.extend(first.take());
            true
        }
        // Woken by a value dropped during unwinding.
        None if thread::panicking() => false,
        None => {
            *waiting = Some(VecDeque::new());
            false
        }
    });
    if nested {
        return;
    }
    if thread::panicking() {
        return first.into_iter().for_each(run_elsewhere);
    }
    let (mut next, mut panic) = (first, None);
    while let Some(task) = next {
        if let Err(caught) = catch_unwind(AssertUnwindSafe(|| poll_until_idle(&task))) {
            panic.get_or_insert(caught);
        }
        next = WAITING.with_borrow_mut(|waiting| {
            let next = waiting.as_mut().and_then(VecDeque::pop_front);
            if next.is_none() {
                *waiting = None;
            }
            next
        });
    }
    if let Some(panic) = panic {
        resume_unwind(panic);
    }
}

/// Polls a task as [`run`] does, on a thread of its own; on this one if none can be started.
fn run_elsewhere(task: Arc<Task>) {
    let left = task.clone();
    if let Err(error) = thread::Builder::new().name("after-panic".into()).spawn(move || run(task)) {
        tracing::error!(%error, "cannot start a thread for a task woken during a panic; polling it on this thread");
        let _ = catch_unwind(AssertUnwindSafe(|| poll_until_idle(&left)));
    }
}

fn poll_until_idle(task: &Arc<Task>) {
    let waker = Waker::from(task.clone());
    let mut context = Context::from_waker(&waker);
    // The future is taken out for the poll, so that a panic drops it and everything that it owns.
    let Some(mut future) = take(task) else { return };
    loop {
        if let Poll::Ready(()) = future.as_mut().poll(&mut context) {
            task.state.store(DONE, Ordering::Release);
            return;
        }
        // The future is put back before the state changes, because the next thread to wake the task must find
        // it.
        *lock(&task.future) = Some(future);
        if task.state.compare_exchange(POLLING, IDLE, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            return;
        }
        task.state.store(POLLING, Ordering::Release);
        match take(task) {
            Some(again) => future = again,
            None => return,
        }
    }
}

fn take(task: &Task) -> Option<Pin<Box<dyn Future<Output = ()> + Send>>> {
    lock(&task.future).take()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc;
    use std::time::Duration;

    /// A barrier for one future.
    #[derive(Default)]
    struct Gate(Mutex<(bool, Option<Waker>)>);

    impl Gate {
        fn open(&self) {
            let waker = {
                let mut inner = self.0.lock().unwrap();
                inner.0 = true;
                inner.1.take()
            };
            waker.into_iter().for_each(Waker::wake);
        }

        async fn pass(self: Arc<Self>) {
            poll_fn(|context| {
                let mut inner = self.0.lock().unwrap();
                if inner.0 {
                    return Poll::Ready(());
                }
                inner.1 = Some(context.waker().clone());
                Poll::Pending
            })
            .await;
        }
    }

    #[test]
    fn a_ready_future_finishes_before_spawn_returns() {
        let (sender, receiver) = mpsc::channel();
        spawn(async move { sender.send(thread::current().id()).unwrap() });
        assert_eq!(receiver.try_recv().unwrap(), thread::current().id());
    }

    #[test]
    fn the_waking_thread_polls_the_task() {
        let gate = Arc::new(Gate::default());
        let (sender, receiver) = mpsc::channel();
        let waiting = gate.clone();
        spawn(async move {
            waiting.pass().await;
            sender.send(thread::current().id()).unwrap();
        });
        assert!(receiver.try_recv().is_err());
        let opener = thread::spawn(move || {
            gate.open();
            thread::current().id()
        });
        assert_eq!(receiver.recv().unwrap(), opener.join().unwrap());
    }

    #[test]
    fn wake_up_chain_does_not_grow_stack() {
        let gates: Vec<_> = (0..100_000).map(|_| Arc::new(Gate::default())).collect();
        let passed = Arc::new(AtomicUsize::new(0));
        for pair in gates.windows(2) {
            let (from, to, passed) = (pair[0].clone(), pair[1].clone(), passed.clone());
            spawn(async move {
                from.pass().await;
                passed.fetch_add(1, Ordering::Relaxed);
                to.open();
            });
        }
        gates[0].open();
        assert_eq!(passed.load(Ordering::Relaxed), gates.len() - 1);
    }

    #[test]
    fn a_wake_up_during_a_poll_is_not_lost() {
        for _ in 0..2_000 {
            let (sender, receiver) = mpsc::channel();
            let mut asked = 0;
            spawn(poll_fn(move |context| {
                asked += 1;
                if asked == 3 {
                    sender.send(()).unwrap();
                    return Poll::Ready(());
                }
                let waker = context.waker().clone();
                thread::spawn(move || waker.wake());
                Poll::Pending
            }));
            receiver.recv_timeout(std::time::Duration::from_secs(10)).expect("the wake-up was lost");
        }
    }

    #[test]
    fn panic_drops_task_and_thread_stays_usable() {
        let dropped = Arc::new(AtomicUsize::new(0));
        struct Guard(Arc<AtomicUsize>);
        impl Drop for Guard {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let guard = Guard(dropped.clone());
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            spawn(async move {
                let _guard = guard;
                panic!("planned");
            });
        }));
        assert!(outcome.is_err());
        assert_eq!(dropped.load(Ordering::Relaxed), 1);
        let (sender, receiver) = mpsc::channel();
        spawn(async move { sender.send(()).unwrap() });
        receiver.try_recv().unwrap();
    }

    /// Spawns a task that opens a barrier and panics, and one behind the barrier. Returns `true` if the
    /// latter's thread is unwinding.
    fn woken_by_one_that_panics(then: impl FnOnce() + Send + 'static) -> bool {
        let (gate, (sender, receiver)) = (Arc::new(Gate::default()), mpsc::channel());
        let waiting = gate.clone();
        spawn(async move {
            waiting.pass().await;
            sender.send(thread::panicking()).unwrap();
            then();
        });
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            spawn(async move {
                gate.open();
                panic!("planned");
            });
        }));
        assert!(outcome.is_err(), "the panic goes to the thread that polled");
        receiver.recv_timeout(Duration::from_secs(10)).expect("the other was polled")
    }

    #[test]
    fn tasks_woken_by_panicking_task_are_polled() {
        assert!(!woken_by_one_that_panics(|| ()));
        // The second panic would end the process.
        assert!(!woken_by_one_that_panics(|| panic!("planned too")));
    }

    #[test]
    fn tasks_woken_during_unwinding_are_polled_by_another_thread() {
        struct Opens(Arc<Gate>);
        impl Drop for Opens {
            fn drop(&mut self) {
                self.0.open();
            }
        }
        let (gate, (sender, receiver)) = (Arc::new(Gate::default()), mpsc::channel());
        let (waiting, opens) = (gate.clone(), Opens(gate));
        spawn(async move {
            waiting.pass().await;
            sender.send((thread::panicking(), thread::current().id())).unwrap();
        });
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let _opens = opens;
            panic!("planned");
        }));
        assert!(outcome.is_err());
        let (unwinds, polled_by) = receiver.recv_timeout(Duration::from_secs(10)).expect("it was polled");
        assert!(!unwinds && polled_by != thread::current().id());
    }

    /// An asynchronous lock wakes the next waiter while it has its internal lock, which that waiter needs
    /// when polled.
    #[test]
    fn tasks_woken_by_dropped_guard_are_polled_later() {
        let lock = Arc::new(async_lock::Mutex::new(()));
        let guard = lock.try_lock_arc().expect("free");
        let (done, wait) = mpsc::channel();
        for _ in 0..2 {
            let (lock, done) = (lock.clone(), done.clone());
            spawn(async move {
                let _guard = lock.lock().await;
                done.send(()).expect("a listener");
            });
        }
        thread::spawn(move || defer_woken_tasks(|| drop(guard)));
        for _ in 0..2 {
            wait.recv_timeout(Duration::from_secs(10)).expect("the lock");
        }
    }
}
