//! Creation of nodes and links.

use std::sync::Arc;

use tombolo_core::Result;
use tombolo_core::fs::{Change, Device, Entry, FileType, Made, Mode, NameBuf, NodeId};
use tombolo_wire_nfs3::args::{CreateHow, MknodKind};
use tombolo_wire_nfs3::{FileHandleBuf, Sattr3, attr};

use super::view::View;
use crate::calls::{NewReply, answered_or};
use crate::nodes::Node;

pub(super) fn with_mode(mode: Mode) -> Sattr3 {
    Sattr3 { mode: Some(mode.bits()), ..Sattr3::default() }
}

impl View {
    /// Creates a node by `call`, which gets the directory's handle; counts a look-up.
    pub(super) async fn made<C: Future<Output = Result<NewReply>>>(
        &self,
        dir: &Arc<Node>,
        name: &NameBuf,
        call: impl Fn(FileHandleBuf) -> C,
    ) -> Result<(Entry, Arc<Node>, Change)> {
        // The permit is taken first, so that nothing is created beyond the node limit.
        let permit = self.session.nodes.permit()?;
        let asked = self.now();
        dir.changing();
        let new = self.changed(dir, self.on(dir, call).await?, asked)?;
        let change = self.absorb_change(dir, &new.dir_wcc, asked);
        let (entry, node) = match new.handle {
            Some(handle) => self.enter(Some(permit), dir, name, handle, &new.attributes, asked).await?,
            // Servers may omit the handle (RFC 1813 §3.3.8).
            None => {
                drop(permit);
                self.find(dir, name).await?
            }
        };
        Ok((entry, node, change))
    }

    async fn make<C: Future<Output = Result<NewReply>>>(
        &self,
        parent: NodeId,
        name: &NameBuf,
        call: impl Fn(FileHandleBuf) -> C,
    ) -> Result<Made> {
        let dir = self.session.nodes.node(parent)?;
        let (entry, _, dir) = self.made(&dir, name, call).await?;
        Ok(Made { entry, dir })
    }

    pub(super) async fn mkdir(self, parent: NodeId, name: NameBuf, mode: Mode) -> Result<Made> {
        let bytes = name.as_name().as_bytes();
        let call = |dir| self.session.nfs.mkdir(&self.caller, (dir, bytes), with_mode(mode));
        self.make(parent, &name, call).await
    }

    pub(super) async fn symlink(self, parent: NodeId, name: NameBuf, target: Vec<u8>) -> Result<Made> {
        let bytes = name.as_name().as_bytes();
        let call = |dir| self.session.nfs.symlink(&self.caller, (dir, bytes), &target);
        self.make(parent, &name, call).await
    }

    /// Calls MKNOD, or CREATE for a regular file.
    pub(super) async fn mknod(
        self,
        parent: NodeId,
        name: NameBuf,
        file_type: FileType,
        mode: Mode,
        rdev: Device,
    ) -> Result<Made> {
        let bytes = name.as_name().as_bytes();
        let (attributes, device) = (with_mode(mode), attr::specdata3(rdev));
        let what = match file_type {
            FileType::Regular => {
                let how = CreateHow::Guarded(attributes);
                let call = |dir| self.session.nfs.create(&self.caller, (dir, bytes), how);
                return self.make(parent, &name, call).await;
            }
            FileType::CharDevice => MknodKind::CharDevice(attributes, device),
            FileType::BlockDevice => MknodKind::BlockDevice(attributes, device),
            FileType::Fifo => MknodKind::Fifo(attributes),
            FileType::Socket => MknodKind::Socket(attributes),
            FileType::Directory | FileType::Symlink => MknodKind::Other(attr::file_type3(file_type)),
        };
        self.make(parent, &name, |dir| self.session.nfs.mknod(&self.caller, (dir, bytes), what)).await
    }

    pub(super) async fn link(self, node: NodeId, parent: NodeId, name: NameBuf) -> Result<Made> {
        let (node, dir) = (self.session.nodes.node(node)?, self.session.nodes.node(parent)?);
        let asked = self.now();
        dir.changing();
        let bytes = name.as_name().as_bytes();
        let call = |file, dir| self.session.nfs.link(&self.caller, file, (dir, bytes));
        let wcc = answered_or(self.on_both((&node, &dir), call).await?, |wcc| {
            self.absorb_change(&dir, &wcc.dir_wcc, asked);
            self.absorb(&node, &wcc.attributes, asked);
        })?;
        let change = self.absorb_change(&dir, &wcc.dir_wcc, asked);
        let attr = self.told_or_fetched(&node, &wcc.attributes, asked).await?;
        self.session.nodes.look_up_again(&node);
        // The name may be cached as absent.
        self.session.nodes.forget_name(dir.id, &name);
        Ok(Made { entry: Entry { node: node.id, attr }, dir: change })
    }
}
