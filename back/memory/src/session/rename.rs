use tombolo_core::fs::{
    AccessMask, Ctx, Device, Error, FileType, Mode, Name, NewMode, NodeId, RenameFlags, Renamed, Result,
};

use super::View;
use crate::node::Kind;
use crate::tree::Ino;

/// One of the two names of a rename.
#[derive(Clone, Copy)]
struct Place<'a> {
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
        let from = Place { dir: self.ino(from_parent)?, name: from_name.as_bytes() };
        let to = Place { dir: self.ino(to_parent)?, name: to_name.as_bytes() };
        let source = self.directory_to_change(cx, from_parent)?.find(from.name).ok_or(Error::NotFound)?;
        let target = self.directory_to_change(cx, to_parent)?.find(to.name);
        self.check_kinship(from, source, to, target, flags)?;
        if flags.contains(RenameFlags::NO_REPLACE) && target.is_some() {
            return Err(Error::Exists);
        }
        if flags.contains(RenameFlags::EXCHANGE) && target.is_none() {
            return Err(Error::NotFound);
        }
        let (from_before, to_before) = (self.before(cx, from.dir), self.before(cx, to.dir));
        // Two names of one file: nothing to do (rename(2)).
        if target != Some(source) {
            self.check_move(cx, from, source, to)?;
            match target {
                Some(target) if flags.contains(RenameFlags::EXCHANGE) => {
                    self.check_move(cx, to, target, from)?;
                    self.exchange(from, source, to, target)?;
                }
                _ => {
                    if let Some(target) = target {
                        self.check_replace(cx, source, to, target)?;
                    }
                    self.move_name(cx, from, source, to, target, flags)?;
                }
            }
        }
        Ok(Renamed { from_dir: self.change(from.dir, from_before), to_dir: self.change(to.dir, to_before) })
    }

    /// A directory cannot move into itself, nor replace one that it lies in.
    fn check_kinship(
        &self,
        from: Place<'_>,
        source: Ino,
        to: Place<'_>,
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

    /// Whether the user may take `ino` from one place to the other.
    fn check_move(&self, cx: &Ctx, from: Place<'_>, ino: Ino, to: Place<'_>) -> Result<()> {
        self.check_sticky(cx, from.dir, ino)?;
        let node = self.tree.node(ino)?;
        // A directory's `..` is written when its parent changes.
        if node.is_directory() && from.dir != to.dir {
            self.check_access(cx, node, AccessMask::WRITE)?;
        }
        Ok(())
    }

    fn check_replace(&self, cx: &Ctx, source: Ino, to: Place<'_>, target: Ino) -> Result<()> {
        self.check_sticky(cx, to.dir, target)?;
        let target = self.tree.node(target)?;
        match (self.tree.node(source)?.is_directory(), target.is_directory()) {
            (true, false) => Err(Error::NotDirectory),
            (false, true) => Err(Error::IsDirectory),
            (true, true) if !target.directory()?.is_empty() => Err(Error::NotEmpty),
            _ => Ok(()),
        }
    }

    fn move_name(
        &mut self,
        cx: &Ctx,
        from: Place<'_>,
        source: Ino,
        to: Place<'_>,
        target: Option<Ino>,
        flags: RenameFlags,
    ) -> Result<()> {
        let whiteout = match flags.contains(RenameFlags::WHITEOUT) {
            true => Some(self.make_whiteout(cx, from.dir)?),
            false => None,
        };
        self.tree.node_mut(to.dir)?.directory_mut()?.set(to.name, source);
        let from_directory = self.tree.node_mut(from.dir)?.directory_mut()?;
        match whiteout {
            Some(whiteout) => from_directory.set(from.name, whiteout),
            None => from_directory.remove(from.name),
        }
        if let Some(target) = target {
            match self.tree.node(target)?.is_directory() {
                true => self.drop_directory(to.dir, target)?,
                false => self.drop_name(target)?,
            }
        }
        self.reparent(source, from.dir, to.dir)?;
        self.touch_renamed(from, to)
    }

    fn exchange(&mut self, from: Place<'_>, source: Ino, to: Place<'_>, target: Ino) -> Result<()> {
        self.tree.node_mut(from.dir)?.directory_mut()?.set(from.name, target);
        self.tree.node_mut(to.dir)?.directory_mut()?.set(to.name, source);
        self.reparent(source, from.dir, to.dir)?;
        self.reparent(target, to.dir, from.dir)?;
        self.touch_renamed(from, to)
    }

    /// Tells a node that it moved; a directory takes its `..` along.
    fn reparent(&mut self, ino: Ino, old: Ino, new: Ino) -> Result<()> {
        let node = self.tree.node_mut(ino)?;
        node.touch_ctime();
        if let Kind::Directory(directory) = &mut node.kind {
            directory.set_parent(new);
            let old = self.tree.node_mut(old)?;
            old.nlink = old.nlink.saturating_sub(1);
            self.tree.node_mut(new)?.nlink += 1;
        }
        Ok(())
    }

    fn touch_renamed(&mut self, from: Place<'_>, to: Place<'_>) -> Result<()> {
        self.tree.node_mut(from.dir)?.touch_mtime();
        self.tree.node_mut(to.dir)?.touch_mtime();
        Ok(())
    }

    /// What overlay file systems take for "nothing here": a character device 0:0.
    fn make_whiteout(&mut self, cx: &Ctx, dir: Ino) -> Result<Ino> {
        if self.checks() && !crate::permission::is_root(&cx.identity) {
            return Err(Error::NotPermitted);
        }
        let mode = NewMode::settled(Mode::new(0));
        let ino = self.bear(cx, dir, Kind::Special(FileType::CharDevice), mode, Device::default())?;
        self.tree.node_mut(ino)?.nlink = 1;
        Ok(ino)
    }
}
