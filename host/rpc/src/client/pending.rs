//! Pending calls.

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use super::call::Reply;
use super::error::CallError;
use super::link_call::LinkedCall;
use tombolo_core::{block_on, lock};

/// Outcome of a call.
pub(super) type Outcome = Result<Reply, CallError>;

/// A pending call. Dropping it abandons the answer, not the call: the caller's memory stays in use until the
/// call ends. Over a link, that memory is released at once, and a call not sent yet is given up.
#[must_use = "the failure of a call that is not awaited goes unseen"]
pub struct Pending(Inner);

enum Inner {
    /// Completed by the engine.
    Engine(Arc<Cell>),
    /// Completed by polling the link.
    Linked(LinkedCall),
}

#[derive(Debug, Default)]
pub(super) struct Cell(Mutex<Answer>);

#[derive(Debug, Default)]
enum Answer {
    #[default]
    Unknown,
    Awaited(Waker),
    Known(Outcome),
    /// The outcome was taken.
    Taken,
}

impl Pending {
    pub(super) fn new(cell: Arc<Cell>) -> Self {
        Self(Inner::Engine(cell))
    }

    pub(super) fn linked(call: LinkedCall) -> Self {
        Self(Inner::Linked(call))
    }

    /// Blocks this thread until the call ends. Requires a client with its own receiver thread.
    pub fn wait(self) -> Outcome {
        block_on(self)
    }

    /// Returns `true` if the answer is available. Over a link, answers are found only by polling.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        match &self.0 {
            Inner::Engine(cell) => matches!(*lock(&cell.0), Answer::Known(_)),
            Inner::Linked(call) => call.is_ready(),
        }
    }
}

impl Future for Pending {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        match &mut self.0 {
            Inner::Engine(cell) => match cell.take(context.waker()) {
                Some(outcome) => Poll::Ready(outcome),
                None => Poll::Pending,
            },
            Inner::Linked(call) => call.poll(context),
        }
    }
}

impl Cell {
    /// Returns `before`, reset, if nothing else references it, otherwise a new cell.
    pub(super) fn renewed(before: Option<Arc<Self>>) -> Arc<Self> {
        let mut cell = before.unwrap_or_default();
        match Arc::get_mut(&mut cell) {
            Some(alone) => *alone = Self::default(),
            None => cell = Arc::default(),
        }
        cell
    }

    pub(super) fn with_outcome(outcome: Outcome) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Answer::Known(outcome))))
    }

    /// Stores the outcome, and returns the waiter to wake.
    pub(super) fn put(&self, outcome: Outcome) -> Option<Waker> {
        match mem::replace(&mut *lock(&self.0), Answer::Known(outcome)) {
            Answer::Awaited(waker) => Some(waker),
            _ => None,
        }
    }

    /// Takes the outcome if it is available; otherwise registers the waiter.
    fn take(&self, waiter: &Waker) -> Option<Outcome> {
        let mut answer = lock(&self.0);
        match &mut *answer {
            Answer::Known(_) => match mem::replace(&mut *answer, Answer::Taken) {
                Answer::Known(outcome) => return Some(outcome),
                _ => return None,
            },
            Answer::Awaited(waker) => waker.clone_from(waiter),
            Answer::Unknown => *answer = Answer::Awaited(waiter.clone()),
            Answer::Taken => {}
        }
        None
    }
}
