//! Persistent handles: those of the server.

use tombolo_core::fs::{Entry, NodeId, PersistentHandle, PersistentHandles, Volume};
use tombolo_core::{Answer, Ctx, Error, Result};
use tombolo_wire_nfs3::FileHandle;

use super::NfsFileSystem;
use super::view::View;

/// The type of all handles here; it stays on this side of the wire.
const KIND: i32 = 3;

impl PersistentHandles for NfsFileSystem {
    fn volume(&self) -> Volume {
        let fsid = self.nodes.handle(NodeId::ROOT).ok().and_then(|root| match self.nfs.getattr(&root) {
            tombolo_wire_nfs3::Reply::Ok(fattr) => Some(fattr.fsid),
            tombolo_wire_nfs3::Reply::Failed(..) => None,
        });
        let mut volume = [0; 16];
        volume[..8].copy_from_slice(&fsid.unwrap_or_default().to_be_bytes());
        Volume(volume)
    }

    fn handle_of(&self, _: &Ctx, node: NodeId) -> Answer<PersistentHandle> {
        let handle = self.nodes.handle(node);
        handle
            .map(|handle| PersistentHandle { kind: KIND, bytes: handle.as_handle().as_bytes().into() })
            .into()
    }

    fn resolve(&self, cx: &Ctx, handle: &PersistentHandle) -> Answer<Entry> {
        let resolved = || -> Result<Entry> {
            let ours = Some(handle).filter(|handle| handle.kind == KIND);
            let handle = ours.and_then(|handle| FileHandle::new(&handle.bytes)).ok_or(Error::Stale)?;
            View::new(self, cx).entry(handle.to_owned(), None)
        };
        resolved().into()
    }

    fn parent(&self, cx: &Ctx, node: NodeId) -> Answer<Entry> {
        let found = || -> Result<Entry> {
            let view = View::new(self, cx);
            let dir = view.handle(node)?;
            let found = view.ask(|nfs| nfs.lookup(&dir, b".."))?;
            view.entry(found.handle, found.attributes)
        };
        found().into()
    }
}
