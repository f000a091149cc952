//! Requests to the inner session from which the reply to a duplicate is rebuilt.

use std::sync::Arc;

use tombolo_core::fs::{Change, Entry, FileSystem, NameBuf, NodeId, OpenFlags, OpenId};
use tombolo_core::{Ctx, Error, Identity, Result, Want};

use super::outcome::{Inode, NodeMark, Outcome};

/// The inner session, for answering a duplicate.
pub(super) struct InnerSession {
    pub fs: Arc<dyn FileSystem>,
    pub cx: Ctx,
}

impl InnerSession {
    /// Returns the change of a node without the attributes before it, which are no longer known (RFC 1813
    /// §2.6 permits that).
    pub async fn change(&self, node: NodeId) -> Change {
        if !self.cx.want.contains(Want::CHANGE_ATTRS) {
            return Change::default();
        }
        Change { before: None, after: self.fs.getattr(&self.cx, node, None).resolve().await.ok() }
    }

    /// Finds the node of an outcome, and counts a look-up: by its handle, or without a handle by the name
    /// that the operation gave it. [`Error::Stale`] if the node is gone, or another one has the name.
    pub async fn entry(&self, outcome: &Outcome, name: Option<(NodeId, &NameBuf)>) -> Result<Entry> {
        let Outcome::Node(mark) = outcome else { return Err(Error::Stale) };
        match mark {
            NodeMark::Handle(handle) => {
                let cx = self.as_server();
                let answer = self.fs.persistent_handles().map(|handles| handles.resolve(&cx, handle));
                answer.ok_or(Error::Stale)?.resolve().await
            }
            NodeMark::Inode(inode) => self.named(*inode, name).await,
        }
    }

    async fn named(&self, inode: Inode, name: Option<(NodeId, &NameBuf)>) -> Result<Entry> {
        let (parent, name) = name.ok_or(Error::Stale)?;
        let entry = match self.fs.lookup(&self.as_server(), parent, name.as_name()).resolve().await {
            Err(Error::NotFound) => return Err(Error::Stale),
            found => found?,
        };
        if Inode::from(&entry.attr) == inode {
            return Ok(entry);
        }
        self.forget(entry.node);
        Err(Error::Stale)
    }

    /// Opens a node again with the original flags, except truncation.
    ///
    /// The creator of a file with mode 0400 had it open for writing, which the file system would now refuse.
    /// The server opens it on behalf of the user, who already had that opening.
    pub async fn open(&self, node: NodeId, flags: OpenFlags) -> Result<OpenId> {
        let flags = flags - OpenFlags::TRUNCATE;
        let opened = match self.fs.open(&self.cx, node, flags).resolve().await {
            Err(Error::AccessDenied) => self.fs.open(&self.as_server(), node, flags).resolve().await,
            opened => opened,
        };
        Ok(opened?.open)
    }

    pub fn forget(&self, node: NodeId) {
        self.fs.forget(&self.cx, &[(node, 1)]);
    }

    fn as_server(&self) -> Ctx {
        Ctx { identity: Identity::ROOT, ..self.cx.clone() }
    }
}
