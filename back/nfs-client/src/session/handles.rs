//! Persistent handles: the file handles of the server, unchanged.

use tombolo_core::fs::{Entry, NodeId, PersistentHandle, PersistentHandles, Volume};
use tombolo_core::{Answer, Ctx, Error, Result};
use tombolo_wire_nfs3::{FileHandle, FileHandleBuf};

use super::file_system::NfsFileSystem;
use super::view::View;
use crate::calls::answered;
use crate::nodes::FoundBy;

/// Type of all handles: NFS version 3. It is not sent to the server.
const KIND: i32 = 3;

impl PersistentHandles for NfsFileSystem {
    fn volume(&self) -> Volume {
        let mut volume = [0; 16];
        if let Some(half) = volume.first_chunk_mut() {
            *half = self.session().nodes.root().fsid.to_be_bytes();
        }
        Volume(volume)
    }

    fn handle_of(&self, _: &Ctx, node: NodeId) -> Answer<PersistentHandle> {
        let node = self.session().nodes.node(node);
        let handle = node.map(|node| node.handle());
        handle
            .map(|handle| PersistentHandle { kind: KIND, bytes: handle.as_handle().as_bytes().into() })
            .into()
    }

    fn resolve(&self, cx: &Ctx, handle: &PersistentHandle) -> Answer<Entry> {
        let ours = Some(handle).filter(|handle| handle.kind == KIND);
        match ours.and_then(|handle| FileHandle::new(&handle.bytes)) {
            Some(handle) => Answer::later(View::new(self.session(), cx).resolve(handle.to_owned())),
            None => Answer::err(Error::Stale),
        }
    }

    fn parent(&self, cx: &Ctx, node: NodeId) -> Answer<Entry> {
        Answer::later(View::new(self.session(), cx).parent(node))
    }
}

impl View {
    /// Looks up a node by its handle; counts a look-up.
    async fn resolve(self, handle: FileHandleBuf) -> Result<Entry> {
        let asked = self.now();
        let is_known = self.session.nodes.has(&handle);
        let fattr = answered(self.session.nfs.getattr(&self.caller, handle).await?)?;
        let node = self.session.nodes.enter(FoundBy::LookUp(None), handle, &fattr, asked, self.now())?;
        // A killed predecessor of this process may have written the file, and its user may sync it now.
        if !is_known {
            node.set_writes_of_others(true);
        }
        self.fresh_entry(&node).await
    }

    /// Returns the parent directory; counts a look-up.
    async fn parent(self, node: NodeId) -> Result<Entry> {
        let dir = self.session.nodes.node(node)?;
        if node == NodeId::ROOT {
            self.session.nodes.look_up_again(&dir);
            let attr = self.fetch(&dir).await?;
            return Ok(Entry { node, attr });
        }
        let asked = self.now();
        let reply = self.on(&dir, |handle| self.session.nfs.lookup(&self.caller, (handle, b".."))).await?;
        let found = answered(reply)?;
        match found.attributes {
            Some(fattr) => {
                let node = self.session.nodes.enter(
                    FoundBy::LookUp(None),
                    found.handle,
                    &fattr,
                    asked,
                    self.now(),
                )?;
                self.fresh_entry(&node).await
            }
            None => self.resolve(found.handle).await,
        }
    }
}
