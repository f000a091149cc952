//! Calls over a link in shared memory.
//!
//! No receiver is woken for each reply: polling a call checks for its answer, and the link's own thread
//! wakes only slow calls. A link is therefore no [`Wire`](super::Wire): the engine expects a byte stream,
//! and the wake-up of its receiver alone takes longer than a whole GETATTR over a link
//! (docs/benchmarks.md). Replies are decoded by the code that decodes those of the network. The client's
//! state (transaction ids, in-flight limit, timers) is that of calls over the network; sending and
//! receiving differ, and so does recovery: after the loss of a link, [`Route`] reconnects, and unanswered
//! calls are retransmitted with the same id.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tombolo_core::{Interrupt, Raised};
use tombolo_mem::Source;

use super::call::{ReceiveBuffer, Reply};
use super::error::{CallError, Failure, InvalidReply};
use super::options::{Interrupts, Recovery};
use super::pending::Outcome;
use super::permit::NextPermit;
use super::reply::read;
use super::shared::SharedClient;
use super::state::SILENT;
use super::timers::Sleep;
use crate::link::{Attempt, Body, Live, Outgoing, ReplyError, Route};
use tombolo_host_links::ProtocolError;
use tombolo_host_links::client::{Call, LineError};
use tombolo_host_runtime::free_list::FreeList;
use tombolo_host_runtime::task;

/// Link transport of a client.
pub(super) struct Linked {
    pub(super) route: Arc<Route>,
    interrupts: Interrupts,
    recovery: Recovery,
    total_timeout: Duration,
    reply_bytes_max: usize,
    /// Memory of ended calls, for reuse.
    spare: FreeList<Box<LinkedState>>,
}

/// Maximum number of [`LinkedState`]s retained for reuse.
const SPARE_MAX: usize = 64;

/// Length of a sleep that is to last until the client ends; a call that is still pending afterwards sleeps
/// again.
const NO_DEADLINE: Duration = Duration::from_secs(24 * 60 * 60);

/// A call over a link.
pub(super) struct LinkedCall {
    shared: Arc<SharedClient>,
    linked: Arc<Linked>,
    /// State of the call; `None` only while it is being returned to the spare list.
    state: Option<Box<LinkedState>>,
}

/// An encoded call and the destination of its reply's data, retained for retransmission.
pub(super) struct Request {
    pub(super) procedure: u32,
    pub(super) xid: u32,
    /// Header and arguments.
    pub(super) head: Vec<u8>,
    pub(super) data: Option<Source>,
    pub(super) receive_buffer: Option<ReceiveBuffer>,
    pub(super) interrupt: Interrupt,
    /// Size of the bulk memory for the part of the reply that does not fit in the frame, the fixed buffer of
    /// the request's id.
    pub(super) buffer_bytes: usize,
}

/// State of a call, separate from [`LinkedCall`] so that its memory can be reused.
struct LinkedState {
    request: Request,
    /// `true` once the server has requested a larger reply buffer.
    is_widened: bool,
    begun_at: Instant,
    /// `true` while the call counts against the in-flight limit.
    counted: bool,
    transmissions: u32,
    stage: LinkedStage,
    sleep: Option<Sleep>,
    raised: Option<Raised>,
}

enum LinkedStage {
    /// Waiting for the in-flight limit.
    AwaitingPermit(NextPermit),
    /// Waiting for a link.
    AwaitingLink,
    /// Waiting for bulk memory of this link.
    AwaitingMemory(Arc<Live>),
    /// The call is sent. `fresh`: no poll has checked for its answer yet. `has_memory`: the call uses bulk
    /// memory.
    Sent { live: Arc<Live>, call: Call, reply_buffer: Option<usize>, has_memory: bool, fresh: bool },
    /// Ended; the outcome is returned at most once.
    Over(Option<Outcome>),
}

impl Linked {
    pub(super) fn new(route: Arc<Route>, options: &super::Options) -> Arc<Self> {
        let rounds = options.retries.saturating_add(1);
        Arc::new(Self {
            route,
            interrupts: options.interrupts,
            recovery: options.recovery,
            total_timeout: options.timeout.saturating_mul(rounds),
            reply_bytes_max: options.reply_bytes_max,
            spare: FreeList::new(SPARE_MAX),
        })
    }
}

