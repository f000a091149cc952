//! Waiting for locks without a thread per waiter.
//!
//! One thread, which lives only while somebody waits, tries again: at once when a lock of ours is given back, and at
//! doubling intervals because processes of the host do not tell. Waiters are served in the order in which they came.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tombolo_core::fs::{Answer, Ctx, Error, Interrupt, Permit, Raised, Result};

/// How long to sleep between two looks: at first, and at most.
const LOOK_AFTER: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(32));

/// Who waits for a lock.
#[derive(Clone, Default)]
pub(crate) struct Waiting(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    looks: Condvar,
    waiters: AtomicUsize,
}

#[derive(Default)]
struct State {
    queue: Vec<Arc<Waiter>>,
    /// Somebody gave a lock back since the last look.
    news: bool,
    running: bool,
}

struct Waiter(Mutex<Phase>);

enum Phase {
    Waiting { attempt: Box<dyn Fn() -> Result<()> + Send>, waker: Option<Waker>, _permit: Permit },
    Ended(Result<()>),
    GivenUp,
}

impl Waiting {
    /// Tries until it succeeds, fails otherwise than with [`Error::WouldBlock`], or the request is interrupted. Whoever drops the answer
    /// gives up.
    pub fn until(
        &self,
        cx: &Ctx,
        permit: Permit,
        attempt: impl Fn() -> Result<()> + Send + 'static,
    ) -> Answer<()> {
        let phase = Phase::Waiting { attempt: Box::new(attempt), waker: None, _permit: permit };
        let waiter = Arc::new(Waiter(Mutex::new(phase)));
        if let Err(error) = self.enter(waiter.clone()) {
            return Answer::err(error);
        }
        Answer::Later(Box::pin(Outcome {
            waiter,
            interrupt: cx.interrupt.clone(),
            raised: cx.interrupt.raised(),
        }))
    }

    /// A lock was given back: look again now.
    pub fn look(&self) {
        if self.0.waiters.load(Ordering::Acquire) > 0 {
            self.0.lock().news = true;
            self.0.looks.notify_one();
        }
    }

    fn enter(&self, waiter: Arc<Waiter>) -> Result<()> {
        let mut state = self.0.lock();
        state.queue.push(waiter);
        state.news = true;
        self.0.waiters.store(state.queue.len(), Ordering::Release);
        if !state.running {
            let shared = self.0.clone();
            let started = std::thread::Builder::new().name("locks".to_owned()).spawn(move || shared.serve());
            if started.is_err() {
                state.queue.pop();
                return Err(Error::NoLocks);
            }
            state.running = true;
        }
        drop(state);
        self.0.looks.notify_one();
        Ok(())
    }
}

impl std::fmt::Debug for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Waiting({})", self.0.waiters.load(Ordering::Relaxed))
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self) {
        let mut pause = LOOK_AFTER.0;
        let mut state = self.lock();
        loop {
            state.news = false;
            let before = state.queue.len();
            state.queue.retain(|waiter| waiter.still_waits());
            let after = state.queue.len();
            self.waiters.store(after, Ordering::Release);
            if after == 0 {
                state.running = false;
                return;
            }
            pause = if after < before || state.news { LOOK_AFTER.0 } else { (pause * 2).min(LOOK_AFTER.1) };
            let (back, timeout) = self
                .looks
                .wait_timeout_while(state, pause, |state| !state.news)
                .unwrap_or_else(PoisonError::into_inner);
            state = back;
            if !timeout.timed_out() {
                pause = LOOK_AFTER.0;
            }
        }
    }
}

impl Waiter {
    fn lock(&self) -> MutexGuard<'_, Phase> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tries once; false when the waiting is over.
    fn still_waits(&self) -> bool {
        let mut phase = self.lock();
        let Phase::Waiting { attempt, waker, .. } = &mut *phase else { return false };
        let result = match attempt() {
            Err(Error::WouldBlock) => return true,
            result => result,
        };
        let waker = waker.take();
        let over = std::mem::replace(&mut *phase, Phase::Ended(result));
        drop(phase);
        drop(over);
        if let Some(waker) = waker {
            waker.wake();
        }
        false
    }
}

struct Outcome {
    waiter: Arc<Waiter>,
    interrupt: Interrupt,
    raised: Raised,
}

impl Future for Outcome {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let raised = Pin::new(&mut self.raised).poll(context).is_ready() || self.interrupt.is_raised();
        let mut phase = self.waiter.lock();
        match &mut *phase {
            Phase::Waiting { .. } if raised => {
                *phase = Phase::GivenUp;
                Poll::Ready(Err(Error::Interrupted))
            }
            Phase::Waiting { waker, .. } => {
                *waker = Some(context.waker().clone());
                Poll::Pending
            }
            Phase::Ended(_) => match std::mem::replace(&mut *phase, Phase::GivenUp) {
                Phase::Ended(result) => Poll::Ready(result),
                _ => Poll::Pending,
            },
            // Polled after it was ready: nothing more will come.
            Phase::GivenUp => Poll::Pending,
        }
    }
}

impl Drop for Outcome {
    fn drop(&mut self) {
        // A lock must not be granted to somebody who is gone.
        let mut phase = self.waiter.lock();
        if let Phase::Waiting { .. } = &*phase {
            *phase = Phase::GivenUp;
        }
    }
}
