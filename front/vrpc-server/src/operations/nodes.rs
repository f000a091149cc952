//! Replies with a node, and its handle for clients that resolve it again over another link.

use tombolo_core::fs::{Created, Entry, File, FileSystem, Made, NodeId, PersistentHandle};
use tombolo_core::{Answer, Ctx};
use tombolo_wire_vrpc::{HandleBytes, Reply};

use crate::exchange::{Completion, Exchange};
use crate::session::SessionShared;

/// An operation's result that has a node.
pub(super) trait NodeReply: Send + 'static {
    /// Returns the number of the node in the result.
    fn node(&self) -> NodeId;

    /// Returns the opening in the result, if there is one.
    fn file(&self) -> Option<File> {
        None
    }

    /// Converts the result to a reply, which contains the node's persistent handle if given. `is_prompt`: the
    /// opening is [prompt](FileSystem::is_prompt).
    fn reply(self, handle: Option<HandleBytes<'_>>, is_prompt: bool) -> Reply<'_>;
}

impl NodeReply for Entry {
    fn node(&self) -> NodeId {
        self.node
    }

    fn reply(self, handle: Option<HandleBytes<'_>>, _: bool) -> Reply<'_> {
        Reply::Entry(self, handle)
    }
}

impl NodeReply for Made {
    fn node(&self) -> NodeId {
        self.entry.node
    }

    fn reply(self, handle: Option<HandleBytes<'_>>, _: bool) -> Reply<'_> {
        Reply::Made(self, handle)
    }
}

impl NodeReply for Created {
    fn node(&self) -> NodeId {
        self.entry.node
    }

    fn file(&self) -> Option<File> {
        Some(File { node: self.entry.node, open: self.open })
    }

    fn reply(self, handle: Option<HandleBytes<'_>>, is_prompt: bool) -> Reply<'_> {
        Reply::Created(self, handle, is_prompt)
    }
}

/// Replies with a node, after fetching its handle if requested. Without a handle the request still succeeds.
pub(super) fn answer<T: NodeReply>(exchange: Exchange<'_>, answer: Answer<T>) {
    if !exchange.wants_handles || exchange.fs().persistent_handles().is_none() {
        return exchange.close(answer, |completion, result| send(completion, (result, None)));
    }
    let answer = match answer {
        Answer::Done(Ok(result)) => match handle_of(exchange.fs(), exchange.cx, result.node()) {
            Answer::Done(handle) => Answer::ok((result, handle.ok())),
            Answer::Later(later) => Answer::later(async move { Ok((result, later.await.ok())) }),
        },
        Answer::Done(Err(error)) => Answer::Done(Err(error)),
        Answer::Later(later) => {
            let (shared, cx) = (exchange.shared.clone(), exchange.cx.clone());
            Answer::later(async move {
                let result = later.await?;
                let handle = handle_of(&*shared.file_system, &cx, result.node());
                Ok((result, handle.resolve().await.ok()))
            })
        }
    };
    exchange.close(answer, send);
}

fn send<T: NodeReply>(completion: &mut Completion<'_>, (result, handle): (T, Option<PersistentHandle>)) {
    let handle = handle.and_then(|handle| sign(completion.shared, &handle));
    let is_prompt = result.file().is_some_and(|file| completion.is_prompt(file));
    completion.send(&result.reply(handle.as_ref().map(Into::into), is_prompt));
}

fn handle_of(fs: &dyn FileSystem, cx: &Ctx, node: NodeId) -> Answer<PersistentHandle> {
    match fs.persistent_handles() {
        Some(handles) => handles.handle_of(cx, node),
        None => Answer::err(tombolo_core::Error::NotSupported),
    }
}

fn sign(shared: &SessionShared, handle: &PersistentHandle) -> Option<PersistentHandle> {
    let volume = shared.file_system.persistent_handles()?.volume();
    shared.signer.sign(handle, volume)
}

/// Returns the handle of a listed node if it is available at once: listings do not wait for handles.
pub(super) fn immediate_handle(shared: &SessionShared, cx: &Ctx, node: NodeId) -> Option<PersistentHandle> {
    match handle_of(&*shared.file_system, cx, node) {
        Answer::Done(Ok(handle)) => sign(shared, &handle),
        Answer::Done(Err(_)) | Answer::Later(_) => None,
    }
}
