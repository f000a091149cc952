//! Opening of files and directories, and of the same files in the cache when other than local data are read.

use tombolo_core::fs::{AccessMask, File, FileType, NodeId, OpenFlags, Opened, SetAttr};
use tombolo_core::{Ctx, Error, Result, Want, lock};

use super::{Opening, View, below_cx};
use crate::shared::SESSION;

impl View {
    /// Checks that the user may open a node with these flags.
    pub(super) async fn check_open(&self, id: NodeId, flags: OpenFlags) -> Result<()> {
        let attr = self.attr(id).await?;
        if flags.contains(OpenFlags::DIRECTORY) && attr.file_type != FileType::Directory {
            return Err(Error::NotDirectory);
        }
        let writes = flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE);
        match attr.file_type {
            FileType::Directory if writes => return Err(Error::IsDirectory),
            FileType::Directory | FileType::Regular => {}
            FileType::Symlink => return Err(Error::SymlinkLoop),
            _ => return Err(Error::NoDevice),
        }
        let mut mask = AccessMask::empty();
        // Executing needs no permission to read (execve(2)).
        let executes = flags.contains(OpenFlags::EXECUTE);
        mask.set(AccessMask::READ, flags.contains(OpenFlags::READ) && !executes);
        mask.set(AccessMask::WRITE, writes);
        mask.set(AccessMask::EXECUTE, executes);
        if mask.is_empty() { Ok(()) } else { self.check(id, mask).await }
    }

    pub(super) async fn open(self, id: NodeId, flags: OpenFlags) -> Result<Opened> {
        let permit = self.session.permit()?;
        self.check_open(id, flags).await?;
        if flags.contains(OpenFlags::TRUNCATE) {
            self.truncate(id, flags).await?;
        }
        let attr = match self.cx.want.contains(Want::OPEN_ATTRS) {
            true => Some(self.attr(id).await?),
            false => None,
        };
        Ok(Opened { open: self.session.open(permit, id, flags, &self.cx.identity), attr })
    }

    pub(super) async fn truncate(&self, id: NodeId, flags: OpenFlags) -> Result<()> {
        let kill_privileges = flags.contains(OpenFlags::KILL_PRIVILEGES);
        let set = SetAttr { size: Some(0), kill_privileges, ..SetAttr::default() };
        self.clone().setattr(id, None, set).await.map(drop)
    }

    /// Returns the opening of the cache that belongs to a local opening, made at the first call.
    pub(super) async fn opened_below(&self, opening: &Opening) -> Result<File> {
        if let Some(file) = *lock(&opening.below) {
            return Ok(file);
        }
        let (node, is_ours, owner) = {
            let tree = self.shared().tree();
            let node = tree.nodes.get(&opening.node);
            let owner = node.map(|node| (node.attr.uid, node.attr.gid));
            (tree.below(opening.node).ok_or(Error::Stale)?, node.is_some(), owner)
        };
        let purpose = opening.flags & OpenFlags::DIRECTORY;
        let flags = if purpose.is_empty() { OpenFlags::READ } else { OpenFlags::DIRECTORY | OpenFlags::READ };
        let fs = &self.shared().below;
        let cx = below_cx(&Ctx::root(SESSION), opening.user.clone());
        let opened = match (fs.open(&cx, node, flags).resolve().await, owner) {
            // This layer has checked the right to open, or the file was opened for writing: the owner's
            // identity may read data that are no longer local.
            (Err(Error::AccessDenied), Some((uid, gid))) if is_ours => {
                let cx = below_cx(&cx, tombolo_core::Identity { uid, gid, groups: None });
                fs.open(&cx, node, flags).resolve().await?
            }
            (opened, _) => opened?,
        };
        let file = File { node, open: opened.open };
        let mut slot = lock(&opening.below);
        match *slot {
            None => *slot = Some(file),
            Some(_) => fs.release(&cx, file),
        }
        Ok(slot.unwrap_or(file))
    }
}
