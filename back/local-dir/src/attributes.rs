//! Reading and changing attributes.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use tombolo_core::fs::{Attr, Change, File, NodeId, OpenFlags, SetAttr, WeakAttr};
use tombolo_core::{Ctx, Error, Result, Want};
use tombolo_sys::change;
use tombolo_sys::open::OpenFlags as SysFlags;
use tombolo_sys::stat::{self, S_IFDIR, S_IFREG, S_ISUGID};

use crate::acting::dropping_set_id;
use crate::attr::set_time;
use crate::files::OpenFile;
use crate::state::{Location, Session, is_big};
use crate::window::ChangedFile;

/// Number of bytes that a truncation may cut off and still be quick.
const SMALL_TRUNCATION_BYTES: u64 = 4 << 20;

impl Session {
    /// Returns a node's attributes; `None` if that may block, because the node lies on a network
    /// file system or has no open descriptor.
    pub(crate) fn attributes_without_blocking(
        &self,
        node: NodeId,
        file: Option<File>,
    ) -> Result<Option<Attr>> {
        if let Some(open) = self.opening_of(node, file)? {
            let attr = open.medium.local.then(|| Ok(self.attr(node, &stat::stat(open.fd())?)));
            return attr.transpose();
        }
        match self.open_location(node)? {
            Some(location) if self.export.mounts.all_local() || self.is_local(node) => {
                Ok(Some(self.attr(node, &stat::stat(location.fd())?)))
            }
            _ => Ok(None),
        }
    }

    pub(crate) fn attributes(&self, node: NodeId, file: Option<File>) -> Result<Attr> {
        match self.opening_of(node, file)? {
            Some(open) => Ok(self.attr(node, &stat::stat(open.fd())?)),
            None => Ok(self.attr(node, &stat::stat(self.location(node)?.fd())?)),
        }
    }

    /// Returns `true` if the truncation frees so much of the file that it takes long; `false` also for a file
    /// without an open descriptor.
    pub(crate) fn frees_much(&self, node: NodeId, set: &SetAttr) -> bool {
        let Some(size) = set.size else { return false };
        let Ok(Some(location)) = self.open_location(node) else { return false };
        stat::stat(location.fd())
            .is_ok_and(|stat| is_big(&stat) && stat.size_bytes > size.saturating_add(SMALL_TRUNCATION_BYTES))
    }

    pub(crate) fn set_attributes(
        &self,
        cx: &Ctx,
        node: NodeId,
        file: Option<File>,
        set: &SetAttr,
    ) -> Result<(Attr, Change)> {
        self.writable()?;
        let target = match self.opening_of(node, file)? {
            Some(open) => Target::Open(open),
            None => Target::Location(self.location(node)?),
        };
        let wants = cx.want.contains(Want::CHANGE_ATTRS);
        let dir = match &target {
            Target::Location(location) => (location.kind() == S_IFDIR).then_some(location.identity.key),
            Target::Open(open) => open.cursor.as_ref().and_then(|_| self.key_of(open.node)),
        };
        let turn = dir.map(|dir| self.export.turns.begin([dir], wants));
        let mut before = None;
        if wants || set.guard_ctime.is_some() {
            let attr = self.attr(node, &stat::stat(target.fd())?);
            if set.guard_ctime.is_some_and(|guard| guard != attr.ctime) {
                return Err(Error::NotSync);
            }
            before = wants.then(|| WeakAttr::from(&attr));
        }
        {
            let _acting = self.checked(cx)?;
            let _changing = self.changing([ChangedFile::Node(node)]);
            let applied = self.apply(&target, set);
            self.notify(|notifier| match set.size {
                Some(_) => notifier.data(node, 0, u64::MAX),
                None => notifier.attributes(node),
            });
            applied?;
        }
        let attr = self.attr(node, &stat::stat(target.fd())?);
        let before = before.filter(|_| turn.is_none_or(|turn| turn.is_alone()));
        Ok((attr, Change { before, after: wants.then_some(attr) }))
    }

    /// Applies the changes: owner first, because chown clears mode bits; times last, because truncation sets
    /// them.
    fn apply(&self, target: &Target, set: &SetAttr) -> Result<()> {
        if set.uid.is_some() || set.gid.is_some() {
            change::owner(target.fd(), set.uid, set.gid)?;
        }
        if let Some(size) = set.size {
            self.cut(target, size, set.kill_privileges)?;
        } else if set.kill_privileges && set.mode.is_none() {
            drop_set_id(target.fd())?;
        }
        if let Some(mode) = set.mode {
            change::permissions(target.fd(), mode.bits())?;
        }
        if set.atime.is_some() || set.mtime.is_some() {
            change::times(target.fd(), set_time(set.atime), set_time(set.mtime))?;
        }
        Ok(())
    }

    fn cut(&self, target: &Target, size: u64, kills: bool) -> Result<()> {
        let _dropping = dropping_set_id(kills)?;
        if let Target::Open(open) = target
            && open.flags.contains(OpenFlags::WRITE)
        {
            return Ok(change::length(open.fd(), size)?);
        }
        match stat::stat(target.fd())?.kind() {
            S_IFREG => {
                let open = self.export.own.reopen(target.fd(), SysFlags::WRONLY)?;
                Ok(change::length(std::os::fd::AsFd::as_fd(&open), size)?)
            }
            S_IFDIR => Err(Error::IsDirectory),
            _ => Err(Error::InvalidArgument),
        }
    }

    fn opening_of(&self, node: NodeId, file: Option<File>) -> Result<Option<Arc<OpenFile>>> {
        match file {
            Some(file) if file.node != node => Err(Error::BadOpen),
            Some(file) => self.files.find(file).map(Some),
            None => Ok(None),
        }
    }
}

/// The object whose attributes are changed.
enum Target {
    Open(Arc<OpenFile>),
    Location(Location),
}

impl Target {
    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Open(open) => open.fd(),
            Self::Location(location) => location.fd(),
        }
    }
}

/// Clears set-user-id, and set-group-id where it is meaningful, as the kernel does on a change by an
/// unprivileged user.
fn drop_set_id(fd: BorrowedFd<'_>) -> Result<()> {
    const SET_UID: u32 = 0o4000;
    const GROUP_EXECUTE: u32 = 0o010;
    let stat = stat::stat(fd)?;
    if stat.mode & S_ISUGID == 0 || !stat.is_regular() {
        return Ok(());
    }
    let dropped = if stat.mode & GROUP_EXECUTE != 0 { S_ISUGID } else { SET_UID };
    Ok(change::permissions(fd, stat.mode & !dropped)?)
}