impl Request {
    pub(super) fn moved_bytes(&self) -> usize {
        self.len() + self.receive_buffer.as_ref().map_or(0, |receive_buffer| receive_buffer.sink.len())
    }

    fn len(&self) -> usize {
        self.head.len() + self.data.as_ref().map_or(0, Source::len)
    }
}

impl LinkedCall {
    /// Makes a call, and sends it at once if the in-flight limit, the link and its memory allow. `counted`:
    /// the call already counts against the limit.
    pub(super) fn begin(
        shared: &Arc<SharedClient>,
        linked: &Arc<Linked>,
        request: Request,
        bulk: bool,
        counted: bool,
    ) -> Self {
        let stage = match counted || !bulk {
            true => LinkedStage::AwaitingLink,
            false => LinkedStage::AwaitingPermit(NextPermit::new(shared.clone())),
        };
        let state = LinkedState {
            request,
            is_widened: false,
            begun_at: shared.wire.now(),
            counted,
            transmissions: 0,
            stage,
            sleep: None,
            raised: None,
        };
        let state = match linked.spare.take() {
            Some(mut spare) => {
                *spare = state;
                spare
            }
            None => Box::new(state),
        };
        let mut call = Self { shared: shared.clone(), linked: linked.clone(), state: Some(state) };
        if let Some(state) = &mut call.state
            && matches!(state.stage, LinkedStage::AwaitingLink)
        {
            state.send(&call.shared, &call.linked, None);
        }
        call
    }

    /// Returns `true` if the outcome is known without another poll.
    pub(super) fn is_ready(&self) -> bool {
        self.state.as_ref().is_some_and(|state| matches!(state.stage, LinkedStage::Over(Some(_))))
    }

    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Outcome> {
        match &mut self.state {
            Some(state) => state.poll(&self.shared, &self.linked, context),
            None => Poll::Pending,
        }
    }
}

impl Drop for LinkedCall {
    fn drop(&mut self) {
        let Some(mut state) = self.state.take() else { return };
        state.return_permit(&self.shared);
        let stage = std::mem::replace(&mut state.stage, LinkedStage::Over(None));
        if let LinkedStage::Sent { live, call, has_memory, .. } = stage {
            abandon_call(&live, call, has_memory);
        }
        state.release_resources();
        self.shared.lock().keep_head(std::mem::take(&mut state.request.head));
        self.linked.spare.give_back(state);
    }
}

impl LinkedState {
    fn poll(
        &mut self,
        shared: &Arc<SharedClient>,
        linked: &Arc<Linked>,
        context: &mut Context<'_>,
    ) -> Poll<Outcome> {
        loop {
            let step = self.step(shared, linked, context);
            if let LinkedStage::Over(outcome) = &mut self.stage {
                let Some(outcome) = outcome.take() else { return Poll::Pending };
                self.return_permit(shared);
                return Poll::Ready(outcome);
            }
            if step.is_ready() {
                continue;
            }
            if let Some(error) = self.expiry_error(shared, linked, context) {
                self.abandon(error);
                continue;
            }
            return Poll::Pending;
        }
    }

    /// Advances without waiting. Returns `Ready` if it can advance further.
    fn step(
        &mut self,
        shared: &Arc<SharedClient>,
        linked: &Arc<Linked>,
        context: &mut Context<'_>,
    ) -> Poll<()> {
        match &mut self.stage {
            LinkedStage::AwaitingPermit(room) => {
                if Pin::new(room).poll(context).is_pending() {
                    return Poll::Pending;
                }
                let bytes = self.request.moved_bytes();
                let mut state = shared.lock();
                if state.ended {
                    let callee = state.callee(self.request.procedure);
                    self.stage = LinkedStage::Over(Some(Err(CallError::Ended { callee })));
                } else if state.begin_bulk(bytes) {
                    drop(state);
                    self.counted = true;
                    self.stage = LinkedStage::AwaitingLink;
                } else {
                    drop(state);
                    // Other calls took the permits.
                    self.stage = LinkedStage::AwaitingPermit(NextPermit::new(shared.clone()));
                }
                Poll::Ready(())
            }
            LinkedStage::AwaitingLink => {
                self.send(shared, linked, Some(context.waker()));
                if matches!(self.stage, LinkedStage::AwaitingLink) { Poll::Pending } else { Poll::Ready(()) }
            }
            LinkedStage::AwaitingMemory(live) => {
                live.wait_for_memory(context.waker());
                // Memory may have been returned before the registration.
                self.send(shared, linked, Some(context.waker()));
                if matches!(self.stage, LinkedStage::AwaitingMemory(_) | LinkedStage::AwaitingLink) {
                    Poll::Pending
                } else {
                    Poll::Ready(())
                }
            }
            LinkedStage::Sent { call, fresh, .. } => {
                let answer = if std::mem::take(fresh) { call.now() } else { None };
                let answered = match answer {
                    Some(answered) => Poll::Ready(answered),
                    None => Pin::new(call).poll(context),
                };
                answered.map(|answered| self.answered(shared, linked, answered))
            }
            LinkedStage::Over(_) => Poll::Ready(()),
        }
    }

