//! Taking names away and moving them.

use std::os::fd::AsFd;

use tombolo_core::fs::{Change, Name, NodeId, RenameFlags, Renamed};
use tombolo_core::{Ctx, Error, Result};
use tombolo_sys::namespace::{self, RenameFlags as SysRenameFlags};
use tombolo_sys::open::open_place;
use tombolo_sys::stat;

use crate::location::Location;
use crate::session::Session;
use crate::table::Anchor;

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
        let before = (self.before(cx, &from_dir), self.before(cx, &to_dir));
        self.hold_fast(to_parent, &to_dir, to);
        {
            let _acting = self.checked(cx)?;
            let flags = rename_flags(flags)?;
            namespace::rename(from_dir.fd(), from.as_bytes(), to_dir.fd(), to.as_bytes(), flags)?;
        }
        self.moved(to_parent, &to_dir, to);
        if flags.contains(RenameFlags::EXCHANGE) {
            self.moved(from_parent, &from_dir, from);
        }
        Ok(Renamed {
            from_dir: self.change(cx, before.0, &from_dir),
            to_dir: self.change(cx, before.1, &to_dir),
        })
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
        let before = self.before(cx, &dir);
        self.hold_fast(parent, &dir, name);
        {
            let _acting = self.checked(cx)?;
            remove(&dir)?;
        }
        Ok(self.change(cx, before, &dir))
    }

    /// Where nodes are found by name only: gives the node whose name goes away now a descriptor that stays.
    fn hold_fast(&self, parent: NodeId, dir: &Location, name: Name<'_>) {
        if self.export.mounts.all_have_handles() {
            return;
        }
        let Ok(location) = open_place(dir.fd(), name.as_bytes()) else { return };
        let Ok(stat) = stat::stat(location.as_fd()) else { return };
        let Some(node) = self.known(&stat) else { return };
        let by_this_name = self.table.anchored_to(node, parent, name);
        if by_this_name {
            self.hold(node, location);
            self.freed(self.table.re_anchor(node, Anchor::None));
        }
    }

    /// Where nodes are found by name only: the node is found by its new name from now on.
    fn moved(&self, parent: NodeId, dir: &Location, name: Name<'_>) {
        if self.export.mounts.all_have_handles() {
            return;
        }
        let Ok(stat) = stat::stat_entry(dir.fd(), name.as_bytes()) else { return };
        let by_name =
            self.export.mounts.index_of(&stat).and_then(|index| self.export.mounts.mount(index).ok());
        if by_name.is_some_and(|mount| !mount.handles)
            && let Some(node) = self.known(&stat)
        {
            self.freed(self.table.re_anchor(node, Anchor::Name(Box::new((parent, name.to_owned())))));
        }
    }
}

fn rename_flags(flags: RenameFlags) -> Result<SysRenameFlags> {
    // The kernel would refuse it too, after looking at the names.
    if flags.contains(RenameFlags::EXCHANGE | RenameFlags::NO_REPLACE) {
        return Err(Error::InvalidArgument);
    }
    let mut wanted = SysRenameFlags::empty();
    wanted.set(SysRenameFlags::NOREPLACE, flags.contains(RenameFlags::NO_REPLACE));
    wanted.set(SysRenameFlags::EXCHANGE, flags.contains(RenameFlags::EXCHANGE));
    wanted.set(SysRenameFlags::WHITEOUT, flags.contains(RenameFlags::WHITEOUT));
    Ok(wanted)
}
