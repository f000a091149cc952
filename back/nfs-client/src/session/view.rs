//! One operation of a session ([`View`]), and the helpers common to all operations: calls repeated after
//! recovery of a stale handle, and updates of nodes from replies.

use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

use tombolo_core::fs::{Attr, Change, File, FileType, NodeId};
use tombolo_core::{Ctx, Error, Result, Want};
use tombolo_wire_nfs3::{Fattr3, FileHandleBuf, PostOpAttr, Reply, Status, WccData, attr};

use super::Session;
use crate::caller::Caller;
use crate::calls::answered_or;
use crate::nodes::Node;

/// One operation: the session and its caller.
#[derive(Clone)]
pub(super) struct View {
    pub session: Arc<Session>,
    pub caller: Caller,
    pub wants_changes: bool,
    /// `true` if the caller walks a tree, so that it will list the subdirectories too.
    pub lists_subdirectories: bool,
}

impl View {
    pub(super) fn new(session: &Arc<Session>, cx: &Ctx) -> Self {
        Self {
            session: session.clone(),
            caller: Caller::from(cx),
            wants_changes: cx.want.contains(Want::CHANGE_ATTRS),
            lists_subdirectories: cx.lists_subdirectories,
        }
    }

    /// Creates a view for the work at the end of a session.
    pub(super) fn ending(session: &Arc<Session>) -> Self {
        Self::for_data(session.clone(), Caller::default())
    }

    /// Returns a view for work that outlives the operation.
    pub(super) fn detached(&self) -> Self {
        Self { caller: self.caller.detached(), ..self.clone() }
    }

    /// Runs work in the background; an unmount waits for it.
    pub(super) fn background<W>(self, work: impl FnOnce(Self) -> W)
    where
        W: Future<Output = ()> + Send + 'static,
    {
        let background = self.session.root.background.clone();
        background.spawn(work(self));
    }

    pub(super) fn now(&self) -> Instant {
        self.session.nfs.rpc().now()
    }

    /// Returns a node. With `file`, checks that this is one of its openings.
    pub(super) fn through(&self, node: NodeId, file: Option<File>) -> Result<Arc<Node>> {
        match file {
            Some(file) if file.node == node => {
                self.session.openings.of(file).map(|opening| opening.node.clone())
            }
            Some(_) => Err(Error::BadOpen),
            None => self.session.nodes.node(node),
        }
    }

    /// Makes a call about a node. If its handle is stale, the node is recovered by path, once.
    pub(super) async fn on<T, F, C: Future<Output = Result<Reply<T, F>>>>(
        &self,
        node: &Arc<Node>,
        call: impl Fn(FileHandleBuf) -> C,
    ) -> Result<Reply<T, F>> {
        let handle = node.handle();
        let reply = call(handle).await?;
        if is_stale(&reply) && self.recover(node, handle).await? {
            return call(node.handle()).await;
        }
        Ok(reply)
    }

    /// Makes a call about two nodes. If the server no longer knows one of the handles, both nodes are
    /// recovered by path, once.
    pub(super) async fn on_both<T, F, C: Future<Output = Result<Reply<T, F>>>>(
        &self,
        (one, other): (&Arc<Node>, &Arc<Node>),
        call: impl Fn(FileHandleBuf, FileHandleBuf) -> C,
    ) -> Result<Reply<T, F>> {
        let handles = (one.handle(), other.handle());
        let reply = call(handles.0, handles.1).await?;
        if is_stale(&reply) {
            let recovered = self.recover(one, handles.0).await?;
            if self.recover(other, handles.1).await? || recovered {
                return call(one.handle(), other.handle()).await;
            }
        }
        Ok(reply)
    }

    /// Returns the results of a call about a node. A failure updates the node's attributes and is returned.
    pub(super) fn told_of<T>(&self, node: &Node, reply: Reply<T, PostOpAttr>, asked: Instant) -> Result<T> {
        answered_or(reply, |attributes| self.absorb(node, &attributes, asked))
    }

    /// Returns the results of a call that changes a node. A failure updates its attributes and is returned.
    pub(super) fn changed<T>(&self, node: &Node, reply: Reply<T, WccData>, asked: Instant) -> Result<T> {
        answered_or(reply, |wcc| {
            self.absorb_change(node, &wcc, asked);
        })
    }

    /// Updates the attributes from a reply, or expires them if it has none.
    pub(super) fn absorb(&self, node: &Node, attributes: &PostOpAttr, asked: Instant) {
        match attributes {
            Some(fattr) if node.learn(fattr, asked, self.now()) => {}
            // The reply has no attributes, although the node may have changed, or it has another node's.
            _ => node.expire(self.now()),
        }
    }

    pub(super) fn absorb_hint(&self, node: &Node, attributes: &PostOpAttr, asked: Instant) {
        if attributes.is_some() {
            self.absorb(node, attributes, asked);
        }
    }

    /// Updates a directory or file after our own change. Returns the change if the operation's caller wants
    /// it.
    pub(super) fn absorb_change(&self, node: &Node, wcc: &WccData, asked: Instant) -> Change {
        if node.file_type == FileType::Directory {
            self.session.listed_ahead.names_change();
        }
        node.changing();
        if !node.learn_change(wcc, asked, self.now()) {
            node.expire(self.now());
        }
        if self.wants_changes { attr::change(wcc) } else { Change::default() }
    }

    pub(super) async fn fetch(&self, node: &Arc<Node>) -> Result<Attr> {
        let asked = self.now();
        let reply = self.on(node, |handle| self.session.nfs.getattr(&self.caller, handle)).await?;
        let fattr = answered_or(reply, |()| node.expire(self.now()))?;
        self.told(node, &fattr, asked)
    }

    /// Returns attributes from a reply, or fetches them.
    pub(super) async fn told_or_fetched(
        &self,
        node: &Arc<Node>,
        told: &PostOpAttr,
        asked: Instant,
    ) -> Result<Attr> {
        match told {
            Some(fattr) => self.told(node, fattr, asked),
            None => self.fetch(node).await,
        }
    }

    /// Updates a node from a reply and returns its attributes; [`Error::Stale`] if they have another number
    /// or type, because the handle was reused.
    pub(super) fn told(&self, node: &Arc<Node>, fattr: &Fattr3, asked: Instant) -> Result<Attr> {
        if node.learn(fattr, asked, self.now()) {
            return Ok(node.known());
        }
        tracing::warn!(
            server = self.session.nfs.label(),
            was = node.fileid,
            is = fattr.fileid,
            "file handle now names another file"
        );
        Err(Error::Stale)
    }
}

fn is_stale<T, F>(reply: &Reply<T, F>) -> bool {
    matches!(reply, Reply::Failed(Status::Stale | Status::BadHandle, _))
}
