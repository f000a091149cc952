//! One request on its way to its answer.

use std::sync::Arc;

use tombolo_core::fs::{FileSystem, Xattrs};
use tombolo_core::{Answer, Ctx, Error, Interrupt, Permit, Resource, Result};
use tombolo_host_links::ProtocolError;
use tombolo_host_links::server::Responder;
use tombolo_host_runtime::task;
use tombolo_wire_vrpc::{
    BODY_BYTES, CallerId, FRAME_BYTES, FrameBuf, FrameSink, Kind, Reply, encode_failure,
};

use crate::parts::Parts;
use crate::session::Shared;

/// One request while its operation is begun, on the link's thread.
pub(crate) struct Exchange<'a> {
    pub(crate) shared: &'a Arc<Shared>,
    pub(crate) cx: &'a Ctx,
    /// The caller, in the peer's numbers.
    pub(crate) caller: CallerId,
    /// Whether the peer wants the handles of nodes along with them.
    pub(crate) wants_handles: bool,
    pub(crate) kind: Kind,
    pub(crate) parts: Box<Parts>,
    pub(crate) responder: Responder,
}

/// A request whose operation has ended, on whatever thread.
pub(crate) struct Closing<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) parts: &'a mut Parts,
    kind: Kind,
    /// None once it is used.
    responder: Option<Responder>,
}

impl<'a> Exchange<'a> {
    pub(crate) fn fs(&self) -> &'a dyn FileSystem {
        let shared: &'a Shared = self.shared;
        &*shared.file_system
    }

    /// The extended attributes, if the file system has them and this session offers them.
    pub(crate) fn xattrs(&self) -> Option<&'a dyn Xattrs> {
        self.fs().xattrs().filter(|_| self.shared.options.xattrs)
    }

    /// Answers with what the operation gives, in the words of the wire.
    pub(crate) fn answer<T: Send + 'static>(
        self,
        answer: Answer<T>,
        reply: impl FnOnce(T) -> Reply<'static> + Send + 'static,
    ) {
        self.close(answer, |closing, value| closing.send(&reply(value)));
    }

    /// Has the answer sent by `send`, for replies that borrow.
    pub(crate) fn close<T: Send + 'static>(
        self,
        answer: Answer<T>,
        send: impl FnOnce(&mut Closing<'_>, T) + Send + 'static,
    ) {
        let Exchange { shared, cx, kind, mut parts, responder, .. } = self;
        match answer {
            Answer::Done(result) => {
                end(shared, kind, &mut parts, responder, result, send);
                shared.parts_pool.give_back(parts);
            }
            Answer::Later(later) => {
                let permit = admit(shared, &responder, &cx.interrupt);
                let shared = shared.clone();
                task::spawn(async move {
                    let result = match later.await {
                        // The peer has not asked for that: too many pend.
                        Err(Error::Interrupted) if permit.is_none() => Err(Error::Busy),
                        result => result,
                    };
                    shared.pending.remove(responder.id());
                    drop(permit);
                    end(&shared, kind, &mut parts, responder, result, send);
                    shared.parts_pool.give_back_later(parts);
                });
            }
        }
    }

    /// Nothing had to be done, or the work is not awaited.
    pub(crate) fn done(self) {
        self.answer(Answer::ok(()), |()| Reply::Done);
    }

    /// An error.
    pub(crate) fn refuse(self, error: Error) {
        self.close(Answer::<()>::err(error), |_, ()| {});
    }

    /// The peer broke the protocol.
    pub(crate) fn cut(self, why: impl Into<ProtocolError>) {
        self.shared.parts_pool.give_back(self.parts);
        self.responder.cut(why);
    }
}

/// Counts a request as pending. Beyond the session's limit it is asked to end at once; its answer still
/// comes.
fn admit(shared: &Shared, responder: &Responder, interrupt: &Interrupt) -> Option<Permit> {
    shared.pending.add(responder.id(), interrupt);
    let permit = shared.budget.take(Resource::Pending, 1);
    if permit.is_none() {
        interrupt.raise();
    }
    permit
}

fn end<T>(
    shared: &Shared,
    kind: Kind,
    parts: &mut Parts,
    responder: Responder,
    result: Result<T>,
    send: impl FnOnce(&mut Closing<'_>, T),
) {
    let mut closing = Closing { shared, parts, kind, responder: Some(responder) };
    match result {
        Ok(value) => send(&mut closing, value),
        Err(error) => closing.fail(&error),
    }
}

impl Closing<'_> {
    /// Answers.
    pub(crate) fn send(&mut self, reply: &Reply<'_>) {
        let Some(responder) = self.responder.take() else { return };
        let mut body = [0; BODY_BYTES];
        let mut frame = FrameBuf::new(&mut self.parts.frame[..]);
        match reply.encode(self.kind, &mut body, &mut frame) {
            Ok(kind) => responder.send(kind, body, frame.as_bytes()),
            Err(error) => {
                tracing::error!(session = self.shared.id.0, kind = ?self.kind, %error, "an answer that cannot be said");
                refuse(responder, self.kind, &Error::Overflow);
            }
        }
    }

    /// Answers with data that lie in the parts already, `len_bytes` of them.
    pub(crate) fn send_data(&mut self, len_bytes: usize, reply: impl FnOnce(&[u8]) -> Reply<'_>) {
        // The data are copied to the frame, where encoding them as a part of the answer would copy them
        // again.
        let Some(responder) = self.responder.take() else { return };
        let mut body = [0; BODY_BYTES];
        let data = self.parts.data_to_frame(len_bytes);
        match reply(data).encode(self.kind, &mut body, &mut Nowhere) {
            Ok(kind) => responder.send(kind, body, data),
            Err(_) => refuse(responder, self.kind, &Error::Overflow),
        }
    }

    /// An error.
    pub(crate) fn fail(&mut self, error: &Error) {
        if let Error::Io { source: Some(source) } = error {
            tracing::error!(session = self.shared.id.0, kind = ?self.kind, error = %source, "I/O error");
        }
        if let Some(responder) = self.responder.take() {
            refuse(responder, self.kind, error);
        }
    }
}

/// In the place of a frame that is there already.
struct Nowhere;

impl FrameSink for Nowhere {
    fn room_bytes(&self) -> usize {
        FRAME_BYTES
    }

    fn append(&mut self, _bytes: &[u8]) -> bool {
        true
    }
}

fn refuse(responder: Responder, kind: Kind, error: &Error) {
    let mut body = [0; BODY_BYTES];
    let kind = encode_failure(kind, error, &mut body);
    responder.send(kind, body, &[]);
}
