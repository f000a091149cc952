use tombolo_core::fs::{AccessMask, File, FileType, LockOwner, NodeId, OpenFlags, OpenId, Opened};
use tombolo_core::{Ctx, Error, Resource, Result, Want};

use super::{Opening, View};
use crate::node::Node;
use crate::tree::Ino;

impl View<'_> {
    pub(super) fn open(&mut self, cx: &Ctx, node: NodeId, flags: OpenFlags) -> Result<Opened> {
        let ino = self.ino(node)?;
        self.check_open(cx, self.tree.node(ino)?, flags)?;
        self.check_room_for_open()?;
        self.truncate_at_open(cx, ino, flags)?;
        let open = self.add_opening(ino, flags)?;
        let wanted = cx.want.contains(Want::OPEN_ATTRS);
        let attr = if wanted { Some(self.tree.node(ino)?.attr(self.tree.fsid)) } else { None };
        Ok(Opened { open, attr })
    }

    pub(super) fn release(&mut self, file: File) {
        let Ok(opening) = self.opening(file) else { return };
        self.held.opens.remove(&file.open.0);
        self.session.budget.give_back(Resource::Opens, 1);
        self.drop_opening_locks(opening.ino, file.open);
        self.tree.let_go(opening.ino);
    }

    pub(super) fn flush(&mut self, file: File, owner: LockOwner) -> Result<()> {
        let opening = self.opening(file)?;
        self.drop_process_locks(opening.ino, owner);
        Ok(())
    }

    pub(super) fn check_open(&self, cx: &Ctx, node: &Node, flags: OpenFlags) -> Result<()> {
        let directory_asked = flags.contains(OpenFlags::DIRECTORY);
        match node.file_type() {
            FileType::Directory if flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE) => {
                return Err(Error::IsDirectory);
            }
            FileType::Directory if directory_asked => {}
            FileType::Directory => return Err(Error::IsDirectory),
            _ if directory_asked => return Err(Error::NotDirectory),
            FileType::Regular => {}
            FileType::Symlink => return Err(Error::SymlinkLoop),
            // A device, a fifo or a socket is opened by the client's own kernel.
            _ => return Err(Error::NoDevice),
        }
        let mut mask = AccessMask::empty();
        // Executing needs no permission to read (execve(2)).
        let executes = flags.contains(OpenFlags::EXECUTE);
        mask.set(AccessMask::EXECUTE, executes);
        mask.set(AccessMask::READ, flags.contains(OpenFlags::READ) && !executes);
        mask.set(AccessMask::WRITE, flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE));
        self.check_access(cx, node, mask)?;
        if flags.contains(OpenFlags::NO_ACCESS_TIME) {
            self.check_owner(cx, node)?;
        }
        Ok(())
    }

    /// Asked before anything is changed.
    pub(super) fn check_room_for_open(&self) -> Result<()> {
        let budget = &self.session.budget;
        let room = budget.used(Resource::Opens) < budget.limit(Resource::Opens);
        if room { Ok(()) } else { Err(Error::TooManyOpen) }
    }

    pub(super) fn truncate_at_open(&mut self, cx: &Ctx, ino: Ino, flags: OpenFlags) -> Result<()> {
        if !flags.contains(OpenFlags::TRUNCATE) {
            return Ok(());
        }
        let kills = self.kills_privileges(cx, flags.contains(OpenFlags::KILL_PRIVILEGES));
        let (content, space) = self.tree.content_mut(ino)?;
        content.set_size(0, space)?;
        let node = self.tree.node_mut(ino)?;
        node.touch_mtime();
        if let Some(writer) = kills {
            node.drop_privileges(writer);
        }
        Ok(())
    }

    pub(super) fn add_opening(&mut self, ino: Ino, flags: OpenFlags) -> Result<OpenId> {
        if !self.session.budget.try_add(Resource::Opens, 1) {
            return Err(Error::TooManyOpen);
        }
        let open = OpenId(self.session.shared.unique_id());
        self.held.opens.insert(open.0, Opening { ino, flags });
        self.tree.hold(ino);
        Ok(open)
    }
}
