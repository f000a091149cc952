//! Look-ups, links, removals and renames of names.

use tombolo_core::fs::{
    AccessMask, Change, Device, Entry, FileType, Made, Mode, Name, NewMode, NodeId, RenameFlags, Renamed,
};
use tombolo_core::{Ctx, Error, Result};

use super::View;
use crate::directory::Ino;
use crate::node::{Kind, Node};

impl View<'_> {
    pub(super) fn lookup(&mut self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Result<Entry> {
        let ino = self.find(cx, parent, name.as_bytes())?.ok_or(Error::NotFound)?;
        self.look_up(ino)
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
        node.update_ctime();
        self.tree.set_name(dir, name.as_bytes(), ino)?;
        self.tree.node_mut(dir)?.update_mtime();
        Ok(Made { entry: self.look_up(ino)?, dir: self.change(dir, before) })
    }

    pub(super) fn unlink(&mut self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Result<Change> {
        let dir = self.ino(parent)?;
        let ino = self.find(cx, parent, name.as_bytes())?.ok_or(Error::NotFound)?;
        self.check_remove(cx, dir, ino, false)?;
        let before = self.before(cx, dir);
        self.tree.remove_name(dir, name.as_bytes())?;
        self.tree.node_mut(dir)?.update_mtime();
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
        self.tree.remove_name(dir, name.as_bytes())?;
        self.drop_directory(dir, ino)?;
        self.tree.node_mut(dir)?.update_mtime();
        Ok(self.change(dir, before))
    }

    /// Subtracts a removed name from the link count of a node other than a directory. Frees the node if
    /// nothing refers to it any more.
    pub(super) fn drop_name(&mut self, ino: Ino) -> Result<()> {
        let node = self.tree.node_mut(ino)?;
        node.nlink = node.nlink.saturating_sub(1);
        node.update_ctime();
        self.tree.remove_if_unused(ino);
        Ok(())
    }

    /// Sets the link count of a removed, empty directory to 0, and subtracts its `..` from that of `parent`.
    /// Frees the node if nothing refers to it any more.
    pub(super) fn drop_directory(&mut self, parent: Ino, ino: Ino) -> Result<()> {
        let node = self.tree.node_mut(ino)?;
        node.nlink = 0;
        node.update_ctime();
        let Node { nlink, .. } = self.tree.node_mut(parent)?;
        *nlink = nlink.saturating_sub(1);
        self.tree.remove_if_unused(ino);
        Ok(())
    }
}

/// One of the two names of a rename.
#[derive(Clone, Copy)]
struct Location<'a> {
    dir: Ino,
    name: &'a [u8],
}

