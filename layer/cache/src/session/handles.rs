//! Handles that outlive restarts: the numbers of objects, which never change.

use tombolo_core::fs::{Entry, FileType, NodeId, PersistentHandle, PersistentHandles, Volume};
use tombolo_core::{Answer, Ctx, Error, Result};

use super::file_system::CachedFileSystem;
use super::view::View;
use crate::object::Look;
use crate::objects::{id_of, node_of};
use crate::store::ObjectId;

/// The type number of our handles: below those that other parts of the house add to the kernel's.
const KIND: i32 = 1 << 12;

impl PersistentHandles for CachedFileSystem {
    fn volume(&self) -> Volume {
        self.session().cache.store.volume()
    }

    fn handle_of(&self, _: &Ctx, node: NodeId) -> Answer<PersistentHandle> {
        let handle = |id: ObjectId| PersistentHandle { kind: KIND, bytes: id.0.to_le_bytes()[..].into() };
        id_of(node).map(handle).into()
    }

    fn resolve(&self, cx: &Ctx, handle: &PersistentHandle) -> Answer<Entry> {
        match <[u8; 8]>::try_from(&handle.bytes[..]) {
            Ok(number) if handle.kind == KIND => self.again(cx, NodeId(u64::from_le_bytes(number))),
            _ => Answer::err(Error::Stale),
        }
    }

    fn parent(&self, cx: &Ctx, node: NodeId) -> Answer<Entry> {
        Answer::later(View::new(self.session(), cx).parent(node))
    }

    fn again(&self, cx: &Ctx, node: NodeId) -> Answer<Entry> {
        let view = View::new(self.session(), cx);
        let object = match view.object(node) {
            Ok(object) => object,
            Err(error) => return Answer::err(error),
        };
        match view.entry_now(&object) {
            Some(entry) => Answer::ok(entry),
            // By its handle: the origin's session may know the node though the file is gone.
            None => Answer::later(async move {
                let attr = view.cache().resolve(&view.cx, &object).await?;
                view.given(Entry { node: node_of(object.id), attr }, &object).await
            }),
        }
    }

    fn record(&self, cx: &Ctx, node: NodeId) -> Answer<Vec<u8>> {
        View::new(self.session(), cx).object(node).map(|object| object.record()).into()
    }

    fn recall(&self, _: &Ctx, node: NodeId, record: &[u8]) -> Answer<()> {
        id_of(node).and_then(|id| self.session().cache.recall(id, record)).into()
    }
}

impl View {
    /// The directory above. Of a directory the origin knows it.
    async fn parent(self, node: NodeId) -> Result<Entry> {
        let dir = self.object(node)?;
        if dir.file_type != FileType::Directory {
            let met_in = dir.state().parent.ok_or(Error::Stale)?;
            let above = self.object(node_of(met_in))?;
            let attr = self.attr(&above, Look::Stat).await?;
            return self.given(Entry { node: node_of(above.id), attr }, &above).await;
        }
        let node = self.node(&dir).await?;
        let asked = std::time::Instant::now();
        let above = self.cache().origin.handles()?.parent(&self.at_origin(), node).resolve().await?;
        let (entry, object) = self.met(&above, asked).await?;
        self.given(entry, &object).await
    }
}
