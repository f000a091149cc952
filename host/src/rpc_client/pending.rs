//! A call whose answer is awaited.

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use super::call::Reply;
use super::error::CallError;

/// What a call comes to.
pub(super) type Outcome = Result<Reply, CallError>;

/// A call that was made. Dropping it gives up the answer, not the call: its memory stays in use until it is answered.
#[must_use = "a call that nobody awaits is one whose failure nobody sees"]
#[derive(Debug)]
pub struct Pending(Arc<Cell>);

/// Where the answer is put.
#[derive(Debug, Default)]
pub(super) struct Cell(Mutex<Answer>);

#[derive(Debug, Default)]
enum Answer {
    #[default]
    Unknown,
    Awaited(Waker),
    Known(Outcome),
    /// It was, and somebody has it.
    Taken,
}

thread_local! {
    /// Wakes this thread.
    static UNPARK: Waker = Waker::from(Arc::new(Unpark(thread::current())));
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

impl Pending {
    pub(super) fn new(cell: Arc<Cell>) -> Self {
        Self(cell)
    }

    /// Waits for the answer on this thread. For a client whose receiver is another one.
    pub fn wait(mut self) -> Outcome {
        if let Some(outcome) = self.0.take(None) {
            return outcome;
        }
        UNPARK.with(|waker| {
            let mut context = Context::from_waker(waker);
            loop {
                match Pin::new(&mut self).poll(&mut context) {
                    Poll::Ready(outcome) => return outcome,
                    Poll::Pending => thread::park(),
                }
            }
        })
    }

    /// Whether the answer is there.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        matches!(*self.0.lock(), Answer::Known(_))
    }
}

impl Future for Pending {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        match self.0.take(Some(context.waker())) {
            Some(outcome) => Poll::Ready(outcome),
            None => Poll::Pending,
        }
    }
}

impl Cell {
    /// One that was used before and that nobody else has any more; or else a new one.
    pub(super) fn renewed(before: Option<Arc<Self>>) -> Arc<Self> {
        let mut cell = before.unwrap_or_default();
        match Arc::get_mut(&mut cell) {
            Some(alone) => *alone = Self::default(),
            None => cell = Arc::default(),
        }
        cell
    }

    /// One whose answer is there.
    pub(super) fn known(outcome: Outcome) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Answer::Known(outcome))))
    }

    /// Puts the answer in; who is to be woken.
    pub(super) fn put(&self, outcome: Outcome) -> Option<Waker> {
        match mem::replace(&mut *self.lock(), Answer::Known(outcome)) {
            Answer::Awaited(waker) => Some(waker),
            _ => None,
        }
    }

    /// Takes the answer if it is there; or else remembers who waits for it.
    fn take(&self, waiter: Option<&Waker>) -> Option<Outcome> {
        let mut answer = self.lock();
        match (&mut *answer, waiter) {
            (Answer::Known(_), _) => match mem::replace(&mut *answer, Answer::Taken) {
                Answer::Known(outcome) => Some(outcome),
                _ => None,
            },
            (Answer::Awaited(waker), Some(waiter)) => {
                waker.clone_from(waiter);
                None
            }
            (Answer::Unknown, Some(waiter)) => {
                *answer = Answer::Awaited(waiter.clone());
                None
            }
            (Answer::Taken, Some(_)) => None,
            (_, None) => None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Answer> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
