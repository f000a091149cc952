use tombolo_core::fs::{Change, Entry, Made, Name, NodeId};
use tombolo_core::{Ctx, Error, Result};

use super::View;
use crate::node::Node;
use crate::tree::Ino;

impl View<'_> {
    pub(super) fn lookup(&mut self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Result<Entry> {
        let ino = self.find(cx, parent, name.as_bytes())?.ok_or(Error::NotFound)?;
        self.remember(ino)
    }

    pub(super) fn link(&mut self, cx: &Ctx, node: NodeId, parent: NodeId, name: Name<'_>) -> Result<Made> {
        let (ino, dir) = (self.ino(node)?, self.ino(parent)?);
        if self.find(cx, parent, name.as_bytes())?.is_some() {
            return Err(Error::Exists);
        }
        self.check_add(cx, dir)?;
        let node = self.tree.node(ino)?;
        if node.is_directory() {
            return Err(Error::NotPermitted);
        }
        if node.nlink == 0 && !node.linkable {
            return Err(Error::NotFound);
        }
        if node.nlink >= self.session.shared.options.link_limit {
            return Err(Error::TooManyLinks);
        }
        let before = self.before(cx, dir);
        let node = self.tree.node_mut(ino)?;
        node.nlink += 1;
        node.linkable = false;
        node.touch_ctime();
        self.tree.node_mut(dir)?.directory_mut()?.set(name.as_bytes(), ino);
        self.tree.node_mut(dir)?.touch_mtime();
        Ok(Made { entry: self.remember(ino)?, dir: self.change(dir, before) })
    }

    pub(super) fn unlink(&mut self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Result<Change> {
        let dir = self.ino(parent)?;
        let ino = self.find(cx, parent, name.as_bytes())?.ok_or(Error::NotFound)?;
        self.check_remove(cx, dir, ino, false)?;
        let before = self.before(cx, dir);
        self.tree.node_mut(dir)?.directory_mut()?.remove(name.as_bytes());
        self.tree.node_mut(dir)?.touch_mtime();
        self.drop_name(ino)?;
        Ok(self.change(dir, before))
    }

    pub(super) fn rmdir(&mut self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Result<Change> {
        let dir = self.ino(parent)?;
        let ino = self.find(cx, parent, name.as_bytes())?.ok_or(Error::NotFound)?;
        self.check_remove(cx, dir, ino, true)?;
        if !self.tree.node(ino)?.directory()?.is_empty() {
            return Err(Error::NotEmpty);
        }
        let before = self.before(cx, dir);
        self.tree.node_mut(dir)?.directory_mut()?.remove(name.as_bytes());
        self.drop_directory(dir, ino)?;
        self.tree.node_mut(dir)?.touch_mtime();
        Ok(self.change(dir, before))
    }

    /// A node that is no directory has lost a name.
    pub(super) fn drop_name(&mut self, ino: Ino) -> Result<()> {
        let node = self.tree.node_mut(ino)?;
        node.nlink = node.nlink.saturating_sub(1);
        node.touch_ctime();
        self.tree.bury(ino);
        Ok(())
    }

    /// An empty directory has lost its name in `parent`.
    pub(super) fn drop_directory(&mut self, parent: Ino, ino: Ino) -> Result<()> {
        let node = self.tree.node_mut(ino)?;
        node.nlink = 0;
        node.touch_ctime();
        let Node { nlink, .. } = self.tree.node_mut(parent)?;
        *nlink = nlink.saturating_sub(1);
        self.tree.bury(ino);
        Ok(())
    }
}
