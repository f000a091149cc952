//! Waits for locks, without a thread per waiter.
//!
//! One thread, which runs only while there are waiters, retries: at once when a session of this export
//! releases a lock, and at doubling intervals because other processes do not notify. Waiters are served in
//! order of arrival.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tombolo_core::{Answer, Ctx, Error, Interrupt, Permit, Raised, Result, lock, or_answer};

/// Interval between two attempts: initial and maximum.
const RETRY_INTERVAL: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(32));

/// The waiters for locks in an export.
#[derive(Clone, Default)]
pub(crate) struct Waiting(Arc<LockQueue>);

#[derive(Default)]
struct LockQueue {
    state: Mutex<QueueState>,
    wake: Condvar,
    waiters: AtomicUsize,
}

#[derive(Default)]
struct QueueState {
    queue: Vec<Arc<Waiter>>,
    /// `true` if a lock was released or a waiter was added since the last round of attempts began.
    released: bool,
    running: bool,
}

/// A lock that is waited for.
pub(crate) trait Claim: Send + 'static {
    /// Tries to take the lock; fails with [`Error::WouldBlock`] while another lock conflicts.
    fn attempt(&self) -> Result<()>;
    /// Releases the lock, which an attempt has taken after the wait was cancelled.
    fn release(&self);
}

struct Waiter(Mutex<Phase>);

enum Phase {
    Waiting {
        /// `None` during an attempt, which may take long and therefore runs without the waiter's mutex.
        claim: Option<Box<dyn Claim>>,
        waker: Option<Waker>,
        /// `true` if the request was interrupted during an attempt.
        interrupted: bool,
        _permit: Permit,
    },
    /// Ended with this result, which the caller has not taken yet.
    Ended(Result<()>),
    /// Cancelled, or the result was taken.
    GivenUp,
}

impl Waiting {
    /// Retries until an attempt succeeds, one fails with another error than [`Error::WouldBlock`], or the
    /// request is interrupted. Dropping the answer cancels the wait.
    pub fn until(&self, cx: &Ctx, permit: Permit, claim: impl Claim) -> Answer<()> {
        let claim: Option<Box<dyn Claim>> = Some(Box::new(claim));
        let phase = Phase::Waiting { claim, waker: None, interrupted: false, _permit: permit };
        let waiter = Arc::new(Waiter(Mutex::new(phase)));
        or_answer!(self.enter(waiter.clone()));
        Answer::Later(Box::pin(LockWait {
            waiter,
            interrupt: cx.interrupt.clone(),
            raised: cx.interrupt.raised(),
        }))
    }

    /// Retries now, because a lock was released.
    pub fn retry(&self) {
        if self.0.waiters.load(Ordering::Acquire) > 0 {
            lock(&self.0.state).released = true;
            self.0.wake.notify_one();
        }
    }

    fn enter(&self, waiter: Arc<Waiter>) -> Result<()> {
        let mut state = lock(&self.0.state);
        state.queue.push(waiter);
        state.released = true;
        self.0.waiters.store(state.queue.len(), Ordering::Release);
        if !state.running {
            let shared = self.0.clone();
            let started = std::thread::Builder::new().name("locks".to_owned()).spawn(move || shared.serve());
            if started.is_err() {
                state.queue.pop();
                self.0.waiters.store(0, Ordering::Release);
                return Err(Error::NoLocks);
            }
            state.running = true;
        }
        drop(state);
        self.0.wake.notify_one();
        Ok(())
    }
}

impl std::fmt::Debug for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Waiting({})", self.0.waiters.load(Ordering::Relaxed))
    }
}

