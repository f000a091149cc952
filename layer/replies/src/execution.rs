//! First executions, and answers to duplicates.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use tombolo_core::fs::{FileSystem, PersistentHandle};
use tombolo_core::{Answer, Ctx, Error, Later, Result};
use tombolo_host_runtime::task;

use super::below::Below;
use super::call::{Call, Reply};
use super::failure::{Failure, is_passing};
use super::intent::Trail;
use super::journal::{Journal, Reserved};
use super::key::EntryKey;
use super::look::look;
use super::outcome::{Inode, NodeMark, Outcome, PendingReply};
use super::table::{Begin, Entry, Table};

/// A request, and the inner session that performs it.
#[derive(Clone, Copy)]
pub(super) struct Execution<'a> {
    pub fs: &'a Arc<dyn FileSystem>,
    pub cx: &'a Ctx,
}

impl Execution<'_> {
    /// Performs the operation and keeps its outcome in `entry`. With a journal, the present state and the
    /// intent are recorded first.
    pub fn first<C: Call>(self, call: C, entry: Entry) -> Answer<C::Reply> {
        let (Some(journal), Some(trail)) = (entry.journal(), call.trail()) else {
            return self.run(call, entry);
        };
        if let Some(room) = journal.room() {
            let sequence = journal.next_sequence();
            return self.intended(call, entry, trail, room, sequence);
        }
        let (waiting, fs, cx) = (journal.wait_for_room(), self.fs.clone(), self.cx.clone());
        self.to_its_end(async move {
            let Some(room) = unless_interrupted(waiting, &cx).await else {
                entry.drop_with(Failure::INTERRUPTED);
                return Err(Error::Interrupted);
            };
            let sequence = entry.journal().map_or(0, Journal::next_sequence);
            let execution = Execution { fs: &fs, cx: &cx };
            execution.intended(call, entry, trail, room, sequence).resolve().await
        })
    }

    /// Records the state before the operation, observed after `sequence` was taken, and the intent; then
    /// performs the operation.
    fn intended<C: Call>(
        self,
        call: C,
        mut entry: Entry,
        trail: Trail,
        room: Reserved,
        sequence: u64,
    ) -> Answer<C::Reply> {
        match look(self.fs, self.cx, C::OP, trail) {
            Answer::Done(seen) => {
                entry.intend(seen.ok().flatten(), sequence, room);
                self.run(call, entry)
            }
            Answer::Later(later) => {
                let (fs, cx) = (self.fs.clone(), self.cx.clone());
                self.to_its_end(async move {
                    entry.intend(later.await.ok().flatten(), sequence, room);
                    let answer = Execution { fs: &fs, cx: &cx }.run(call, entry);
                    answer.resolve().await
                })
            }
        }
    }

    fn run<C: Call>(self, call: C, mut entry: Entry) -> Answer<C::Reply> {
        let is_given_up = call.is_given_up();
        match call.run(&**self.fs, self.cx) {
            Answer::Done(result) => self.keep(entry, result),
            Answer::Later(later) => {
                if is_given_up {
                    entry.may_be_given_up();
                }
                let (fs, cx) = (self.fs.clone(), self.cx.clone());
                let kept = async move {
                    let result = later.await;
                    let kept = Execution { fs: &fs, cx: &cx }.keep(entry, result);
                    kept.resolve().await
                };
                if is_given_up { Answer::later(kept) } else { self.to_its_end(kept) }
            }
        }
    }

    /// Answers a duplicate of an answered request.
    pub fn again<C: Call>(self, call: C, outcome: Outcome) -> Answer<C::Reply> {
        match outcome {
            Outcome::Failed(failure) => Answer::err(failure.error()),
            outcome => Answer::later(call.again(self.below(), outcome)),
        }
    }

    /// Answers a duplicate of a request in progress, once that is answered, or interrupted. If the original
    /// was interrupted, for example by the end of its link, nothing was done, and the duplicate performs the
    /// operation.
    pub fn after<C: Call>(
        self,
        call: C,
        mut pending: Arc<PendingReply>,
        table: Arc<Table>,
        key: EntryKey,
    ) -> Answer<C::Reply> {
        let below = self.below();
        Answer::later(async move {
            loop {
                match outcome_of(pending, &below.cx).await? {
                    Outcome::Failed(Failure::INTERRUPTED) if !call.is_given_up() => {}
                    Outcome::Failed(failure) => return Err(failure.error()),
                    outcome => return call.again(below, outcome).await,
                }
                let execution = Execution { fs: &below.fs, cx: &below.cx };
                let answer = match table.begin(key) {
                    Begin::First(entry) => execution.first(call, entry),
                    Begin::Unremembered => call.run(&*below.fs, &below.cx),
                    Begin::Answered(outcome) => execution.again(call, outcome),
                    Begin::Running(another) => {
                        pending = another;
                        continue;
                    }
                };
                return answer.resolve().await;
            }
        })
    }

    /// Keeps the outcome of a performed operation.
    fn keep<R: Reply>(self, entry: Entry, result: Result<R>) -> Answer<R> {
        let reply = match result {
            Ok(reply) => reply,
            Err(error) => {
                let failure = Failure::from(&error);
                if is_passing(&error) {
                    entry.drop_with(failure);
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
        // The operation is done, even if the caller has been interrupted since.
        let beside = self.cx.beside();
        match self.fs.persistent_handles().map(|handles| handles.handle_of(&beside, node.node)) {
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

    /// Makes an answer complete even if the caller goes away.
    fn to_its_end<R: Reply>(self, later: impl Future<Output = Result<R>> + Send + 'static) -> Answer<R> {
        let below = self.below();
        Answer::Later(Box::pin(ToItsEnd { later: Some(Box::pin(later)), below: Some(below) }))
    }

    fn below(self) -> Below {
        Below { fs: self.fs.clone(), cx: self.cx.clone() }
    }
}

/// Waits for the outcome of another caller's operation, unless interrupted.
async fn outcome_of(pending: Arc<PendingReply>, cx: &Ctx) -> Result<Outcome> {
    unless_interrupted(pending.kept(), cx).await.ok_or(Error::Interrupted)
}

/// Waits for a future, unless interrupted.
async fn unless_interrupted<T>(waiting: impl Future<Output = T>, cx: &Ctx) -> Option<T> {
    let (mut waiting, mut raised) = (pin!(waiting), pin!(cx.interrupt.raised()));
    let waiting = poll_fn(|context| match waiting.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => raised.as_mut().poll(context).map(|()| None),
    });
    waiting.await
}

/// An operation in progress. It continues if its caller goes away, because the work does so anyway, and its
/// outcome is needed for the expected duplicate.
struct ToItsEnd<R: Reply> {
    later: Option<Later<R>>,
    below: Option<Below>,
}

impl<R: Reply> Future for ToItsEnd<R> {
    type Output = Result<R>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<R>> {
        // Taken while polled: after a panic it cannot be continued.
        let Some(mut later) = self.later.take() else { return Poll::Ready(Err(Error::Interrupted)) };
        let polled = later.as_mut().poll(context);
        if polled.is_pending() {
            self.later = Some(later);
        }
        polled
    }
}

impl<R: Reply> Drop for ToItsEnd<R> {
    fn drop(&mut self) {
        let (Some(later), Some(below)) = (self.later.take(), self.below.take()) else { return };
        task::spawn(async move {
            if let Ok(reply) = later.await {
                reply.give_back(&*below.fs, &below.cx);
            }
        });
    }
}
