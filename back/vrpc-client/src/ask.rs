//! From a request to its answer.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use tombolo_core::fs::{Answer, Ctx, Error, Interrupt, Result};
use tombolo_host::links::client::{Call, FrameWriter, LineError, Reply as Raw, Spans};
use tombolo_host::task;
use tombolo_wire_vrpc::{
    BODY_BYTES, Body, CallerId, EncodeError, FRAME_BYTES, FrameSink, Groups, Header, Kind, Reply, Request,
};

use crate::callers::{Callers, Entered};
use crate::link::{Link, no_answer};
use crate::reply::Answered;

/// A request with what belongs to it.
pub(crate) struct Question<'a> {
    pub(crate) request: Request<'a>,
    /// Bytes behind the frame, as [`Data::Follows`](tombolo_wire_vrpc::Data::Follows) announces them.
    pub(crate) tail: &'a [u8],
    /// Bulk memory that the request names.
    pub(crate) spans: Spans,
}

impl<'a> From<Request<'a>> for Question<'a> {
    fn from(request: Request<'a>) -> Self {
        Self { request, tail: &[], spans: Spans::none() }
    }
}

impl Link {
    /// Asks. `finish` makes of the answer what the waist wants, on the thread that receives it.
    pub(crate) fn ask<T: Send + 'static>(
        self: &Arc<Self>,
        cx: &Ctx,
        question: Question<'_>,
        finish: impl FnOnce(&Link, Answered) -> Result<T> + Send + 'static,
    ) -> Answer<T> {
        let Question { request, tail, spans } = question;
        let (caller, is_known) = match self.callers.enter(&cx.identity) {
            Entered::Known(caller) => (caller, true),
            Entered::Unknown(caller) => (caller, false),
            Entered::Full => return Answer::err(Error::WouldBlock),
        };
        let caller = Entry { link: self, caller };
        let header =
            Header { sequence: self.next_sequence(), caller: caller.caller, want: cx.want, handles: false };
        let mut body = [0; BODY_BYTES];
        let mut measure = Measure::default();
        if let Err(error) = request.encode(&header, &mut body, &mut measure) {
            return Answer::err(cannot_be_said(error));
        }
        let kind = request.kind();
        if !is_known {
            match self.introduce(cx, caller.caller) {
                Introduced::Done => {}
                Introduced::Failed(error) => return Answer::err(error),
                Introduced::Later(introduction) => {
                    let mut frame = Vec::with_capacity(measure.0 + tail.len());
                    put_frame(&request, &header, tail, &mut Private(&mut frame));
                    let later = Owned { kind, body, frame, spans, caller: caller.owned() };
                    return Answer::later(later.send(introduction, cx.interrupt.clone(), finish));
                }
            }
        }
        let asked = self.line.ask(kind.number(), body, spans, |writer| {
            if measure.0 + tail.len() > 0 {
                put_frame(&request, &header, tail, &mut Frame(writer));
            }
        });
        match asked {
            Ok(outcome) => Answer::Done(self.finish(kind, outcome, finish)),
            Err(call) => {
                let OwnedEntry { link, number } = caller.owned();
                let asked = Asked { call: Some(call), link, number: Some(number) };
                let interrupt = cx.interrupt.clone();
                Answer::later(asked.answer(kind, interrupt, finish))
            }
        }
    }

    /// Asks for what `pick` takes out of the answer.
    pub(crate) fn ask_for<T: Send + 'static>(
        self: &Arc<Self>,
        cx: &Ctx,
        request: Request<'_>,
        pick: impl FnOnce(Reply<'_>) -> Option<T> + Send + 'static,
    ) -> Answer<T> {
        self.ask(cx, request.into(), |link, answered| answered.picked(link, pick))
    }

    /// Asks for nothing but that it be done.
    pub(crate) fn ask_to(self: &Arc<Self>, cx: &Ctx, request: Request<'_>) -> Answer<()> {
        self.ask_for(cx, request, |reply| matches!(reply, Reply::Done).then_some(()))
    }

    /// Tells the server something that has no answer in the waist.
    pub(crate) fn tell(self: &Arc<Self>, cx: &Ctx, request: Request<'_>) {
        if let Answer::Later(later) = self.ask_to(cx, request) {
            task::spawn(async move { drop(later.await) });
        }
    }

    fn finish<T>(
        &self,
        kind: Kind,
        outcome: std::result::Result<Raw, LineError>,
        finish: impl FnOnce(&Link, Answered) -> Result<T>,
    ) -> Result<T> {
        let result = match outcome {
            Ok(reply) => finish(self, Answered { kind, reply }),
            Err(error) => Err(no_answer(error)),
        };
        // The spans are given back.
        self.room.changed();
        result
    }

    /// Tells the server who a number is.
    fn introduce(self: &Arc<Self>, cx: &Ctx, caller: CallerId) -> Introduced {
        let identity = &cx.identity;
        let groups = Groups::new(identity.groups());
        let request = Request::Caller { uid: identity.uid, gid: identity.gid, groups };
        let header = Header { sequence: self.next_sequence(), caller, ..Header::default() };
        let mut body = [0; BODY_BYTES];
        if let Err(error) = request.encode(&header, &mut body, &mut Measure::default()) {
            return Introduced::Failed(cannot_be_said(error));
        }
        let mut call = self.line.call(Kind::Caller.number(), body, |writer| {
            put_frame(&request, &header, &[], &mut Frame(writer));
        });
        match call.now() {
            None => Introduced::Later(call),
            Some(outcome) => match self.introduced(caller, outcome) {
                Ok(()) => Introduced::Done,
                Err(error) => Introduced::Failed(error),
            },
        }
    }

    fn introduced(&self, caller: CallerId, outcome: std::result::Result<Raw, LineError>) -> Result<()> {
        let done = |reply: Reply<'_>| matches!(reply, Reply::Done).then_some(());
        self.finish(Kind::Caller, outcome, |link, answered| answered.picked(link, done))?;
        self.callers.is_known(caller);
        Ok(())
    }
}

