//! Persistent handles, which are valid as long as the tree.

use tombolo_core::fs::{AccessMask, Entry, NodeId, PersistentHandle, PersistentHandles, Volume};
use tombolo_core::{Answer, Ctx, Error, Result};

use super::{Session, View};
use crate::directory::Ino;

/// Type number of handles. Their bytes are the tree's id and the inode number, eight bytes each.
const KIND: i32 = 1;

impl PersistentHandles for Session {
    fn volume(&self) -> Volume {
        let fsid = self.view().tree.fsid;
        Volume((u128::from(fsid) << 64 | u128::from(fsid)).to_le_bytes())
    }

    fn handle_of(&self, _cx: &Ctx, node: NodeId) -> Answer<PersistentHandle> {
        self.view().handle_of(node).into()
    }

    fn resolve(&self, _cx: &Ctx, handle: &PersistentHandle) -> Answer<Entry> {
        self.view().resolve(handle).into()
    }

    fn parent(&self, cx: &Ctx, node: NodeId) -> Answer<Entry> {
        self.view().parent(cx, node).into()
    }
}

impl View<'_> {
    fn handle_of(&self, node: NodeId) -> Result<PersistentHandle> {
        let ino = self.ino(node)?;
        let bytes = [self.tree.fsid.to_le_bytes(), ino.0.to_le_bytes()];
        Ok(PersistentHandle { kind: KIND, bytes: bytes.into_iter().flatten().collect() })
    }

    fn parent(&mut self, cx: &Ctx, node: NodeId) -> Result<Entry> {
        let parent = self.directory(cx, node, AccessMask::EXECUTE)?.parent();
        self.look_up(parent)
    }

    fn resolve(&mut self, handle: &PersistentHandle) -> Result<Entry> {
        let (fsid, ino) = handle.bytes.split_first_chunk::<8>().ok_or(Error::Stale)?;
        let ino: [u8; 8] = ino.try_into().map_err(|_| Error::Stale)?;
        if handle.kind != KIND || u64::from_le_bytes(*fsid) != self.tree.fsid {
            return Err(Error::Stale);
        }
        let ino = Ino(u64::from_le_bytes(ino));
        // Files without a name are reachable only through openings.
        if self.tree.node(ino)?.nlink == 0 {
            return Err(Error::Stale);
        }
        self.look_up(ino)
    }
}