impl LockQueue {
    fn serve(&self) {
        let mut pause = RETRY_INTERVAL.0;
        let mut state = lock(&self.state);
        loop {
            state.released = false;
            // Attempts and the code woken by answers run without the lock, so they block neither new waiters
            // nor releases.
            let mut queue = std::mem::take(&mut state.queue);
            drop(state);
            let before = queue.len();
            queue.retain(|waiter| waiter.still_waits());
            let some_ended = queue.len() < before;
            state = lock(&self.state);
            queue.append(&mut state.queue);
            state.queue = queue;
            let waiters = state.queue.len();
            self.waiters.store(waiters, Ordering::Release);
            if waiters == 0 {
                state.running = false;
                return;
            }
            pause = if some_ended || state.released {
                RETRY_INTERVAL.0
            } else {
                (pause * 2).min(RETRY_INTERVAL.1)
            };
            let (back, timeout) = self
                .wake
                .wait_timeout_while(state, pause, |state| !state.released)
                .unwrap_or_else(PoisonError::into_inner);
            state = back;
            if !timeout.timed_out() {
                pause = RETRY_INTERVAL.0;
            }
        }
    }
}

impl Waiter {
    /// Tries once; `false` if the wait is over.
    fn still_waits(&self) -> bool {
        let tried = match &mut *lock(&self.0) {
            Phase::Waiting { claim, .. } => claim.take(),
            _ => None,
        };
        let Some(tried) = tried else { return false };
        let result = tried.attempt();
        let mut phase = lock(&self.0);
        let Phase::Waiting { claim, waker, interrupted, .. } = &mut *phase else {
            // The wait was cancelled during the attempt.
            if result.is_ok() {
                tried.release();
            }
            return false;
        };
        let result = match result {
            Err(Error::WouldBlock) if *interrupted => Err(Error::Interrupted),
            Err(Error::WouldBlock) => {
                *claim = Some(tried);
                return true;
            }
            result => result,
        };
        let waker = waker.take();
        let over = std::mem::replace(&mut *phase, Phase::Ended(result));
        drop(phase);
        drop((over, tried));
        if let Some(waker) = waker {
            waker.wake();
        }
        false
    }
}

struct LockWait {
    waiter: Arc<Waiter>,
    interrupt: Interrupt,
    raised: Raised,
}

impl Future for LockWait {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let raised = Pin::new(&mut self.raised).poll(context).is_ready() || self.interrupt.is_raised();
        let mut phase = lock(&self.waiter.0);
        match &mut *phase {
            Phase::Waiting { claim: Some(_), .. } if raised => {
                *phase = Phase::GivenUp;
                Poll::Ready(Err(Error::Interrupted))
            }
            Phase::Waiting { waker, interrupted, .. } => {
                *interrupted = raised;
                *waker = Some(context.waker().clone());
                Poll::Pending
            }
            Phase::Ended(_) => match std::mem::replace(&mut *phase, Phase::GivenUp) {
                Phase::Ended(result) => Poll::Ready(result),
                _ => Poll::Pending,
            },
            // The future was polled after its completion.
            Phase::GivenUp => Poll::Pending,
        }
    }
}

