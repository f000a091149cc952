//! Openings of a session, reads and writes through them, and listings.

use tombolo_core::fs::{
    AccessMask, Cookie, DirEntry, DirPage, File, FileType, LockOwner, NodeId, OpenFlags, OpenId, Opened,
    ReadDone, Write, Written,
};
use tombolo_core::{Ctx, Error, Resource, Result, Stability, Want};
use tombolo_mem::{Sink, Source};

use super::{Opening, View};
use crate::directory::{COOKIE_DOT, COOKIE_DOT_DOT, Ino};
use crate::node::{CAPABILITY, Kind, Node};

impl View<'_> {
    pub(super) fn open(&mut self, cx: &Ctx, node: NodeId, flags: OpenFlags) -> Result<Opened> {
        let ino = self.ino(node)?;
        self.check_open(cx, self.tree.node(ino)?, flags)?;
        self.check_open_budget()?;
        self.truncate_at_open(cx, ino, flags)?;
        let open = self.add_opening(ino, flags)?;
        let wanted = cx.want.contains(Want::OPEN_ATTRS);
        let attr = if wanted { Some(self.tree.node(ino)?.attr(self.tree.fsid)) } else { None };
        Ok(Opened { open, attr })
    }

    pub(super) fn release(&mut self, file: File) {
        let Ok(opening) = self.opening(file) else { return };
        self.tables.opens.remove(&file.open.0);
        self.session.budget.give_back(Resource::Opens, 1);
        self.woken.absorb(self.session.locks.released(file));
        self.tree.remove_holder(opening.ino);
    }

    pub(super) fn flush(&mut self, file: File, owner: LockOwner) -> Result<()> {
        self.opening(file)?;
        self.woken.absorb(self.session.locks.closed(file.node, owner));
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
            // Devices, fifos and sockets are opened by the client's own kernel.
            _ => return Err(Error::NoDevice),
        }
        let mut mask = AccessMask::empty();
        // Executing needs no read permission (execve(2)).
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

    /// Fails with [`Error::TooManyOpen`] if the session is at its limit of openings; called before anything
    /// is changed.
    pub(super) fn check_open_budget(&self) -> Result<()> {
        let budget = &self.session.budget;
        let has_budget = budget.used(Resource::Opens) < budget.limit(Resource::Opens);
        if has_budget { Ok(()) } else { Err(Error::TooManyOpen) }
    }

    pub(super) fn truncate_at_open(&mut self, cx: &Ctx, ino: Ino, flags: OpenFlags) -> Result<()> {
        if !flags.contains(OpenFlags::TRUNCATE) {
            return Ok(());
        }
        let kills = self.kills_privileges(cx, flags.contains(OpenFlags::KILL_PRIVILEGES));
        let (content, space) = self.tree.content_mut(ino)?;
        content.set_size(0, space)?;
        self.data_changed(ino, kills)
    }

    pub(super) fn add_opening(&mut self, ino: Ino, flags: OpenFlags) -> Result<OpenId> {
        if !self.session.budget.try_add(Resource::Opens, 1) {
            return Err(Error::TooManyOpen);
        }
        let open = OpenId(self.session.shared.unique_id());
        self.tables.opens.insert(open.0, Opening { ino, flags });
        self.tree.add_holder(ino);
        Ok(open)
    }
}

impl View<'_> {
    pub(super) fn read(&mut self, file: File, offset: u64, into: &Sink) -> Result<ReadDone> {
        let opening = self.opening(file)?;
        let node = self.tree.node_mut(opening.ino)?;
        let Kind::File(content) = &node.kind else { return Err(Error::IsDirectory) };
        if !opening.flags.intersects(OpenFlags::READ | OpenFlags::EXECUTE) {
            return Err(Error::BadOpen);
        }
        let done = content.read(offset, into);
        if !opening.flags.contains(OpenFlags::NO_ACCESS_TIME) {
            node.update_atime();
        }
        Ok(done)
    }

    pub(super) fn write(&mut self, cx: &Ctx, file: File, how: &Write, from: &Source) -> Result<Written> {
        let opening = self.opening(file)?;
        if !opening.flags.contains(OpenFlags::WRITE) {
            return Err(Error::BadOpen);
        }
        let node = self.tree.node(opening.ino)?;
        how.check_owner(cx, node.uid, node.nlink)?;
        let before = self.before(cx, opening.ino);
        let kills = self.kills_privileges(cx, how.kill_privileges);
        let (content, space) = self.tree.content_mut(opening.ino)?;
        let appends = opening.flags.contains(OpenFlags::APPEND) && !how.in_place;
        let offset = if appends { content.size() } else { how.offset };
        let count = content.write(offset, from, space)?;
        if count > 0 {
            self.data_changed(opening.ino, kills)?;
            self.tree.node_mut(opening.ino)?.xattrs.remove(CAPABILITY);
        }
        // Memory has no stable storage: every write is as stable as it will ever be.
        Ok(Written { count, stability: Stability::FileSync, file: self.change(opening.ino, before) })
    }

    /// Returns the inode number of an opening; [`Error::BadOpen`] if its access mode lacks the reads or
    /// writes of `mask`.
    pub(super) fn check_opened_for(&self, file: File, mask: AccessMask) -> Result<Ino> {
        let opening = self.opening(file)?;
        let reads = !mask.contains(AccessMask::READ) || opening.flags.contains(OpenFlags::READ);
        let writes = !mask.contains(AccessMask::WRITE) || opening.flags.contains(OpenFlags::WRITE);
        if reads && writes { Ok(opening.ino) } else { Err(Error::BadOpen) }
    }
}

impl View<'_> {
    pub(super) fn readdir(&mut self, file: File, cookie: Cookie, mut page: DirPage) -> Result<DirPage> {
        let opening = self.opening(file)?;
        let node = self.tree.node(opening.ino)?;
        let parent = node.directory()?.parent();
        if node.nlink == 0 {
            return Err(Error::NotFound);
        }
        for (name, own, fileid) in [(&b"."[..], COOKIE_DOT, opening.ino), (b"..", COOKIE_DOT_DOT, parent)] {
            let file_type = Some(FileType::Directory);
            let entry = DirEntry { name, fileid: fileid.0, file_type, cookie: Cookie(own), entry: None };
            if cookie.0 < own && !page.push(entry) {
                return Ok(page);
            }
        }
        // Counting a look-up changes the tree, so each step finds the next entry by its cookie.
        let mut after = cookie.0.max(COOKIE_DOT_DOT);
        loop {
            let next = self.tree.node(opening.ino)?.directory()?.after(after).next();
            let Some((own, name, ino)) = next.map(|(own, name, ino)| (own, name.clone(), ino)) else { break };
            if !page.fits(name.len()) {
                return Ok(page);
            }
            let file_type = self.tree.file_type(ino);
            // A session at its node limit still gets the names.
            let entry = if page.wants_entries() { self.look_up(ino).ok() } else { None };
            let pushed = page.push(DirEntry {
                name: &name,
                fileid: ino.0,
                file_type,
                cookie: Cookie(own),
                entry: entry.as_ref(),
            });
            debug_assert!(pushed, "the page said that the entry fits");
            after = own;
        }
        page.set_end();
        Ok(page)
    }
}
