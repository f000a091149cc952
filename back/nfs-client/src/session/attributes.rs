//! Attributes, permissions, link targets, and file system statistics.

use std::sync::Arc;

use tombolo_core::fs::{AccessMask, Attr, Change, File, FileType, NodeId, SetAttr, StatFs};
use tombolo_core::{Error, Result};
use tombolo_wire_nfs3::args::AccessBits;
use tombolo_wire_nfs3::attr;

use super::view::View;
use crate::calls::answered;
use crate::data;
use crate::nodes::Node;

/// Block size of file system statistics, in bytes.
const BLOCK_BYTES: u32 = 4096;

impl View {
    /// Returns the current attributes: cached ones while they are valid, otherwise the server's. Waits for
    /// the replies to pending writes first, so that size and times include them.
    pub(super) async fn getattr(self, node: Arc<Node>) -> Result<Attr> {
        self.settle(&node).await?;
        match node.believed(self.now()) {
            Some(attr) => Ok(attr),
            None => match self.fetch(&node).await {
                Err(Error::Stale) => node.attr_after_own_removal().ok_or(Error::Stale),
                outcome => outcome,
            },
        }
    }

    /// Sets attributes after pending writes, because a late WRITE would change the times again.
    pub(super) async fn setattr(
        self,
        node: NodeId,
        file: Option<File>,
        set: SetAttr,
    ) -> Result<(Attr, Change)> {
        let node = self.through(node, file)?;
        self.settle(&node).await?;
        self.set(&node, &set).await
    }

    /// Calls SETATTR. Writes are paused while it sets the size, so that none restores truncated data.
    pub(super) async fn set(&self, node: &Arc<Node>, set: &SetAttr) -> Result<(Attr, Change)> {
        let cut = match set.size {
            Some(size) => Some((data::pause(&self.session, node, &self.caller).resolve().await?, size)),
            None => None,
        };
        let asked = self.now();
        let (attributes, guard) = attr::sattr3(set);
        let call = |handle| self.session.nfs.setattr(&self.caller, handle, attributes, guard);
        let wcc = self.changed(node, self.on(node, call).await?, asked)?;
        if let Some((paused, size)) = &cut {
            paused.truncated(*size);
        }
        let change = self.absorb_change(node, &wcc, asked);
        Ok((self.told_or_fetched(node, &wcc.after, asked).await?, change))
    }

    /// Checks that the node exists, and that the caller has these rights.
    pub(super) async fn access(self, node: NodeId, mask: AccessMask) -> Result<()> {
        let node = self.session.nodes.node(node)?;
        if mask.is_empty() {
            return self.getattr(node).await.map(drop);
        }
        self.check(&node, mask).await
    }

    /// Checks the caller's permissions, from the cache if possible.
    pub(super) async fn check(&self, node: &Arc<Node>, mask: AccessMask) -> Result<()> {
        let bits = access_bits(node.file_type, mask);
        let now = self.now();
        let known = node.believed(now).and_then(|_| node.allowed(&self.caller.identity, bits, now));
        let allowed = match known {
            Some(allowed) => allowed,
            None => self.ask_access(node, bits).await?,
        };
        if allowed.contains(bits) { Ok(()) } else { Err(Error::AccessDenied) }
    }

    /// Calls ACCESS, which also refreshes the attributes.
    pub(super) async fn ask_access(&self, node: &Arc<Node>, bits: AccessBits) -> Result<AccessBits> {
        let asked = self.now();
        let call = |handle| self.session.nfs.access(&self.caller, handle, bits);
        let ok = self.told_of(node, self.on(node, call).await?, asked)?;
        self.absorb(node, &ok.attributes, asked);
        node.grant(&self.caller.identity, bits, ok.access, asked);
        Ok(ok.access)
    }

    /// Reads the target of a symbolic link; [`Error::InvalidArgument`] for other types.
    pub(super) async fn readlink(self, node: NodeId) -> Result<Vec<u8>> {
        let node = self.session.nodes.node(node)?;
        if node.file_type != FileType::Symlink {
            return Err(Error::InvalidArgument);
        }
        let asked = self.now();
        let call = |handle| self.session.nfs.readlink(&self.caller, handle);
        let link = self.told_of(&node, self.on(&node, call).await?, asked)?;
        self.absorb(&node, &link.attributes, asked);
        Ok(link.target)
    }

    /// Returns file system statistics (FSSTAT), in blocks of [`BLOCK_BYTES`].
    pub(super) async fn statfs(self, node: NodeId) -> Result<StatFs> {
        let node = self.session.nodes.node(node)?;
        let reply = self.on(&node, |handle| self.session.nfs.fsstat(&self.caller, handle)).await?;
        let stat = answered(reply)?;
        let blocks = |bytes: u64| bytes / u64::from(BLOCK_BYTES);
        Ok(StatFs {
            block_size: BLOCK_BYTES,
            blocks: blocks(stat.total_bytes),
            blocks_free: blocks(stat.free_bytes),
            blocks_available: blocks(stat.available_bytes),
            files: stat.total_files,
            files_free: stat.free_files,
            name_max: self.session.profile.name_max,
        })
    }
}

/// Converts a mask for a node of this type (RFC 1813 §3.3.4).
pub(super) fn access_bits(file_type: FileType, mask: AccessMask) -> AccessBits {
    let directory = file_type == FileType::Directory;
    let mut bits = AccessBits::empty();
    bits.set(AccessBits::READ, mask.contains(AccessMask::READ));
    bits.set(AccessBits::MODIFY | AccessBits::EXTEND, mask.contains(AccessMask::WRITE));
    bits.set(AccessBits::DELETE, directory && mask.contains(AccessMask::WRITE));
    bits.set(
        if directory { AccessBits::LOOKUP } else { AccessBits::EXECUTE },
        mask.contains(AccessMask::EXECUTE),
    );
    bits
}
