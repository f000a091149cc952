//! Persistent handles: the cache's, or the numbers of locally created nodes, which never change.

use tombolo_core::fs::{Entry, NodeId, PersistentHandle, PersistentHandles, Volume};
use tombolo_core::{Answer, Ctx, Error, Result};

use super::View;
use super::file_system::WriteBackFileSystem;
use crate::tree::LOCAL_NODE_BIT;

/// Type number of the handles: that of the cache's handles, which begin with a node number, too.
const KIND: i32 = 1 << 12;

impl PersistentHandles for WriteBackFileSystem {
    fn volume(&self) -> Volume {
        let below = self.session().shared.below.persistent_handles();
        below.map(|below| below.volume()).unwrap_or_default()
    }

    /// Returns the cache's handle for a node not created locally, as it may contain more than the number.
    fn handle_of(&self, cx: &Ctx, node: NodeId) -> Answer<PersistentHandle> {
        let shared = &self.session().shared;
        match shared.below.persistent_handles().filter(|_| node.0 & LOCAL_NODE_BIT == 0) {
            Some(below) => below.handle_of(&self.view(cx).below_cx(), node),
            None => Answer::ok(PersistentHandle { kind: KIND, bytes: node.0.to_le_bytes()[..].into() }),
        }
    }

    fn resolve(&self, cx: &Ctx, handle: &PersistentHandle) -> Answer<Entry> {
        let Some(number) = handle.bytes.first_chunk::<8>().filter(|_| handle.kind == KIND) else {
            return Answer::err(Error::Stale);
        };
        let node = NodeId(u64::from_le_bytes(*number));
        match handle.bytes.len() {
            8 => self.node_by_number(cx, node),
            _ => Answer::later(self.view(cx).resolved(node, handle.clone())),
        }
    }

    fn parent(&self, cx: &Ctx, node: NodeId) -> Answer<Entry> {
        let view = self.view(cx);
        Answer::later(async move {
            view.directory(node).await?;
            let parent = view.parent_of(node).await?;
            Ok(Entry { node: parent, attr: view.attr(parent).await? })
        })
    }

    fn node_by_number(&self, cx: &Ctx, node: NodeId) -> Answer<Entry> {
        Answer::later(self.view(cx).node_by_number(node))
    }
}

impl View {
    async fn node_by_number(self, id: NodeId) -> Result<Entry> {
        let is_known = id.0 & LOCAL_NODE_BIT != 0 || self.shared().tree().nodes.contains_key(&id);
        if is_known {
            return Ok(Entry { node: id, attr: self.attr(id).await? });
        }
        let again = |handles: &dyn PersistentHandles| handles.node_by_number(&self.below_cx(), id);
        self.found_below(id, again).await
    }

    /// Resolves a handle of the cache.
    async fn resolved(self, id: NodeId, handle: PersistentHandle) -> Result<Entry> {
        if self.shared().tree().nodes.contains_key(&id) {
            return self.node_by_number(id).await;
        }
        let resolve = |handles: &dyn PersistentHandles| handles.resolve(&self.below_cx(), &handle);
        self.found_below(id, resolve).await
    }

    async fn found_below(
        &self,
        id: NodeId,
        find: impl FnOnce(&dyn PersistentHandles) -> Answer<Entry>,
    ) -> Result<Entry> {
        let fs = &self.shared().below;
        let finding = find(fs.persistent_handles().ok_or(Error::Stale)?);
        let entry = finding.resolve().await?;
        // This layer holds no look-ups: the cache finds a node by its number without one.
        fs.forget(&self.below_cx(), &[(entry.node, 1)]);
        // If the numbers differ, `id` is the cache's number of a locally created node, which clients know by
        // its local number only.
        if self.shared().tree().local_id(id) != id {
            return Err(Error::Stale);
        }
        Ok(Entry { node: id, attr: self.attr(id).await? })
    }
}
