//! Requests on one link, from encoding to reply.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use tombolo_core::{Ctx, Error, Interrupt, Result};
use tombolo_host_links::client::{Call, FrameWriter, LineError, Reply as Raw, Spans};
use tombolo_host_runtime::task;
use tombolo_wire_vrpc::{BODY_BYTES, Body, CallerId, Groups, Header, Kind, Reply, Request};

use crate::callers::{CallerNumber, Callers};
use crate::frame::{Frame, cannot_be_encoded, encoded};
use crate::link::Link;
use crate::reply::Answered;

/// A request in the server's ids, with its data.
pub(crate) struct OutgoingRequest<'a> {
    pub(crate) request: Request<'a>,
    /// Bytes after the frame, announced by [`Data::Follows`](tombolo_wire_vrpc::Data::Follows).
    pub(crate) tail: &'a [u8],
    /// Bulk memory referenced by the request.
    pub(crate) spans: Spans,
}

impl<'a> From<Request<'a>> for OutgoingRequest<'a> {
    fn from(request: Request<'a>) -> Self {
        Self { request, tail: &[], spans: Spans::none() }
    }
}

/// Reasons why a request has no reply.
#[derive(Debug)]
pub(crate) enum NoAnswer {
    /// The link has ended. The server may or may not have performed the request.
    Lost,
    /// The request was not sent, or is known to have failed.
    Failed(Error),
}

impl From<NoAnswer> for Error {
    fn from(no_answer: NoAnswer) -> Self {
        match no_answer {
            NoAnswer::Lost => Self::Disconnected,
            NoAnswer::Failed(error) => error,
        }
    }
}

impl From<LineError> for NoAnswer {
    fn from(error: LineError) -> Self {
        match error {
            LineError::Lost { .. } => Self::Lost,
            other => Self::Failed(Error::io(other)),
        }
    }
}

/// Outcome of a request on one link.
pub(crate) type Outcome = std::result::Result<Raw, NoAnswer>;

/// State of a request after sending.
pub(crate) enum Sent {
    Ended(Outcome),
    Pending(InFlight),
}

impl Link {
    /// Sends a request, and polls for its reply as long as polling is likely to succeed soon.
    #[inline]
    pub(crate) fn send(self: &Arc<Self>, cx: &Ctx, sequence: u64, outgoing: OutgoingRequest<'_>) -> Sent {
        self.send_as(cx, sequence, outgoing, true)
    }

    /// Returns the caller's number, and `true` if the server knows it; `None` if all numbers are in use.
    #[inline]
    fn enter(self: &Arc<Self>, cx: &Ctx) -> Option<(CallerGuard<'_>, bool)> {
        let (caller, is_introduced) = match self.callers.enter(&cx.identity) {
            CallerNumber::Introduced(caller) => (caller, true),
            CallerNumber::NotIntroduced(caller) => (caller, false),
            CallerNumber::Full => return None,
        };
        Some((CallerGuard { link: self, caller }, is_introduced))
    }

    /// Sends a request as [`send`](Self::send) does, or without polling for its reply.
    #[inline]
    fn send_as(
        self: &Arc<Self>,
        cx: &Ctx,
        sequence: u64,
        outgoing: OutgoingRequest<'_>,
        polls: bool,
    ) -> Sent {
        let OutgoingRequest { request, tail, spans } = outgoing;
        let failed = |error| Sent::Ended(Err(NoAnswer::Failed(error)));
        let Some((caller, is_introduced)) = self.enter(cx) else { return failed(Error::WouldBlock) };
        let kind = request.kind();
        let handles = gives_nodes(kind) && self.has_handles();
        // No thread waits for a reply that is not polled, so the server need not ring the doorbell for it,
        // unless few slots are free: the reply occupies its slot until a later one is received.
        let quiet = !polls && is_introduced && self.has_quiet_requests() && self.line.is_half_free();
        let header = Header { sequence, caller: caller.caller, want: cx.want, handles, quiet };
        let mut body = [0; BODY_BYTES];
        let mut frame = Frame::default();
        if let Err(error) = request.encode(&header, &mut body, &mut frame) {
            return failed(cannot_be_encoded(error));
        }
        if !is_introduced {
            match self.introduce(cx, caller.caller) {
                Introduced::Done => {}
                Introduced::Failed(error) => return Sent::Ended(Err(error)),
                Introduced::Later(call) => {
                    let frame = frame.with_tail(tail);
                    return Sent::Pending(caller.pending(Stage::Introduced {
                        call,
                        kind,
                        body,
                        frame,
                        spans,
                    }));
                }
            }
        }
        let put = |writer: &mut FrameWriter<'_>| put_frame(writer, &frame, tail);
        let outcome = match polls {
            true => self.line.ask(kind.number(), body, spans, put),
            false => Err(self.line.call_with(kind.number(), body, spans, put)),
        };
        match outcome {
            Ok(outcome) => Sent::Ended(outcome.map_err(NoAnswer::from)),
            Err(call) => Sent::Pending(caller.pending(Stage::Asked(call))),
        }
    }