impl Drop for LockWait {
    fn drop(&mut self) {
        // A lock must not be granted to a caller that has given up.
        let mut phase = lock(&self.waiter.0);
        if let Phase::Waiting { .. } = &*phase {
            *phase = Phase::GivenUp;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::task::Wake;

    use tombolo_core::{Budget, Limits, Resource, SessionId};

    use super::*;

    const LONG: Duration = Duration::from_secs(10);

    /// Another user of the queue, woken by an answer.
    struct Looks(Waiting, Mutex<Sender<()>>);

    impl Wake for Looks {
        fn wake(self: Arc<Self>) {
            self.0.retry();
            self.1.lock().unwrap().send(()).ok();
        }
    }

    fn looks(waiting: &Waiting) -> (Waker, Receiver<()>) {
        let (looked, is_over) = channel();
        (Arc::new(Looks(waiting.clone(), Mutex::new(looked))).into(), is_over)
    }

    /// A claim whose lock need not be released.
    impl<F: Fn() -> Result<()> + Send + 'static> Claim for F {
        fn attempt(&self) -> Result<()> {
            self()
        }

        fn release(&self) {}
    }

    fn wait(
        waiting: &Waiting,
        cx: &Ctx,
        claim: impl Claim,
    ) -> Pin<Box<dyn Future<Output = Result<()>> + Send>> {
        let permit = Budget::new(Limits::default()).take(Resource::Pending, 1).expect("room");
        match waiting.until(cx, permit, claim) {
            Answer::Later(answer) => answer,
            Answer::Done(_) => panic!("not yet"),
        }
    }

    fn cx() -> Ctx {
        Ctx { interrupt: Interrupt::new(), ..Ctx::root(SessionId(1)) }
    }

    /// Checks that code running after a grant may end a session, which calls `retry`.
    #[test]
    fn work_after_a_granted_lock_may_release_locks() {
        let waiting = Waiting::default();
        let (free, is_free) = channel::<()>();
        let is_free = Mutex::new(is_free);
        let attempt = move || is_free.lock().unwrap().try_recv().map_err(|_| Error::WouldBlock);
        let mut answer = wait(&waiting, &cx(), attempt);
        let (waker, looked) = looks(&waiting);
        assert!(answer.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        free.send(()).unwrap();
        looked.recv_timeout(LONG).expect("it waits for itself");
        assert!(matches!(answer.as_mut().poll(&mut Context::from_waker(&waker)), Poll::Ready(Ok(()))));
    }

    #[test]
    fn a_hanging_attempt_does_not_delay_others() {
        let waiting = Waiting::default();
        let (began, begins) = channel();
        let (go, goes) = channel::<()>();
        let hangs = Mutex::new((began, goes));
        let attempt = move || {
            let (began, goes) = &*hangs.lock().unwrap();
            began.send(()).ok();
            goes.recv().ok();
            Err(Error::WouldBlock)
        };
        let cx = cx();
        let mut answer = wait(&waiting, &cx, attempt);
        begins.recv_timeout(LONG).unwrap();
        let (done, is_done) = channel();
        let (other, interrupt) = (waiting.clone(), cx.interrupt.clone());
        let (waker, woken) = looks(&waiting);
        let polls = waker.clone();
        std::thread::spawn(move || {
            other.retry();
            let second = wait(&other, &Ctx::root(SessionId(1)), || Ok(()));
            drop(second);
            interrupt.raise();
            let is_pending = answer.as_mut().poll(&mut Context::from_waker(&polls)).is_pending();
            done.send((is_pending, answer)).ok();
        });
        let (is_pending, mut answer) =
            is_done.recv_timeout(LONG).expect("the thread does not wait for the attempt");
        assert!(is_pending, "the lock may be granted yet");
        drop(go);
        woken.recv_timeout(LONG).unwrap();
        let outcome = answer.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(matches!(outcome, Poll::Ready(Err(Error::Interrupted))), "{outcome:?}");
    }

    /// A claim whose attempt succeeds once it is permitted.
    struct Slow {
        began: Sender<()>,
        goes: Mutex<Receiver<()>>,
        released: Sender<()>,
    }

    impl Claim for Slow {
        fn attempt(&self) -> Result<()> {
            self.began.send(()).ok();
            self.goes.lock().unwrap().recv().map_err(|_| Error::WouldBlock)
        }

        fn release(&self) {
            self.released.send(()).ok();
        }
    }

    #[test]
    fn lock_taken_after_its_wait_was_cancelled_is_released() {
        let waiting = Waiting::default();
        let ((began, begins), (go, goes), (released, is_released)) = (channel(), channel(), channel());
        let answer = wait(&waiting, &cx(), Slow { began, goes: Mutex::new(goes), released });
        begins.recv_timeout(LONG).expect("an attempt");
        drop(answer);
        go.send(()).expect("the attempt is running");
        is_released.recv_timeout(LONG).expect("the lock is released");
    }
}
