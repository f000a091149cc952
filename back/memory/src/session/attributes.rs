//! Reading and changing attributes, access tests, and statistics of the file system.

use tombolo_core::fs::{
    AccessMask, Attr, Change, File, FileType, Mode, NAME_MAX, NodeId, OpenFlags, SetAttr, SetTime, StatFs,
    Timestamp,
};
use tombolo_core::{Ctx, Error, Result};

use super::View;
use crate::content::PAGE_BYTES;
use crate::directory::Ino;
use crate::node::{Kind, Node, now};

impl View<'_> {
    pub(super) fn getattr(&self, node: NodeId, file: Option<File>) -> Result<Attr> {
        let ino = self.target(node, file)?;
        Ok(self.tree.node(ino)?.attr(self.tree.fsid))
    }

    pub(super) fn access(&self, cx: &Ctx, node: NodeId, mask: AccessMask) -> Result<()> {
        self.node(node)?.check(&cx.identity, mask)
    }

    pub(super) fn readlink(&self, node: NodeId) -> Result<Vec<u8>> {
        match &self.node(node)?.kind {
            Kind::Symlink(target) => Ok(target.to_vec()),
            _ => Err(Error::InvalidArgument),
        }
    }

    pub(super) fn setattr(
        &mut self,
        cx: &Ctx,
        node: NodeId,
        file: Option<File>,
        set: &SetAttr,
    ) -> Result<(Attr, Change)> {
        let ino = self.target(node, file)?;
        let through_writer = match file {
            Some(file) => self.opening(file)?.flags.contains(OpenFlags::WRITE),
            None => false,
        };
        self.check_setattr(cx, self.tree.node(ino)?, set, through_writer)?;
        let before = self.before(cx, ino);
        if let Some(size) = set.size {
            let (content, space) = self.tree.content_mut(ino)?;
            content.set_size(size, space)?;
            let kills = self.kills_privileges(cx, set.kill_privileges);
            self.data_changed(ino, kills)?;
        }
        self.apply(cx, ino, set)?;
        let attr = self.tree.node(ino)?.attr(self.tree.fsid);
        Ok((attr, self.change(ino, before)))
    }

    pub(super) fn statfs(&self, node: NodeId) -> Result<StatFs> {
        self.ino(node)?;
        let free = self.tree.space.free_pages();
        Ok(StatFs {
            block_size: PAGE_BYTES as u32,
            blocks: self.tree.space.limit_pages(),
            blocks_free: free,
            blocks_available: free,
            files: self.tree.node_limit(),
            files_free: self.tree.node_limit() - self.tree.nodes(),
            name_max: NAME_MAX as u32,
        })
    }

    /// Checks the guard, the type and the permissions, before anything is changed.
    fn check_setattr(&self, cx: &Ctx, node: &Node, set: &SetAttr, through_writer: bool) -> Result<()> {
        if set.guard_ctime.is_some_and(|ctime| ctime != node.times.ctime) {
            return Err(Error::NotSync);
        }
        // The mode of a symbolic link has no meaning and cannot be changed (symlink(7)).
        if set.mode.is_some() && node.file_type() == FileType::Symlink {
            return Err(Error::NotSupported);
        }
        if set.size.is_some() {
            match node.file_type() {
                FileType::Regular => {}
                FileType::Directory => return Err(Error::IsDirectory),
                _ => return Err(Error::InvalidArgument),
            }
            if !through_writer {
                self.check_access(cx, node, AccessMask::WRITE)?;
            }
        }
        if !self.checks() {
            return Ok(());
        }
        node.ownership().check_chown(&cx.identity, set.uid, set.gid)?;
        if set.mode.is_some() {
            self.check_owner(cx, node)?;
        }
        match (set.atime, set.mtime) {
            (None, None) => {}
            // Users with write permission may set both times to the present, but nothing else (utimensat(2)).
            (Some(SetTime::Now), Some(SetTime::Now)) => {
                if self.check_owner(cx, node).is_err() && !through_writer {
                    self.check_access(cx, node, AccessMask::WRITE)?;
                }
            }
            _ => self.check_owner(cx, node)?,
        }
        Ok(())
    }

    /// Applies all changes but the size.
    fn apply(&mut self, cx: &Ctx, ino: Ino, set: &SetAttr) -> Result<()> {
        let checks = self.checks();
        let node = self.tree.node_mut(ino)?;
        let chown = set.uid.is_some() || set.gid.is_some();
        node.uid = set.uid.unwrap_or(node.uid);
        node.gid = set.gid.unwrap_or(node.gid);
        if let Some(mut mode) = set.mode {
            if checks && cx.identity.loses_set_gid(node.gid) {
                mode = Mode::new(mode.bits() & !Mode::SET_GID);
            }
            // A new owner never gets the previous owner's privileges, whatever mode is set at the same time.
            node.mode = if chown && !node.is_directory() { mode.without_privileges() } else { mode };
            if let Some(acl) = &mut node.access_acl {
                acl.chmod(mode);
            }
        }
        if chown || set.kill_privileges {
            node.drop_privileges(None);
        }
        let time = |set: Option<SetTime>, old: Timestamp| match set {
            None => old,
            Some(SetTime::Now) => now(),
            Some(SetTime::At(time)) => time,
        };
        node.times.atime = time(set.atime, node.times.atime);
        node.times.mtime = time(set.mtime, node.times.mtime);
        if *set != (SetAttr { guard_ctime: set.guard_ctime, ..SetAttr::default() }) {
            node.update_ctime();
        }
        Ok(())
    }
}