    /// Sends a request for whose reply the server does not ring the doorbell; `None` if the request cannot be
    /// put in the ring at once, or the server does not know the caller yet.
    pub(crate) fn try_send_quietly(
        self: &Arc<Self>,
        cx: &Ctx,
        sequence: u64,
        outgoing: OutgoingRequest<'_>,
    ) -> Option<Call> {
        let OutgoingRequest { request, tail, spans } = outgoing;
        // The server resolves caller numbers in the order of the requests, so that the number may be
        // reassigned before the reply.
        let (caller, _) = self.enter(cx).filter(|(_, is_introduced)| *is_introduced)?;
        let header =
            Header { sequence, caller: caller.caller, want: cx.want, quiet: true, ..Header::default() };
        let mut body = [0; BODY_BYTES];
        let mut frame = Frame::default();
        let kind = request.encode(&header, &mut body, &mut frame).ok()?;
        self.line.try_call_with(kind.number(), body, spans, |writer| put_frame(writer, &frame, tail))
    }

    pub(crate) async fn exchange(self: &Arc<Self>, cx: &Ctx, outgoing: OutgoingRequest<'_>) -> Outcome {
        match self.send(cx, self.objects.next_sequence(), outgoing) {
            Sent::Ended(outcome) => outcome,
            Sent::Pending(pending) => pending.outcome(&cx.interrupt).await,
        }
    }

    /// Converts a reply to the waist's result.
    #[inline]
    pub(crate) fn finish<T>(
        &self,
        kind: Kind,
        reply: Raw,
        finish: impl FnOnce(&Link, Answered) -> Result<T>,
    ) -> Result<T> {
        let result = finish(self, Answered { kind, reply });
        // `finish` may have dropped the reply, and thereby freed its spans.
        self.bulk_waiters.changed();
        result
    }

    /// Sends a request whose result the waist ignores; the request is not sent again if the link is lost. If
    /// it is in the ring at once, nothing waits for its reply, which is taken out together with a later one.
    pub(crate) fn send_detached(self: &Arc<Self>, cx: &Ctx, request: Request<'_>) {
        let sent = self.send_as(cx, self.objects.next_sequence(), request.into(), false);
        if let Sent::Pending(pending) = sent
            && let Some(unsent) = pending.ignore_reply()
        {
            task::spawn(async move {
                let _ = unsent.outcome(&Interrupt::default()).await;
            });
        }
    }

    /// Sends the identity of a caller number to the server.
    fn introduce(self: &Arc<Self>, cx: &Ctx, caller: CallerId) -> Introduced {
        let identity = &cx.identity;
        let groups = Groups::new(identity.groups());
        let request = Request::Caller { uid: identity.uid, gid: identity.gid, groups };
        let header = Header { sequence: self.objects.next_sequence(), caller, ..Header::default() };
        let (body, frame) = match encoded(&request, &header) {
            Ok(encoded) => encoded,
            Err(error) => return Introduced::Failed(NoAnswer::Failed(error)),
        };
        let mut call = self.line.call(Kind::Caller.number(), body, |writer| writer.put(frame.as_bytes()));
        match call.now() {
            None => Introduced::Later(call),
            Some(outcome) => match self.introduced(caller, outcome) {
                Ok(()) => Introduced::Done,
                Err(error) => Introduced::Failed(error),
            },
        }
    }

    fn introduced(
        &self,
        caller: CallerId,
        outcome: std::result::Result<Raw, LineError>,
    ) -> std::result::Result<(), NoAnswer> {
        let done = |reply: Reply<'_>| matches!(reply, Reply::Done).then_some(());
        self.finish(Kind::Caller, outcome?, |link, answered| answered.extract(link, done))
            .map_err(NoAnswer::Failed)?;
        self.callers.set_introduced(caller);
        Ok(())
    }
}

fn put_frame(writer: &mut FrameWriter<'_>, frame: &Frame, tail: &[u8]) {
    for part in [frame.as_bytes(), tail] {
        if !part.is_empty() {
            writer.put(part);
        }
    }
}

