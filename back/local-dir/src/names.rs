//! Look-ups, symbolic links, access tests, and changes of names.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use tombolo_core::fs::{
    AccessMask, Change, Device, Entry, FileType, Made, Mode, Name, NewMode, NodeId, RenameFlags, Renamed,
};
use tombolo_core::{Ctx, Error, Permit, Result};
use tombolo_sys::Errno;
use tombolo_sys::access::{self, check_access};
use tombolo_sys::namespace::{self, RenameFlags as SysRenameFlags};
use tombolo_sys::open::{OpenFlags, open_cached, open_place};
use tombolo_sys::stat::{self, Device as SysDevice, S_IFLNK};

use crate::state::{Location, Session};
use crate::table::Anchor;
use crate::window::ChangedFile;

/// Longest target of a symbolic link, plus a byte that reveals a longer one (PATH_MAX).
const TARGET_MAX_LEN: usize = 4096;

impl Session {
    /// Looks a name up. A file that is recognised by its attributes is not opened.
    pub(crate) fn lookup(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Result<Entry> {
        let dir = self.location(parent)?;
        let acting = self.checked(cx)?;
        let found = stat::stat_entry(dir.fd(), name.as_bytes())?;
        self.admit(&found)?;
        if let Some(entry) = self.recognise(&found) {
            return Ok(self.with_volatility(entry, &dir, name));
        }
        let location = open_place(dir.fd(), name.as_bytes())?;
        drop(acting);
        self.take_in(location, self.node_permit()?, parent, &dir, name)
    }

    /// Opens a name and creates or finds the node of its file; `permit` is the permit for the node.
    pub(crate) fn open_name(
        &self,
        cx: &Ctx,
        permit: Permit,
        parent: NodeId,
        dir: &Location,
        name: Name<'_>,
    ) -> Result<Entry> {
        let acting = self.checked(cx)?;
        let location = open_place(dir.fd(), name.as_bytes())?;
        drop(acting);
        self.take_in(location, permit, parent, dir, name)
    }

    /// Creates or finds the node of a file opened under a name.
    fn take_in(
        &self,
        location: OwnedFd,
        permit: Permit,
        parent: NodeId,
        dir: &Location,
        name: Name<'_>,
    ) -> Result<Entry> {
        let stat = stat::stat(location.as_fd())?;
        self.admit(&stat)?;
        let (entry, _) = self.adopt(location, true, &stat, permit, parent, Some(name))?;
        Ok(self.with_volatility(entry, dir, name))
    }

    /// Looks a name up if the kernel has it in memory, so that the look-up cannot block; otherwise `None`.
    pub(crate) fn lookup_in_memory(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Option<Result<Entry>> {
        // The attributes of a remote file may have to be fetched, even if its name is cached.
        if !self.is_local(parent) {
            return None;
        }
        let dir = self.open_location(parent).ok()??;
        let location = {
            let _acting = self.checked(cx).ok()?;
            match open_cached(dir.fd(), name.as_bytes(), OpenFlags::PATH) {
                Ok(location) => location,
                Err(Errno::NOENT) => return Some(Err(Error::NotFound)),
                Err(_) => return None,
            }
        };
        // The remainder cannot block: the inode was just opened.
        Some(self.node_permit().and_then(|permit| self.take_in(location, permit, parent, &dir, name)))
    }

    pub(crate) fn read_link(&self, node: NodeId) -> Result<Vec<u8>> {
        let location = self.location(node)?;
        if location.kind() != S_IFLNK {
            return Err(Error::InvalidArgument);
        }
        let mut buffer = [MaybeUninit::uninit(); TARGET_MAX_LEN];
        let target =
            self.reading(node, location.fd(), || namespace::link_target(location.fd(), &mut buffer))?;
        Ok(target.to_vec())
    }

    pub(crate) fn access(&self, cx: &Ctx, node: NodeId, mask: AccessMask) -> Result<()> {
        let location = self.location(node)?;
        if mask.contains(AccessMask::WRITE) {
            self.writable()?;
        }
        let bit = |flag, bit| if mask.contains(flag) { bit } else { 0 };
        let mask = bit(AccessMask::EXECUTE, access::EXECUTE)
            | bit(AccessMask::WRITE, access::WRITE)
            | bit(AccessMask::READ, access::READ);
        let _acting = self.as_caller(cx)?;
        Ok(check_access(location.fd(), mask)?)
    }
}

impl Session {
    pub(crate) fn mkdir(&self, cx: &Ctx, parent: NodeId, name: Name<'_>, mode: NewMode) -> Result<Made> {
        let make = |dir: &Location, mode| namespace::make_directory(dir.fd(), name.as_bytes(), mode);
        self.make(cx, parent, name, mode, make)
    }

    pub(crate) fn symlink(&self, cx: &Ctx, parent: NodeId, name: Name<'_>, target: &[u8]) -> Result<Made> {
        if target.is_empty() || target.contains(&0) {
            return Err(Error::InvalidArgument);
        }
        let make = |dir: &Location, _| namespace::make_symlink(target, dir.fd(), name.as_bytes());
        self.make(cx, parent, name, NewMode::settled(Mode::new(0o777)), make)
    }

    pub(crate) fn mknod(
        &self,
        cx: &Ctx,
        parent: NodeId,
        name: Name<'_>,
        file_type: FileType,
        mode: NewMode,
        rdev: Device,
    ) -> Result<Made> {
        if matches!(file_type, FileType::Directory | FileType::Symlink) {
            return Err(Error::BadType);
        }
        // The kernel refuses device nodes to a thread that acts as another user than the superuser: it lacks
        // CAP_MKNOD then.
        let device = SysDevice { major: rdev.major, minor: rdev.minor };
        let make = |dir: &Location, mode| {
            namespace::make_node(dir.fd(), name.as_bytes(), file_type.mode_bits() | mode, device)
        };
        self.make(cx, parent, name, mode, make)
    }

    pub(crate) fn link(&self, cx: &Ctx, node: NodeId, parent: NodeId, name: Name<'_>) -> Result<Made> {
        self.writable()?;
        let file = self.location(node)?;
        let dir = self.location(parent)?;
        let around = self.around(cx, [&dir]);
        let _changing =
            self.changing([ChangedFile::Key(dir.identity.key), ChangedFile::Key(file.identity.key)]);
        {
            let _acting = self.checked(cx)?;
            self.export.own.link(file.fd(), dir.fd(), name.as_bytes())?;
        }
        self.notify(|notifier| {
            notifier.name(&dir, name);
            notifier.attributes(node);
        });
        let [change] = around.changes();
        let entry = self.lookup(cx, parent, name)?;
        Ok(Made { entry, dir: change })
    }

    fn make(
        &self,
        cx: &Ctx,
        parent: NodeId,
        name: Name<'_>,
        mode: NewMode,
        make: impl FnOnce(&Location, u32) -> std::result::Result<(), Errno>,
    ) -> Result<Made> {
        self.writable()?;
        let dir = self.location(parent)?;
        // The permit is taken first: without a permit for the node, nothing is created.
        let permit = self.node_permit()?;
        let around = self.around(cx, [&dir]);
        let _changing = self.changing([ChangedFile::Key(dir.identity.key)]);
        {
            let making = self.making(cx, mode)?;
            make(&dir, making.mode())?;
        }
        self.notify(|notifier| notifier.name(&dir, name));
        let [change] = around.changes();
        let entry = self.open_name(cx, permit, parent, &dir, name)?;
        Ok(Made { entry, dir: change })
    }
}

impl Session {
    pub(crate) fn unlink(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Result<Change> {
        self.remove(cx, parent, name, |dir| namespace::remove(dir.fd(), name.as_bytes()))
    }

    pub(crate) fn rmdir(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Result<Change> {
        self.remove(cx, parent, name, |dir| namespace::remove_directory(dir.fd(), name.as_bytes()))
    }

    pub(crate) fn rename(
        &self,
        cx: &Ctx,
        from_parent: NodeId,
        from: Name<'_>,
        to_parent: NodeId,
        to: Name<'_>,
        flags: RenameFlags,
    ) -> Result<Renamed> {
        self.writable()?;
        let from_dir = self.location(from_parent)?;
        let to_dir = self.location(to_parent)?;
        let around = self.around(cx, [&from_dir, &to_dir]);
        self.pin_descriptor(to_parent, &to_dir, to);
        let (source, target) = (self.victim(&from_dir, from), self.victim(&to_dir, to));
        let _changing = self.changing([
            ChangedFile::Key(from_dir.identity.key),
            ChangedFile::Key(to_dir.identity.key),
            ChangedFile::Victim(source),
            ChangedFile::Victim(target),
        ]);
        {
            let _acting = self.checked(cx)?;
            let flags = rename_flags(flags)?;
            namespace::rename(from_dir.fd(), from.as_bytes(), to_dir.fd(), to.as_bytes(), flags)?;
        }
        self.notify(|notifier| {
            let target_is_replaced = !flags.contains(RenameFlags::EXCHANGE);
            notifier.victim(target, target_is_replaced.then_some((&to_dir, to)));
            notifier.victim(source, None);
            notifier.name(&from_dir, from);
            notifier.name(&to_dir, to);
        });
        self.moved(to_parent, &to_dir, to);
        self.name_added(&to_dir, to);
        if flags.contains(RenameFlags::EXCHANGE) {
            self.moved(from_parent, &from_dir, from);
            self.name_added(&from_dir, from);
        }
        let [from_dir, to_dir] = around.changes();
        Ok(Renamed { from_dir, to_dir })
    }

    fn remove(
        &self,
        cx: &Ctx,
        parent: NodeId,
        name: Name<'_>,
        remove: impl FnOnce(&Location) -> tombolo_sys::Result<()>,
    ) -> Result<Change> {
        self.writable()?;
        let dir = self.location(parent)?;
        let around = self.around(cx, [&dir]);
        self.pin_descriptor(parent, &dir, name);
        let victim = self.victim(&dir, name);
        let _changing = self.changing([ChangedFile::Key(dir.identity.key), ChangedFile::Victim(victim)]);
        {
            let _acting = self.checked(cx)?;
            remove(&dir)?;
        }
        self.notify(|notifier| {
            notifier.victim(victim, Some((&dir, name)));
            notifier.name(&dir, name);
        });
        let [change] = around.changes();
        Ok(change)
    }

    /// Opens and retains a descriptor for the node whose anchoring name is about to be removed. Only for file
    /// systems without handles.
    fn pin_descriptor(&self, parent: NodeId, dir: &Location, name: Name<'_>) {
        if self.export.mounts.all_have_handles() {
            return;
        }
        let Ok(location) = open_place(dir.fd(), name.as_bytes()) else { return };
        let Ok(stat) = stat::stat(location.as_fd()) else { return };
        let Some(node) = self.node_of_stat(&stat) else { return };
        let by_this_name = self.table.anchored_to(node, parent, name);
        if by_this_name {
            self.give_descriptor(node, &Arc::new(location));
            self.freed(self.table.re_anchor(node, Anchor::None));
        }
    }

    /// Records the new name as the means to find the node again. Only for file systems without handles.
    fn moved(&self, parent: NodeId, dir: &Location, name: Name<'_>) {
        if self.export.mounts.all_have_handles() {
            return;
        }
        let Ok(stat) = stat::stat_entry(dir.fd(), name.as_bytes()) else { return };
        let by_name =
            self.export.mounts.index_of(&stat).and_then(|index| self.export.mounts.mount(index).ok());
        if by_name.is_some_and(|mount| !mount.handles)
            && let Some(node) = self.node_of_stat(&stat)
        {
            self.freed(self.table.re_anchor(node, Anchor::Name(Box::new((parent, name.to_owned())))));
        }
    }
}

fn rename_flags(flags: RenameFlags) -> Result<SysRenameFlags> {
    // The kernel would refuse this combination too, after looking the names up.
    if flags.contains(RenameFlags::EXCHANGE | RenameFlags::NO_REPLACE) {
        return Err(Error::InvalidArgument);
    }
    let mut wanted = SysRenameFlags::empty();
    wanted.set(SysRenameFlags::NOREPLACE, flags.contains(RenameFlags::NO_REPLACE));
    wanted.set(SysRenameFlags::EXCHANGE, flags.contains(RenameFlags::EXCHANGE));
    wanted.set(SysRenameFlags::WHITEOUT, flags.contains(RenameFlags::WHITEOUT));
    Ok(wanted)
}