    /// Sends the call over the current link, if there is one and its bulk memory suffices.
    fn send(&mut self, shared: &SharedClient, linked: &Linked, waiter: Option<&Waker>) {
        let Some(live) = linked.route.live(waiter) else {
            self.stage = LinkedStage::AwaitingLink;
            return;
        };
        let Request { head, data, buffer_bytes, .. } = &self.request;
        let outgoing = Outgoing { head, data: data.as_ref(), buffer_bytes: *buffer_bytes };
        self.stage = match live.send(&outgoing) {
            Attempt::Sent { call, reply_buffer, has_memory } => {
                shared.counters.sends.increment();
                shared.counters.sent_bytes.add_len(self.request.len());
                self.transmissions = self.transmissions.saturating_add(1);
                if self.transmissions > 1 {
                    shared.lock().retransmissions += 1;
                }
                LinkedStage::Sent { live, call, reply_buffer, has_memory, fresh: true }
            }
            Attempt::MemoryExhausted => LinkedStage::AwaitingMemory(live),
            Attempt::TooLong => {
                let callee = shared.lock().callee(self.request.procedure);
                LinkedStage::Over(Some(Err(CallError::TooLong { callee, len_bytes: self.request.len() })))
            }
        };
    }

    /// Handles the answer, or the loss of the link.
    fn answered(
        &mut self,
        shared: &Arc<SharedClient>,
        linked: &Arc<Linked>,
        answered: Result<tombolo_host_links::client::Reply, LineError>,
    ) {
        let LinkedStage::Sent { live, reply_buffer, .. } =
            std::mem::replace(&mut self.stage, LinkedStage::AwaitingLink)
        else {
            return;
        };
        let reply = match answered {
            Ok(reply) => reply,
            Err(LineError::Lost { .. }) => return linked.route.lost(&live),
            Err(LineError::TooLong { len_bytes }) => {
                let callee = shared.lock().callee(self.request.procedure);
                self.stage = LinkedStage::Over(Some(Err(CallError::TooLong { callee, len_bytes })));
                return;
            }
        };
        let outcome = match live.take_reply(reply, reply_buffer) {
            Ok(body) => self.read(shared, &body),
            // The server may request a larger buffer once, up to the maximum length of a reply, and the call
            // is repeated. Any other such request is a violation.
            Err(ReplyError::BufferTooSmall(bytes))
                if !self.is_widened
                    && bytes > self.request.buffer_bytes
                    && bytes <= linked.reply_bytes_max =>
            {
                (self.request.buffer_bytes, self.is_widened) = (bytes, true);
                live.memory_returned();
                return;
            }
            Err(ReplyError::BufferTooSmall(_)) => Err(Failure::InvalidReply(InvalidReply::BufferTooSmall)),
            Err(ReplyError::Silence) => Err(Failure::InvalidReply(InvalidReply::Silence)),
            // A malformed reply would be malformed again, so this call fails; others are retransmitted over
            // the next link.
            Err(ReplyError::ProtocolError(_)) => Err(Failure::InvalidReply(InvalidReply::Link)),
        };
        live.memory_returned();
        let outcome = match outcome {
            Ok(reply) => {
                shared.counters.replies.increment();
                Ok(reply)
            }
            Err(failure) => {
                if let Failure::InvalidReply(why) = failure {
                    shared.counters.garbage.increment();
                    live.cut(ProtocolError::Malformed(why.to_string().into()));
                }
                Err(failure.of(shared.lock().callee(self.request.procedure)))
            }
        };
        self.stage = LinkedStage::Over(Some(outcome));
    }

