//! Handles that outlive restarts: the numbers of nodes, which never change.

use tombolo_core::fs::{Entry, NodeId, PersistentHandle, PersistentHandles, Volume};
use tombolo_core::{Answer, Ctx, Error, Result};

use super::View;
use super::file_system::WriteBackFileSystem;
use crate::tree::MADE_HERE;

/// The type number of our handles: that of the handles below, which are numbers too.
const KIND: i32 = 1 << 12;

impl PersistentHandles for WriteBackFileSystem {
    fn volume(&self) -> Volume {
        let below = self.session().shared.below.persistent_handles();
        below.map(|below| below.volume()).unwrap_or_default()
    }

    fn handle_of(&self, _: &Ctx, node: NodeId) -> Answer<PersistentHandle> {
        Answer::ok(PersistentHandle { kind: KIND, bytes: node.0.to_le_bytes()[..].into() })
    }

    fn resolve(&self, cx: &Ctx, handle: &PersistentHandle) -> Answer<Entry> {
        match <[u8; 8]>::try_from(&handle.bytes[..]) {
            Ok(number) if handle.kind == KIND => self.again(cx, NodeId(u64::from_le_bytes(number))),
            _ => Answer::err(Error::Stale),
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

    fn again(&self, cx: &Ctx, node: NodeId) -> Answer<Entry> {
        Answer::later(self.view(cx).again(node))
    }
}

impl View {
    async fn again(self, id: NodeId) -> Result<Entry> {
        let is_known = id.0 & MADE_HERE != 0 || self.shared().tree().nodes.contains_key(&id);
        if is_known {
            return Ok(Entry { node: id, attr: self.attr(id).await? });
        }
        let fs = &self.shared().below;
        let handles = fs.persistent_handles().ok_or(Error::Stale)?;
        let entry = handles.again(&self.below_cx(), id).resolve().await?;
        fs.forget(&self.below_cx(), &[(entry.node, 1)]);
        // What was made here is known by its number here alone.
        if self.shared().tree().own(id) != id {
            return Err(Error::Stale);
        }
        Ok(Entry { node: id, attr: self.attr(id).await? })
    }
}