/// Returns `true` if replies to such a request contain nodes.
fn gives_nodes(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::Lookup
            | Kind::Create
            | Kind::CreateUnnamed
            | Kind::Mkdir
            | Kind::Symlink
            | Kind::Mknod
            | Kind::Link
            | Kind::Readdir
            | Kind::Resolve
            | Kind::Parent
    )
}

/// State of a caller's introduction to the server.
enum Introduced {
    Done,
    Failed(NoAnswer),
    /// Sent, but not acknowledged.
    Later(Call),
}

/// A caller number in use by a request.
struct CallerGuard<'a> {
    link: &'a Arc<Link>,
    caller: CallerId,
}

impl CallerGuard<'_> {
    /// Moves the use to a request in flight.
    fn pending(self, stage: Stage) -> InFlight {
        let number = OwnedCallerGuard { callers: self.link.callers.clone(), caller: self.caller };
        let link = self.link.clone();
        std::mem::forget(self);
        InFlight { link, number: Some(number), stage }
    }
}

impl Drop for CallerGuard<'_> {
    fn drop(&mut self) {
        self.link.callers.leave(self.caller);
    }
}

/// A caller number in use by a request in flight, which may outlive its session.
struct OwnedCallerGuard {
    callers: Arc<Callers>,
    caller: CallerId,
}

impl Drop for OwnedCallerGuard {
    fn drop(&mut self) {
        self.callers.leave(self.caller);
    }
}

/// A request in flight. Dropping it does not cancel it, unless it still waits for the introduction of its
/// caller: then it is never sent.
pub(crate) struct InFlight {
    pub(crate) link: Arc<Link>,
    /// The caller number, which is not reassigned before the reply, unless the reply is ignored.
    number: Option<OwnedCallerGuard>,
    stage: Stage,
}

enum Stage {
    /// Waiting for the server to acknowledge the caller.
    Introduced { call: Call, kind: Kind, body: Body, frame: Vec<u8>, spans: Spans },
    /// The request is sent.
    Asked(Call),
    /// The request is completed, or has failed.
    Over,
}

impl InFlight {
    /// Gives up the reply of a request, which must reference no memory. The server resolves caller numbers in
    /// the order of the requests, so the number may be reassigned. Returns a request that is not in the ring
    /// yet, for the caller to drive.
    fn ignore_reply(mut self) -> Option<Self> {
        let is_sent = matches!(&self.stage, Stage::Asked(call) if call.id().is_some());
        if !is_sent {
            return Some(self);
        }
        self.stage = Stage::Over;
        None
    }

    /// Waits for the reply. An interrupt is forwarded to the server, which still replies.
    pub(crate) async fn outcome(mut self, interrupt: &Interrupt) -> Outcome {
        let link = self.link.clone();
        self.stage = match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Introduced { call, kind, body, frame, spans } => {
                let caller = self.number.as_ref().map(|number| number.caller).unwrap_or_default();
                link.introduced(caller, call.await)?;
                Stage::Asked(link.line.call_with(kind.number(), body, spans, |writer| writer.put(&frame)))
            }
            stage => stage,
        };
        let mut raised = pin!(interrupt.raised());
        // An interrupt that cannot be raised is not polled.
        let mut may_be_raised = interrupt.can_be_raised();
        let outcome = poll_fn(|context| {
            let Stage::Asked(call) = &mut self.stage else { return Poll::Pending };
            if let Poll::Ready(outcome) = Pin::new(&mut *call).poll(context) {
                return Poll::Ready(outcome);
            }
            if may_be_raised
                && raised.as_mut().poll(context).is_ready()
                // A call without an id is not sent yet; the interrupt takes effect once it is.
                && let Some(id) = call.id()
            {
                may_be_raised = false;
                link.interrupt(id);
            }
            Poll::Pending
        })
        .await;
        self.stage = Stage::Over;
        outcome.map_err(NoAnswer::from)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let Stage::Asked(call) = std::mem::replace(&mut self.stage, Stage::Over) else { return };
        // A task awaits the reply, until which the call's memory is in use, and then wakes waiters for
        // memory. It does not keep the link, because the session may end earlier.
        let (link, number) = (Arc::downgrade(&self.link), self.number.take());
        task::spawn(async move {
            drop(call.await);
            drop(number);
            if let Some(link) = link.upgrade() {
                link.bulk_waiters.changed();
            }
        });
    }
}
