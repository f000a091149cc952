//! First execution of a request, and answers to its duplicates while it runs and afterwards.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tombolo_core::fs::{FileSystem, PersistentHandle};
use tombolo_core::{Answer, Ctx, Error, Later, Result};
use tombolo_host_runtime::task;

use super::call::{Call, Reply};
use super::failure::{Failure, is_passing};
use super::inner::InnerSession;
use super::intent::ExpectedEffect;
use super::journal::{Journal, Reserved};
use super::key::EntryKey;
use super::observe::observe;
use super::outcome::{Inode, NodeMark, Outcome, PendingReply};
use super::table::{Begin, RunningEntry, Table};

/// A request, and the inner session that performs it.
#[derive(Clone, Copy)]
pub(super) struct Execution<'a> {
    pub fs: &'a Arc<dyn FileSystem>,
    pub cx: &'a Ctx,
}

impl Execution<'_> {
    /// Performs the operation and keeps its outcome in `entry`. If the operation's effect is to be recorded
    /// in a journal, the present state and the intent are recorded first.
    pub fn first<C: Call>(self, call: C, entry: RunningEntry) -> Answer<C::Reply> {
        let (Some(journal), Some(expected_effect)) = (entry.journal(), call.expected_effect()) else {
            return self.run(call, entry);
        };
        if let Some(slot_reservation) = journal.reserve_intent_slot() {
            let sequence = journal.next_sequence();
            return self.intended(call, entry, expected_effect, slot_reservation, sequence);
        }
        let (waiting, fs, cx) = (journal.wait_for_intent_slot(), self.fs.clone(), self.cx.clone());
        self.run_detached(async move {
            let Ok(slot_reservation) = cx.interrupt.unless_raised(waiting).await else {
                entry.abandon(Failure::INTERRUPTED);
                return Err(Error::Interrupted);
            };
            let sequence = entry.journal().map_or(0, Journal::next_sequence);
            let execution = Execution { fs: &fs, cx: &cx };
            execution.intended(call, entry, expected_effect, slot_reservation, sequence).resolve().await
        })
    }

    /// Records the state before the operation and the intent, then performs the operation. `sequence` was
    /// taken earlier: an operation that ends with a higher number may have changed the state since.
    fn intended<C: Call>(
        self,
        call: C,
        mut entry: RunningEntry,
        expected_effect: ExpectedEffect,
        slot_reservation: Reserved,
        sequence: u64,
    ) -> Answer<C::Reply> {
        match observe(self.fs, self.cx, expected_effect) {
            Answer::Done(observed) => {
                entry.intend(observed.ok().flatten(), sequence, slot_reservation);
                self.run(call, entry)
            }
            Answer::Later(later) => {
                let (fs, cx) = (self.fs.clone(), self.cx.clone());
                self.run_detached(async move {
                    entry.intend(later.await.ok().flatten(), sequence, slot_reservation);
                    let answer = Execution { fs: &fs, cx: &cx }.run(call, entry);
                    answer.resolve().await
                })
            }
        }
    }

    fn run<C: Call>(self, call: C, mut entry: RunningEntry) -> Answer<C::Reply> {
        let is_cancellable = call.is_cancellable();
        match call.run(&**self.fs, self.cx) {
            Answer::Done(result) => self.keep(entry, result),
            Answer::Later(later) => {
                if is_cancellable {
                    entry.set_cancellable();
                }
                let (fs, cx) = (self.fs.clone(), self.cx.clone());
                let answer = async move {
                    let result = later.await;
                    let answer = Execution { fs: &fs, cx: &cx }.keep(entry, result);
                    answer.resolve().await
                };
                if is_cancellable { Answer::later(answer) } else { self.run_detached(answer) }
            }
        }
    }

    /// Answers a duplicate of an answered request: by the same failure, or by a reply rebuilt from the
    /// outcome.
    pub fn answer_again<C: Call>(self, call: C, outcome: Outcome) -> Answer<C::Reply> {
        match outcome {
            Outcome::Failed(failure) => Answer::err(failure.error()),
            outcome => Answer::later(call.answer_duplicate(self.inner(), outcome)),
        }
    }

    /// Answers a duplicate of a request in progress, once the original is answered or interrupted. If the
    /// original was interrupted, for example by the end of its link, it had no effect, and the duplicate
    /// performs the operation, unless the operation is cancellable: then the duplicate is interrupted too.
    pub fn after<C: Call>(
        self,
        call: C,
        mut pending: Arc<PendingReply>,
        table: Arc<Table>,
        key: EntryKey,
    ) -> Answer<C::Reply> {
        let inner = self.inner();
        Answer::later(async move {
            loop {
                match inner.cx.interrupt.unless_raised(pending.kept()).await? {
                    Outcome::Failed(Failure::INTERRUPTED) if !call.is_cancellable() => {}
                    Outcome::Failed(failure) => return Err(failure.error()),
                    outcome => return call.answer_duplicate(inner, outcome).await,
                }
                let execution = Execution { fs: &inner.fs, cx: &inner.cx };
                let answer = match table.begin(key) {
                    Begin::First(entry) => execution.first(call, entry),
                    Begin::Unrecorded => call.run(&*inner.fs, &inner.cx),
                    Begin::Answered(outcome) => execution.answer_again(call, outcome),
                    Begin::Running(another) => {
                        pending = another;
                        continue;
                    }
                };
                return answer.resolve().await;
            }
        })
    }

    /// Records the outcome of an executed operation for its duplicates. A transient failure is not recorded:
    /// a later duplicate executes the operation again.
    fn keep<R: Reply>(self, entry: RunningEntry, result: Result<R>) -> Answer<R> {
        let reply = match result {
            Ok(reply) => reply,
            Err(error) => {
                let failure = Failure::from(&error);
                if is_passing(&error) {
                    entry.abandon(failure);
                } else {
                    entry.keep(Outcome::Failed(failure), None);
                }
                return Answer::err(error);
            }
        };
        let Some(node) = reply.entry() else {
            entry.keep(reply.outcome(), None);
            return Answer::ok(reply);
        };
        let inode = Inode::from(&node.attr);
        let mark = move |handle: Result<PersistentHandle>| {
            Outcome::Node(handle.map_or(NodeMark::Inode(inode), NodeMark::Handle))
        };
        // The handle is requested without the caller's interrupt: the operation is done, and must be
        // recorded.
        let detached_cx = self.cx.beside();
        match self.fs.persistent_handles().map(|handles| handles.handle_of(&detached_cx, node.node)) {
            None => entry.keep(mark(Err(Error::NotSupported)), Some(inode)),
            Some(Answer::Done(handle)) => entry.keep(mark(handle), Some(inode)),
            Some(Answer::Later(later)) => {
                return Answer::later(async move {
                    entry.keep(mark(later.await), Some(inode));
                    Ok(reply)
                });
            }
        }
        Answer::ok(reply)
    }

    /// Returns an answer whose operation runs to its end even if the caller disconnects and drops the answer.
    fn run_detached<R: Reply>(self, later: impl Future<Output = Result<R>> + Send + 'static) -> Answer<R> {
        let inner = self.inner();
        Answer::Later(Box::pin(Detached { later: Some(Box::pin(later)), inner: Some(inner) }))
    }

    fn inner(self) -> InnerSession {
        InnerSession { fs: self.fs.clone(), cx: self.cx.clone() }
    }
}

/// An operation in progress. It continues after its caller has disconnected, because the back end does
/// not stop its work, and its outcome is needed for the expected duplicate.
struct Detached<R: Reply> {
    later: Option<Later<R>>,
    inner: Option<InnerSession>,
}

impl<R: Reply> Future for Detached<R> {
    type Output = Result<R>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<R>> {
        // The future is taken while polled: after a panic it cannot be continued.
        let Some(mut later) = self.later.take() else {
            return Poll::Ready(Err(Error::Interrupted));
        };
        let polled = later.as_mut().poll(context);
        if polled.is_pending() {
            self.later = Some(later);
        }
        polled
    }
}

impl<R: Reply> Drop for Detached<R> {
    fn drop(&mut self) {
        let (Some(later), Some(inner)) = (self.later.take(), self.inner.take()) else { return };
        task::spawn(async move {
            if let Ok(reply) = later.await {
                reply.give_back(&*inner.fs, &inner.cx);
            }
        });
    }
}
