//! Helpers common to all operations.

use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

use tombolo_core::fs::{Attr, Change, File, FileType, NodeId};
use tombolo_core::{Ctx, Error, Result, Want};
use tombolo_wire_nfs3::{Fattr3, FileHandleBuf, PostOpAttr, Reply, Status, WccData, attr};

use super::Session;
use crate::caller::Caller;
use crate::calls::answered;
use crate::nodes::Node;

/// One operation: the session and its caller.
#[derive(Clone)]
pub(super) struct View {
    pub session: Arc<Session>,
    pub caller: Caller,
    pub wants_changes: bool,
    /// The caller will list the directories below what it lists now.
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

    /// What a session does about itself when it ends.
    pub(super) fn ending(session: &Arc<Session>) -> Self {
        Self::for_data(session.clone(), Caller::default())
    }

    /// The same for work that goes on after the operation is answered.
    pub(super) fn detached(&self) -> Self {
        Self { caller: self.caller.detached(), ..self.clone() }
    }

    /// Runs work in the background.
    pub(super) fn background<W>(self, work: impl FnOnce(Self) -> W)
    where
        W: Future<Output = ()> + Send + 'static,
    {
        let background = self.session.root.background.clone();
        background.spawn(work(self));
    }

    /// The time, as the wire has it.
    pub(super) fn now(&self) -> Instant {
        self.session.nfs.rpc().now()
    }

    /// A node, through its opening when there is one.
    pub(super) fn through(&self, node: NodeId, file: Option<File>) -> Result<Arc<Node>> {
        match file {
            Some(file) if file.node == node => {
                self.session.openings.of(file).map(|opening| opening.node.clone())
            }
            Some(_) => Err(Error::BadOpen),
            None => self.session.nodes.node(node),
        }
    }

    /// Makes a call about a node. When the server does not know its handle any more, the node is looked for
    /// by its path, once.
    pub(super) async fn on<T, F, C>(
        &self,
        node: &Arc<Node>,
        call: impl Fn(FileHandleBuf) -> C,
    ) -> Result<Reply<T, F>>
    where
        C: Future<Output = Result<Reply<T, F>>>,
    {
        let handle = node.handle();
        let reply = call(handle).await?;
        if is_stale(&reply) && self.recover(node, handle).await? {
            return call(node.handle()).await;
        }
        Ok(reply)
    }

    /// Makes a call about two nodes.
    pub(super) async fn on_both<T, F, C>(
        &self,
        (one, other): (&Arc<Node>, &Arc<Node>),
        call: impl Fn(FileHandleBuf, FileHandleBuf) -> C,
    ) -> Result<Reply<T, F>>
    where
        C: Future<Output = Result<Reply<T, F>>>,
    {
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

    /// Takes in attributes that came with a reply, where any did.
    pub(super) fn absorb(&self, node: &Node, attributes: &PostOpAttr, asked: Instant) {
        match attributes {
            Some(fattr) if node.learn(fattr, asked, self.now()) => {}
            // None came, though something may have changed; or they are another node's.
            _ => node.doubt(self.now()),
        }
    }

    /// Takes in attributes that came with a reply; that none came means nothing.
    pub(super) fn absorb_hint(&self, node: &Node, attributes: &PostOpAttr, asked: Instant) {
        if attributes.is_some() {
            self.absorb(node, attributes, asked);
        }
    }

    /// Takes in what a change did to a directory or file.
    pub(super) fn absorb_change(&self, node: &Node, wcc: &WccData, asked: Instant) -> Change {
        if node.file_type == FileType::Directory {
            self.session.listed_ahead.names_change();
        }
        node.changing();
        if !node.learn_change(wcc, asked, self.now()) {
            node.doubt(self.now());
        }
        if self.wants_changes { attr::change(wcc) } else { Change::default() }
    }

    /// The present attributes, asked of the server now.
    pub(super) async fn fetch(&self, node: &Arc<Node>) -> Result<Attr> {
        let asked = self.now();
        let reply = self.on(node, |handle| self.session.nfs.getattr(&self.caller, handle)).await?;
        let fattr = match answered(reply) {
            Ok(fattr) => fattr,
            Err(error) => {
                node.doubt(self.now());
                return Err(error);
            }
        };
        self.told(node, &fattr, asked)
    }

    /// Attributes that came along, or else are asked for.
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

    /// Attributes of a node as a reply has them. Another number or type is another file behind the same
    /// handle.
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

/// Does the server not know the handle any more?
fn is_stale<T, F>(reply: &Reply<T, F>) -> bool {
    matches!(reply, Reply::Failed(Status::Stale | Status::BadHandle, _))
}
