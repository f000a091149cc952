//! Replies with a node, and its handle for clients that resolve it again over another link.

use tombolo_core::fs::{Created, Entry, FileSystem, Made, NodeId, PersistentHandle};
use tombolo_core::{Answer, Ctx};
use tombolo_wire_vrpc::{HandleBytes, Reply};

use crate::exchange::{Closing, Exchange};
use crate::session::Shared;

/// An operation's result that has a node.
pub(super) trait Given: Send + 'static {
    /// Returns the node.
    fn node(&self) -> NodeId;

    /// Converts the result to a reply.
    fn reply(self, handle: Option<HandleBytes<'_>>) -> Reply<'_>;
}

impl Given for Entry {
    fn node(&self) -> NodeId {
        self.node
    }

    fn reply(self, handle: Option<HandleBytes<'_>>) -> Reply<'_> {
        Reply::Entry(self, handle)
    }
}

impl Given for Made {
    fn node(&self) -> NodeId {
        self.entry.node
    }

    fn reply(self, handle: Option<HandleBytes<'_>>) -> Reply<'_> {
        Reply::Made(self, handle)
    }
}

impl Given for Created {
    fn node(&self) -> NodeId {
        self.entry.node
    }

    fn reply(self, handle: Option<HandleBytes<'_>>) -> Reply<'_> {
        Reply::Created(self, handle)
    }
}

/// Replies with a node, after fetching its handle if requested. Without a handle the request still succeeds.
pub(super) fn answer<T: Given>(exchange: Exchange<'_>, answer: Answer<T>) {
    if !exchange.wants_handles || exchange.fs().persistent_handles().is_none() {
        return exchange.close(answer, |closing, given| closing.send(&given.reply(None)));
    }
    let answer = match answer {
        Answer::Done(Ok(given)) => match ask(exchange.fs(), exchange.cx, given.node()) {
            Answer::Done(handle) => Answer::ok((given, handle.ok())),
            Answer::Later(later) => Answer::later(async move { Ok((given, later.await.ok())) }),
        },
        Answer::Done(Err(error)) => Answer::Done(Err(error)),
        Answer::Later(later) => {
            let (shared, cx) = (exchange.shared.clone(), exchange.cx.clone());
            Answer::later(async move {
                let given = later.await?;
                let handle = ask(&*shared.file_system, &cx, given.node());
                Ok((given, handle.resolve().await.ok()))
            })
        }
    };
    exchange.close(answer, send);
}

fn send<T: Given>(closing: &mut Closing<'_>, (given, handle): (T, Option<PersistentHandle>)) {
    let handle = handle.and_then(|handle| sign(closing.shared, &handle));
    closing.send(&given.reply(handle.as_ref().map(Into::into)));
}

fn ask(fs: &dyn FileSystem, cx: &Ctx, node: NodeId) -> Answer<PersistentHandle> {
    match fs.persistent_handles() {
        Some(handles) => handles.handle_of(cx, node),
        None => Answer::err(tombolo_core::Error::NotSupported),
    }
}

fn sign(shared: &Shared, handle: &PersistentHandle) -> Option<PersistentHandle> {
    let volume = shared.file_system.persistent_handles()?.volume();
    shared.signer.sign(handle, volume)
}

/// Returns the handle of a listed node if it is available at once: listings do not wait for handles.
pub(super) fn at_hand(shared: &Shared, cx: &Ctx, node: NodeId) -> Option<PersistentHandle> {
    match ask(&*shared.file_system, cx, node) {
        Answer::Done(Ok(handle)) => sign(shared, &handle),
        Answer::Done(Err(_)) | Answer::Later(_) => None,
    }
}