impl View<'_> {
    pub(super) fn rename(
        &mut self,
        cx: &Ctx,
        (from_parent, from_name): (NodeId, Name<'_>),
        (to_parent, to_name): (NodeId, Name<'_>),
        flags: RenameFlags,
    ) -> Result<Renamed> {
        if flags.contains(RenameFlags::EXCHANGE)
            && flags.intersects(RenameFlags::NO_REPLACE | RenameFlags::WHITEOUT)
        {
            return Err(Error::InvalidArgument);
        }
        let from = Location { dir: self.ino(from_parent)?, name: from_name.as_bytes() };
        let to = Location { dir: self.ino(to_parent)?, name: to_name.as_bytes() };
        // Error precedence: search of both directories, then both names, then the permission to change them.
        self.directory(cx, from_parent, AccessMask::EXECUTE)?;
        self.directory(cx, to_parent, AccessMask::EXECUTE)?;
        let source = self.find(cx, from_parent, from.name)?.ok_or(Error::NotFound)?;
        let target = self.find(cx, to_parent, to.name)?;
        if flags.contains(RenameFlags::NO_REPLACE) && target.is_some() {
            return Err(Error::Exists);
        }
        if flags.contains(RenameFlags::EXCHANGE) && target.is_none() {
            return Err(Error::NotFound);
        }
        self.check_ancestry(from, source, to, target, flags)?;
        let (from_before, to_before) = (self.before(cx, from.dir), self.before(cx, to.dir));
        // Two names of the same file: nothing to do (rename(2)).
        if target != Some(source) {
            self.check_rename(cx, (from, source), (to, target), flags)?;
            match target {
                Some(target) if flags.contains(RenameFlags::EXCHANGE) => {
                    self.exchange(from, source, to, target)?;
                }
                _ => self.move_name(cx, from, source, to, target, flags)?,
            }
        }
        Ok(Renamed { from_dir: self.change(from.dir, from_before), to_dir: self.change(to.dir, to_before) })
    }

    /// Refuses to move a directory into itself, or to replace one of its ancestors.
    fn check_ancestry(
        &self,
        from: Location<'_>,
        source: Ino,
        to: Location<'_>,
        target: Option<Ino>,
        flags: RenameFlags,
    ) -> Result<()> {
        if self.tree.is_within(to.dir, source) {
            return Err(Error::InvalidArgument);
        }
        match target {
            Some(target) if target != source && self.tree.is_within(from.dir, target) => {
                Err(if flags.contains(RenameFlags::EXCHANGE) {
                    Error::InvalidArgument
                } else {
                    Error::NotEmpty
                })
            }
            _ => Ok(()),
        }
    }

    /// Checks permissions, that the types are compatible, and that a replaced directory is empty.
    fn check_rename(
        &self,
        cx: &Ctx,
        (from, source): (Location<'_>, Ino),
        (to, target): (Location<'_>, Option<Ino>),
        flags: RenameFlags,
    ) -> Result<()> {
        let is_directory = |ino: Ino| self.tree.node(ino).map(Node::is_directory);
        let source_is_directory = is_directory(source)?;
        self.check_remove(cx, from.dir, source, source_is_directory)?;
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        match target {
            None => self.check_add(cx, to.dir)?,
            Some(target) if exchange => self.check_remove(cx, to.dir, target, is_directory(target)?)?,
            Some(target) => self.check_remove(cx, to.dir, target, source_is_directory)?,
        }
        // A directory's `..` is changed when its parent changes.
        if from.dir != to.dir {
            for moved in [Some(source), target.filter(|_| exchange)].into_iter().flatten() {
                let node = self.tree.node(moved)?;
                if node.is_directory() {
                    self.check_access(cx, node, AccessMask::WRITE)?;
                }
            }
        }
        match target {
            Some(target) if !exchange && source_is_directory => {
                let empty = self.tree.node(target)?.directory()?.is_empty();
                if empty { Ok(()) } else { Err(Error::NotEmpty) }
            }
            _ => Ok(()),
        }
    }

    fn move_name(
        &mut self,
        cx: &Ctx,
        from: Location<'_>,
        source: Ino,
        to: Location<'_>,
        target: Option<Ino>,
        flags: RenameFlags,
    ) -> Result<()> {
        let whiteout = match flags.contains(RenameFlags::WHITEOUT) {
            true => Some(self.make_whiteout(cx, from.dir)?),
            false => None,
        };
        self.tree.set_name(to.dir, to.name, source)?;
        match whiteout {
            Some(whiteout) => self.tree.set_name(from.dir, from.name, whiteout)?,
            None => self.tree.remove_name(from.dir, from.name)?,
        }
        if let Some(target) = target {
            match self.tree.node(target)?.is_directory() {
                true => self.drop_directory(to.dir, target)?,
                false => self.drop_name(target)?,
            }
        }
        self.reparent(source, from.dir, to.dir)?;
        self.update_renamed(from, to)
    }

    fn exchange(&mut self, from: Location<'_>, source: Ino, to: Location<'_>, target: Ino) -> Result<()> {
        self.tree.set_name(from.dir, from.name, target)?;
        self.tree.set_name(to.dir, to.name, source)?;
        self.reparent(source, from.dir, to.dir)?;
        self.reparent(target, to.dir, from.dir)?;
        self.update_renamed(from, to)
    }

    /// Records a move in the node; for a directory, updates its `..`.
    fn reparent(&mut self, ino: Ino, old: Ino, new: Ino) -> Result<()> {
        let node = self.tree.node_mut(ino)?;
        node.update_ctime();
        if let Kind::Directory(directory) = &mut node.kind {
            directory.set_parent(new);
            let old = self.tree.node_mut(old)?;
            old.nlink = old.nlink.saturating_sub(1);
            self.tree.node_mut(new)?.nlink += 1;
        }
        Ok(())
    }

    fn update_renamed(&mut self, from: Location<'_>, to: Location<'_>) -> Result<()> {
        self.tree.node_mut(from.dir)?.update_mtime();
        self.tree.node_mut(to.dir)?.update_mtime();
        Ok(())
    }

    /// Creates a whiteout of overlay file systems: a character device 0:0.
    fn make_whiteout(&mut self, cx: &Ctx, dir: Ino) -> Result<Ino> {
        if self.checks() && !cx.identity.is_root() {
            return Err(Error::NotPermitted);
        }
        let mode = NewMode::settled(Mode::new(0));
        let ino = self.create_node(cx, dir, Kind::Special(FileType::CharDevice), mode, Device::default())?;
        self.tree.node_mut(ino)?.nlink = 1;
        Ok(ino)
    }
}
