//! Changes of attributes and their permission checks; access checks, targets of symbolic links, and
//! statistics.

use tombolo_core::fs::{
    AccessMask, Attr, Change, File, FileType, Mode, NodeId, OpenFlags, Ownership, SetAttr, SetTime, StatFs,
};
use tombolo_core::{Ctx, Error, Identity, Result};

use super::{View, below_cx};
use crate::tree::{Node, Set, now};

impl View {
    /// Returns `node`, after checking that `file`, if given, is an opening of it.
    pub(super) fn through(&self, node: NodeId, file: Option<File>) -> Result<NodeId> {
        match file {
            Some(file) if file.node != node => Err(Error::BadOpen),
            Some(file) => self.session.opening(file).map(|opening| opening.node),
            None => Ok(node),
        }
    }

    pub(super) async fn setattr(
        self,
        node: NodeId,
        file: Option<File>,
        set: SetAttr,
    ) -> Result<(Attr, Change)> {
        let id = self.through(node, file)?;
        let by_writer = file.and_then(|file| self.session.opening(file).ok());
        let by_writer = by_writer.is_some_and(|opening| opening.flags.contains(OpenFlags::WRITE));
        loop {
            let epoch = self.shared().tree().epoch;
            let attr = self.attr(id).await?;
            self.check_setattr(id, &attr, &set, by_writer).await?;
            // A change of size passes the gate like a write, so that no plan is made meanwhile.
            let _inside = match set.size {
                Some(_) => Some(self.shared().gate.enter().await),
                None => None,
            };
            let (done, ticket) = self.shared().change(|tree| {
                if tree.epoch != epoch {
                    return Ok(None);
                }
                let before = tree.touch(id, &attr).attr;
                if let Some(size) = set.size {
                    tree.set_size(id, size);
                }
                let node = tree.touch(id, &attr);
                self.apply(node, &set);
                Ok(Some((before, node.attr)))
            })?;
            if let Some((before, after)) = done {
                return self.stable_if_keyed(((after, self.told(&before, after)), ticket)).await;
            }
        }
    }

    /// Checks everything that can be refused, before anything is changed.
    async fn check_setattr(&self, id: NodeId, attr: &Attr, set: &SetAttr, by_writer: bool) -> Result<()> {
        if set.guard_ctime.is_some_and(|ctime| ctime != attr.ctime) {
            return Err(Error::NotSync);
        }
        // The mode of a symbolic link is meaningless and cannot be changed (symlink(7)).
        if set.mode.is_some() && attr.file_type == FileType::Symlink {
            return Err(Error::NotSupported);
        }
        if let Some(size) = set.size {
            match attr.file_type {
                FileType::Regular if size > self.session.profile.file_size_max => {
                    return Err(Error::FileTooLarge);
                }
                FileType::Regular => {}
                FileType::Directory => return Err(Error::IsDirectory),
                _ => return Err(Error::InvalidArgument),
            }
            if !by_writer {
                self.check(id, AccessMask::WRITE).await?;
            }
        }
        let (owner, user) = (Ownership::from(attr), &self.cx.identity);
        owner.check_chown(user, set.uid, set.gid)?;
        let is_owner = || self.as_either(|user| owner.check_owner(user));
        if set.mode.is_some() {
            is_owner()?;
        }
        match (set.atime, set.mtime) {
            (None, None) => Ok(()),
            // Write permission allows to set both times to the present, but to nothing else (utimensat(2)).
            (Some(SetTime::Now), Some(SetTime::Now)) if by_writer || is_owner().is_ok() => Ok(()),
            (Some(SetTime::Now), Some(SetTime::Now)) => self.check(id, AccessMask::WRITE).await,
            _ => is_owner(),
        }
    }

    /// Applies a permitted change to a node, except for the size.
    fn apply(&self, node: &mut Node, set: &SetAttr) {
        let user = &self.cx.identity;
        if set.size.is_some() {
            node.touch_mtime(user);
        }
        let is_chown = set.uid.is_some() || set.gid.is_some();
        if is_chown {
            node.attr.uid = set.uid.unwrap_or(node.attr.uid);
            node.attr.gid = set.gid.unwrap_or(node.attr.gid);
            node.ask(Set::OWNER);
        }
        if let Some(mut mode) = set.mode {
            if user.loses_set_gid(node.attr.gid) {
                mode = Mode::new(mode.bits() & !Mode::SET_GID);
            }
            node.attr.mode = mode;
            node.ask(Set::MODE);
        }
        let kills = set.kill_privileges || is_chown || (set.size.is_some() && !user.is_root());
        if kills {
            drop_privileges(node, Some(user).filter(|_| set.size.is_some()));
        }
        if kills || set.size.is_some() {
            node.drop_capability();
        }
        for (set, is_atime) in [(set.atime, true), (set.mtime, false)] {
            let Some(set) = set else { continue };
            let time = match set {
                SetTime::Now => now(),
                SetTime::At(time) => time,
            };
            let (at, asked) = match is_atime {
                true => (&mut node.attr.atime, Set::ATIME),
                false => (&mut node.attr.mtime, Set::MTIME),
            };
            *at = time;
            node.ask(asked);
        }
        if *set != (SetAttr { guard_ctime: set.guard_ctime, ..SetAttr::default() }) {
            node.attr.ctime = now();
            node.user = user.clone();
        }
    }

    pub(super) async fn access(self, id: NodeId, mask: AccessMask) -> Result<()> {
        self.attr(id).await?;
        self.check(id, mask).await
    }

    pub(super) async fn readlink(self, id: NodeId) -> Result<Vec<u8>> {
        let attr = self.attr(id).await?;
        if attr.file_type != FileType::Symlink {
            return Err(Error::InvalidArgument);
        }
        let (link, below) = {
            let tree = self.shared().tree();
            (tree.nodes.get(&id).and_then(|node| node.link.clone()), tree.below(id))
        };
        match link {
            Some(link) => Ok(link),
            None => {
                let below = below.ok_or(Error::Stale)?;
                self.shared().below.readlink(&self.below_cx(), below).resolve().await
            }
        }
    }

    /// Returns the origin's statistics for a node, or for the root if the origin lacks the node.
    pub(super) async fn statfs(self, id: NodeId) -> Result<StatFs> {
        self.attr(id).await?;
        let below = self.shared().tree().below(id).unwrap_or(NodeId::ROOT);
        let cx: Ctx = below_cx(&self.cx, Identity::ROOT);
        self.shared().below.statfs(&cx, below).resolve().await
    }
}

/// Drops set-user-id, and set-group-id if the group may execute the file or `writer` is not in the group.
/// Directories retain both bits.
pub(super) fn drop_privileges(node: &mut Node, writer: Option<&Identity>) {
    if node.is_directory() {
        return;
    }
    let mut mode = node.attr.mode.without_privileges();
    if writer.is_some_and(|writer| writer.loses_set_gid(node.attr.gid)) {
        mode = Mode::new(mode.bits() & !Mode::SET_GID);
    }
    if mode != node.attr.mode {
        node.attr.mode = mode;
        match (node.set | node.sending).contains(Set::MODE) {
            true => node.set |= Set::MODE,
            false => node.imply(Set::MODE),
        }
    }
}
