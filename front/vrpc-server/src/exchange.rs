//! A request from the start of its operation to its reply.

use std::sync::Arc;

use tombolo_core::fs::{File, FileSystem, Xattrs};
use tombolo_core::{Answer, Ctx, Error, Interrupt, Permit, Resource, Result};
use tombolo_host_links::ProtocolError;
use tombolo_host_links::server::Responder;
use tombolo_host_runtime::task;
use tombolo_shm::link::Features;
use tombolo_wire_vrpc::{
    BODY_BYTES, CallerId, FRAME_BYTES, FrameBuf, FrameSink, Kind, Reply, encode_failure,
};

use crate::parts::Parts;
use crate::session::SessionShared;

/// A request whose operation is being started, on the link's thread.
pub(crate) struct Exchange<'a> {
    pub(crate) shared: &'a Arc<SessionShared>,
    pub(crate) cx: &'a Ctx,
    /// Number by which the peer names the request's caller.
    pub(crate) caller: CallerId,
    /// `true` if the peer requests handles with nodes.
    pub(crate) wants_handles: bool,
    /// `true` if no later request of the link may begin before this one has been answered.
    pub(crate) is_in_order: bool,
    pub(crate) kind: Kind,
    pub(crate) parts: Box<Parts>,
    pub(crate) responder: Responder,
}

/// A request whose operation has completed, on any thread.
pub(crate) struct Completion<'a> {
    pub(crate) shared: &'a SessionShared,
    pub(crate) parts: &'a mut Parts,
    kind: Kind,
    /// Responder of the request; `None` once used.
    responder: Option<Responder>,
}

/// Evaluates to the value of a result; on a protocol violation ends the link and returns from the function.
macro_rules! or_cut {
    ($exchange:expr, $result:expr) => {
        match $result {
            Ok(value) => value,
            Err(error) => return $exchange.cut(error),
        }
    };
}
pub(crate) use or_cut;

impl<'a> Exchange<'a> {
    pub(crate) fn fs(&self) -> &'a dyn FileSystem {
        let shared: &'a SessionShared = self.shared;
        &*shared.file_system
    }

    /// Returns the extended attributes, if the file system has them and this session offers them.
    pub(crate) fn xattrs(&self) -> Option<&'a dyn Xattrs> {
        self.fs().xattrs().filter(|_| self.shared.options.xattrs)
    }

    /// Replies with the operation's result.
    pub(crate) fn answer<T: Send + 'static>(
        self,
        answer: Answer<T>,
        reply: impl FnOnce(T) -> Reply<'static> + Send + 'static,
    ) {
        self.close(answer, |completion, value| completion.send(&reply(value)));
    }

    /// Completes the operation, at once or as a task; `send` sends the reply, which may borrow from the
    /// result. A failed operation is answered with its error.
    pub(crate) fn close<T: Send + 'static>(
        self,
        answer: Answer<T>,
        send: impl FnOnce(&mut Completion<'_>, T) + Send + 'static,
    ) {
        let Exchange { shared, cx, kind, is_in_order, mut parts, responder, .. } = self;
        match answer {
            Answer::Done(result) => {
                end(shared, kind, &mut parts, responder, result, send);
                shared.parts_pool.give_back(parts);
            }
            Answer::Later(later) => {
                let permit = admit(shared, &responder, &cx.interrupt);
                let turn = is_in_order.then(|| shared.turn.take());
                let session = shared.clone();
                task::spawn(async move {
                    let shared = session;
                    let result = match later.await {
                        // This server raised the interrupt, because too many requests were pending.
                        Err(Error::Interrupted) if permit.is_none() => Err(Error::Busy),
                        result => result,
                    };
                    shared.pending.remove(responder.id());
                    drop(permit);
                    end(&shared, kind, &mut parts, responder, result, send);
                    shared.parts_pool.give_back_later(parts);
                    drop(turn);
                });
                if is_in_order {
                    shared.turn.wait();
                }
            }
        }
    }

    /// Replies without a result.
    pub(crate) fn done(self) {
        self.answer(Answer::ok(()), |()| Reply::Done);
    }

    /// Replies with an error.
    pub(crate) fn refuse(self, error: Error) {
        self.close(Answer::<()>::err(error), |_, ()| {});
    }

    /// Ends the link because of a protocol violation.
    pub(crate) fn cut(self, why: impl Into<ProtocolError>) {
        self.shared.parts_pool.give_back(self.parts);
        self.responder.cut(why);
    }
}

/// Counts a request as pending. A request beyond the session's limit gets no permit: it is interrupted at
/// once, and still gets a reply.
fn admit(shared: &SessionShared, responder: &Responder, interrupt: &Interrupt) -> Option<Permit> {
    shared.pending.add(responder.id(), interrupt);
    let permit = shared.budget.take(Resource::Pending, 1);
    if permit.is_none() {
        interrupt.raise();
    }
    permit
}

/// Sends the reply of a completed operation: `send` that of a successful one.
fn end<T>(
    shared: &SessionShared,
    kind: Kind,
    parts: &mut Parts,
    responder: Responder,
    result: Result<T>,
    send: impl FnOnce(&mut Completion<'_>, T),
) {
    let mut completion = Completion { shared, parts, kind, responder: Some(responder) };
    match result {
        Ok(value) => send(&mut completion, value),
        Err(error) => completion.fail(&error),
    }
}

impl Completion<'_> {
    /// Sends the reply, or [`Error::Overflow`] if it cannot be encoded.
    pub(crate) fn send(&mut self, reply: &Reply<'_>) {
        let Some(responder) = self.responder.take() else { return };
        let mut body = [0; BODY_BYTES];
        let mut frame = FrameBuf::new(&mut self.parts.frame[..]);
        match reply.encode(self.kind, &mut body, &mut frame) {
            Ok(kind) => responder.send(kind, body, frame.as_bytes()),
            Err(error) => {
                tracing::error!(session = self.shared.id.0, kind = ?self.kind, %error, "cannot encode a reply");
                refuse(responder, self.kind, &Error::Overflow);
            }
        }
    }

    /// Sends a reply with `len_bytes` of data that is in the parts.
    pub(crate) fn send_data(&mut self, len_bytes: usize, reply: impl FnOnce(&[u8]) -> Reply<'_>) {
        // The data are copied to the frame directly: encoding them in the reply would copy them twice.
        let Some(responder) = self.responder.take() else { return };
        let mut body = [0; BODY_BYTES];
        let data = self.parts.data_to_frame(len_bytes);
        match reply(data).encode(self.kind, &mut body, &mut DiscardFrame) {
            Ok(kind) => responder.send(kind, body, data),
            Err(_) => refuse(responder, self.kind, &Error::Overflow),
        }
    }

    /// Returns `true` if the reply may state that the opening is [prompt](FileSystem::is_prompt).
    pub(crate) fn is_prompt(&self, file: File) -> bool {
        let features = self.responder.as_ref().map_or(Features::empty(), Responder::features);
        features.contains(Features::QUIET) && self.shared.file_system.is_prompt(file)
    }

    /// Replies with an error, and logs I/O errors.
    pub(crate) fn fail(&mut self, error: &Error) {
        if let Error::Io { source: Some(source) } = error {
            tracing::error!(session = self.shared.id.0, kind = ?self.kind, error = %source, "I/O error");
        }
        if let Some(responder) = self.responder.take() {
            refuse(responder, self.kind, error);
        }
    }
}

/// Sink for encoding when the frame is already filled.
struct DiscardFrame;

impl FrameSink for DiscardFrame {
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
