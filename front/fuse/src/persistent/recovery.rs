//! Recovery on demand: nodes of an earlier process are found by handle, openings are reopened.

use std::sync::Arc;

use smallvec::SmallVec;
use tombolo_core::fs::{File, NodeId, OpenFlags, OpenId};
use tombolo_core::{Answer, Ctx};
use tombolo_wire_fuse::{Decoded, FileHandle, Request};

use super::area::{Number, Records};
use super::{Inner, PersistentFs};
use crate::session::file_of;

/// Nodes and openings that a request names and this process has not recovered yet.
#[derive(Debug, Default)]
pub(crate) struct Missing {
    nodes: SmallVec<[NodeId; 2]>,
    openings: SmallVec<[OpenId; 2]>,
}

impl PersistentFs {
    /// Returns the unrecovered nodes and openings in the request; `None` if there are none, or if the request
    /// is executed without them.
    pub(crate) fn missing(&self, decoded: &Decoded<'_>) -> Option<Missing> {
        let is_end = matches!(
            decoded.request,
            Request::Forget { .. }
                | Request::BatchForget(_)
                | Request::Release(_)
                | Request::Releasedir(_)
                | Request::Interrupt { .. }
                | Request::Init(_)
                | Request::Destroy
        );
        if is_end || !self.is_resumed() {
            return None;
        }
        let mut missing = Missing::default();
        let node = |node: tombolo_wire_fuse::NodeId| NodeId(node.0);
        let other = match &decoded.request {
            Request::Rename { new_parent, .. } => Some(node(*new_parent)),
            Request::Link { node: linked, .. } => Some(node(*linked)),
            Request::CopyFileRange(copy) | Request::CopyFileRange64(copy) => Some(node(copy.to_node)),
            _ => None,
        };
        let nodes = [Some(node(decoded.header.node)), other].into_iter().flatten();
        missing.nodes.extend(nodes.filter(|node| self.0.node(*node).is_err()));
        let to = match &decoded.request {
            Request::CopyFileRange(copy) | Request::CopyFileRange64(copy) => Some(copy.to),
            Request::Getlk(lock) | Request::Setlk(lock) | Request::Setlkw(lock) => Some(lock.handle),
            Request::Setattr(set) => set.handle,
            _ => None,
        };
        let openings =
            [file_of(&decoded.request), to].into_iter().flatten().map(|FileHandle(open)| OpenId(open));
        missing.openings.extend(openings.filter(|open| self.0.openings.local(Number(open.0)).is_none()));
        (!missing.nodes.is_empty() || !missing.openings.is_empty()).then_some(missing)
    }

    /// Recovers as many of these nodes and openings as possible; requests with others fail with ESTALE.
    pub(crate) async fn find(&self, cx: Ctx, missing: &Missing) {
        for &node in &missing.nodes {
            self.0.find_node(&cx, node).await;
        }
        for &open in &missing.openings {
            self.0.find_opening(&cx, open).await;
        }
    }
}

impl Inner {
    async fn find_node(self: &Arc<Self>, cx: &Ctx, node: NodeId) {
        let number = Number(node.0);
        let handle = self.area.find(Records::Nodes, number).and_then(|index| self.area.node_handle(index));
        let Some(handle) = handle else { return };
        let found = match self.below.persistent_handles() {
            Some(handles) => handles.resolve(cx, &handle),
            None => return,
        };
        match found.resolve().await {
            Ok(entry) => {
                let is_needed = self.table().recovered(&self.area, &self.nodes, number, entry.node);
                if !is_needed {
                    self.give_back(cx, entry.node);
                }
            }
            Err(error) => {
                tracing::debug!(node = node.0, %error, "cannot recover a node of an earlier server")
            }
        }
    }

    pub(super) async fn find_opening(self: &Arc<Self>, cx: &Ctx, open: OpenId) {
        let number = Number(open.0);
        let Some(index) = self.area.find(Records::Openings, number) else { return };
        let opening = self.area.opening(index);
        if self.node(opening.node).is_err() {
            self.find_node(cx, opening.node).await;
        }
        let Ok(node) = self.node(opening.node) else { return };
        match self.reopen(cx, node, opening.flags).resolve().await {
            Ok(open) => {
                let is_needed = self.table().reopened(&self.area, &self.openings, number, open);
                if !is_needed {
                    self.below.release(cx, File { node, open });
                }
            }
            Err(error) => {
                tracing::debug!(node = opening.node.0, %error, "cannot recover an opening of an earlier server");
            }
        }
    }

    fn reopen(&self, cx: &Ctx, node: NodeId, flags: OpenFlags) -> Answer<OpenId> {
        self.below.open(cx, node, flags).map(|opened| opened.open)
    }
}