    fn read(&self, shared: &SharedClient, body: &Body) -> Result<Reply, Failure> {
        let (frame, placed) = (&*body.reply.frame, &body.placed);
        shared.counters.received_bytes.add_len(frame.len() + placed.len());
        let Request { xid, receive_buffer, .. } = &self.request;
        let spare = shared.lock().head();
        let reply = read(*xid, frame, placed, receive_buffer.as_ref(), spare)?;
        shared.counters.copied_bytes.add_len(reply.data_bytes);
        Ok(reply)
    }

    /// Returns the error if the call has timed out or is interrupted, or the client has ended.
    fn expiry_error(
        &mut self,
        shared: &Arc<SharedClient>,
        linked: &Linked,
        context: &mut Context<'_>,
    ) -> Option<CallError> {
        let now = shared.wire.now();
        let callee = || shared.lock().callee(self.request.procedure);
        let waited = now.saturating_duration_since(self.begun_at);
        let is_soft = linked.recovery == Recovery::Soft;
        if is_soft && waited >= linked.total_timeout {
            return Some(match self.stage {
                LinkedStage::AwaitingLink => CallError::NoLink { callee: callee(), why: linked.route.why() },
                _ => CallError::TimedOut { callee: callee() },
            });
        }
        let watched_after = match linked.interrupts {
            Interrupts::Always => Some(Duration::ZERO),
            Interrupts::WhenSilent => Some(SILENT),
            Interrupts::Never => None,
        };
        let watched_after = watched_after.filter(|_| self.request.interrupt.can_be_raised());
        if watched_after.is_some_and(|after| waited >= after) {
            let raised = self.raised.get_or_insert_with(|| self.request.interrupt.raised());
            if Pin::new(raised).poll(context).is_ready() {
                return Some(CallError::Interrupted { callee: callee() });
            }
        }
        let next = [watched_after, is_soft.then_some(linked.total_timeout)];
        let next = next.into_iter().flatten().filter(|after| *after > waited).min();
        // The end of the client, which ends the call, ends the sleep too.
        let until = next.map_or(now + NO_DEADLINE, |after| self.begun_at + after);
        let sleep = self.sleep.get_or_insert_with(|| Sleep::new(shared.clone(), until));
        if Pin::new(sleep).poll(context).is_ready() {
            self.sleep = None;
            if shared.lock().ended {
                return Some(CallError::Ended { callee: callee() });
            }
            // The time has just been reached: the next poll decides.
            context.waker().wake_by_ref();
        }
        None
    }

    /// Ends the call with an error, whatever its stage.
    fn abandon(&mut self, error: CallError) {
        let stage = std::mem::replace(&mut self.stage, LinkedStage::Over(Some(Err(error))));
        if let LinkedStage::Sent { live, call, has_memory, .. } = stage {
            abandon_call(&live, call, has_memory);
        }
    }

    /// Returns the permit, if the call has one.
    fn return_permit(&mut self, shared: &SharedClient) {
        if std::mem::take(&mut self.counted) {
            let now = shared.wire.now();
            let took = now.saturating_duration_since(self.begun_at);
            let waiting = shared.lock().end_bulk(now, self.request.moved_bytes(), took);
            waiting.into_iter().for_each(Waker::wake);
        }
    }

    /// Releases the caller's buffers and interrupt, and all registrations, before the state is reused.
    fn release_resources(&mut self) {
        (self.request.data, self.request.receive_buffer) = (None, None);
        (self.sleep, self.raised) = (None, None);
        self.request.interrupt = Interrupt::default();
    }
}

/// Abandons the answer of a call. Bulk memory of a sent call stays in use until it is answered or the link
/// ends, so a task waits for that and then wakes the waiters for memory. Calls without bulk memory need no
/// task, so the link's memory bounds the number of tasks, however long the server is silent.
fn abandon_call(live: &Arc<Live>, call: Call, has_memory: bool) {
    if has_memory {
        let live = Arc::downgrade(live);
        task::spawn(async move {
            drop(call.await);
            if let Some(live) = live.upgrade() {
                live.memory_returned();
            }
        });
    }
}