/// How far the server knows a caller.
enum Introduced {
    Done,
    Failed(Error),
    /// It has been told, and has not answered.
    Later(Call),
}

/// A number in use by a request.
struct Entry<'a> {
    link: &'a Arc<Link>,
    caller: CallerId,
}

impl Entry<'_> {
    /// The same for a request that goes on.
    fn owned(self) -> OwnedEntry {
        let number = Number { callers: self.link.callers.clone(), caller: self.caller };
        let owned = OwnedEntry { link: self.link.clone(), number };
        std::mem::forget(self);
        owned
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        self.link.callers.leave(self.caller);
    }
}

struct OwnedEntry {
    link: Arc<Link>,
    number: Number,
}

/// A number in use by a request that may outlive its session.
struct Number {
    callers: Arc<Callers>,
    caller: CallerId,
}

impl Drop for Number {
    fn drop(&mut self) {
        self.callers.leave(self.caller);
    }
}

/// A request that waits until the server knows who asks.
struct Owned {
    kind: Kind,
    body: Body,
    frame: Vec<u8>,
    spans: Spans,
    caller: OwnedEntry,
}

impl Owned {
    async fn send<T>(
        self,
        introduction: Call,
        interrupt: Interrupt,
        finish: impl FnOnce(&Link, Answered) -> Result<T>,
    ) -> Result<T> {
        let Owned { kind, body, frame, spans, caller } = self;
        let OwnedEntry { link, number } = caller;
        link.introduced(number.caller, introduction.await)?;
        let call = link.line.call_with(kind.number(), body, spans, |writer| writer.put(&frame));
        drop(frame);
        Asked { call: Some(call), link, number: Some(number) }.answer(kind, interrupt, finish).await
    }
}

/// A request that was sent. If nobody waits for the answer any more it goes on all the same.
struct Asked {
    /// None once it is answered.
    call: Option<Call>,
    link: Arc<Link>,
    /// The caller's number, which is nobody else's before the request is answered.
    number: Option<Number>,
}

impl Asked {
    async fn answer<T>(
        mut self,
        kind: Kind,
        interrupt: Interrupt,
        finish: impl FnOnce(&Link, Answered) -> Result<T>,
    ) -> Result<T> {
        let link = self.link.clone();
        let mut raised = pin!(interrupt.raised());
        // A wish that nobody can have need not be looked for.
        let mut may_be_raised = interrupt.can_be_raised();
        let outcome = poll_fn(|context| {
            let Some(call) = &mut self.call else { return Poll::Pending };
            if let Poll::Ready(outcome) = Pin::new(&mut *call).poll(context) {
                return Poll::Ready(outcome);
            }
            if may_be_raised
                && raised.as_mut().poll(context).is_ready()
                // One that has not been sent yet has none; this is polled again when it is.
                && let Some(id) = call.id()
            {
                may_be_raised = false;
                link.interrupt(id);
            }
            Poll::Pending
        })
        .await;
        self.call = None;
        link.finish(kind, outcome, finish)
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let Some(call) = self.call.take() else { return };
        // Its memory is in use until it is answered; then those who wait for memory are told. The session may end before.
        let (link, number) = (Arc::downgrade(&self.link), self.number.take());
        task::spawn(async move {
            drop(call.await);
            drop(number);
            if let Some(link) = link.upgrade() {
                link.room.changed();
            }
        });
    }
}

fn put_frame(request: &Request<'_>, header: &Header, tail: &[u8], frame: &mut impl FrameSink) {
    // It was measured, so it fits; what did not would be a frame that the server refuses.
    let mut body = [0; BODY_BYTES];
    let _ = request.encode(header, &mut body, frame);
    let _ = frame.append(tail);
}

fn cannot_be_said(error: EncodeError) -> Error {
    tracing::debug!(%error, "a request that cannot be said");
    match error {
        EncodeError::FrameFull => Error::TooBig,
        _ => Error::InvalidArgument,
    }
}

/// In the place of a frame: counts what it would hold.
#[derive(Default)]
pub(crate) struct Measure(usize);

impl FrameSink for Measure {
    fn room_bytes(&self) -> usize {
        FRAME_BYTES - self.0
    }

    #[inline]
    fn append(&mut self, bytes: &[u8]) -> bool {
        let fits = bytes.len() <= self.room_bytes();
        if fits {
            self.0 += bytes.len();
        }
        fits
    }
}

/// The frame of a call.
struct Frame<'a, 'w>(&'a mut FrameWriter<'w>);

impl FrameSink for Frame<'_, '_> {
    fn room_bytes(&self) -> usize {
        FRAME_BYTES.saturating_sub(self.0.len())
    }

    #[inline]
    fn append(&mut self, bytes: &[u8]) -> bool {
        let fits = bytes.len() <= self.room_bytes();
        if fits {
            self.0.put(bytes);
        }
        fits
    }
}

/// A frame in private memory, for a request that has to wait.
struct Private<'a>(&'a mut Vec<u8>);

impl FrameSink for Private<'_> {
    fn room_bytes(&self) -> usize {
        FRAME_BYTES.saturating_sub(self.0.len())
    }

    fn append(&mut self, bytes: &[u8]) -> bool {
        let fits = bytes.len() <= self.room_bytes();
        if fits {
            self.0.extend_from_slice(bytes);
        }
        fits
    }
}
