//! Creation of nodes: their owner, mode and inherited access control lists.

use tombolo_core::fs::{
    Create, Created, Device, Exclusive, FileType, Made, Mode, Name, NewMode, NodeId, OpenFlags,
};
use tombolo_core::{Ctx, Error, Result};

use super::View;
use crate::content::Content;
use crate::directory::Directory;
use crate::directory::Ino;
use crate::node::{Kind, Node};
use crate::tree::NewNode;

/// Maximum length of a symbolic link's target, in bytes (`PATH_MAX` without its terminator).
const TARGET_MAX: usize = 4095;

impl View<'_> {
    pub(super) fn create(
        &mut self,
        cx: &Ctx,
        parent: NodeId,
        name: Name<'_>,
        how: &Create,
    ) -> Result<Created> {
        let dir = self.ino(parent)?;
        if let Some(ino) = self.find(cx, parent, name.as_bytes())? {
            return self.create_existing(cx, dir, ino, how);
        }
        self.check_open_budget()?;
        let before = self.before(cx, dir);
        let made =
            self.make(cx, parent, name, Kind::File(Content::default()), how.mode, Device::default())?;
        if let Exclusive::Verifier(verifier) = how.exclusive {
            self.tree.node_mut(Ino(made.entry.node.0))?.verifier = Some(verifier);
        }
        let open = self.add_opening(Ino(made.entry.node.0), how.flags)?;
        Ok(Created { entry: made.entry, open, dir: self.change(dir, before) })
    }

    /// Opens an existing file. An exclusive create fails, unless it retries the one that made the file.
    fn create_existing(&mut self, cx: &Ctx, dir: Ino, ino: Ino, how: &Create) -> Result<Created> {
        let node = self.tree.node(ino)?;
        match how.exclusive {
            Exclusive::Yes => return Err(Error::Exists),
            Exclusive::Verifier(verifier) if node.verifier != Some(verifier) => return Err(Error::Exists),
            Exclusive::Verifier(_) => {}
            Exclusive::No => self.check_open(cx, node, how.flags)?,
        }
        self.check_open_budget()?;
        let before = self.before(cx, dir);
        let entry = self.look_up(ino)?;
        self.truncate_at_open(cx, ino, how.flags)?;
        let open = self.add_opening(ino, how.flags)?;
        let attr = self.tree.node(ino)?.attr(self.tree.fsid);
        Ok(Created { entry: tombolo_core::fs::Entry { attr, ..entry }, open, dir: self.change(dir, before) })
    }

    pub(super) fn create_unnamed(&mut self, cx: &Ctx, parent: NodeId, how: &Create) -> Result<Created> {
        let dir = self.ino(parent)?;
        self.node(parent)?.directory()?;
        self.check_add(cx, dir)?;
        if !how.flags.contains(OpenFlags::WRITE) {
            return Err(Error::InvalidArgument);
        }
        self.check_node_budget()?;
        self.check_open_budget()?;
        let before = self.before(cx, dir);
        let ino = self.create_node(cx, dir, Kind::File(Content::default()), how.mode, Device::default())?;
        self.tree.node_mut(ino)?.linkable = how.exclusive == Exclusive::No;
        let entry = self.look_up(ino)?;
        let open = self.add_opening(ino, how.flags)?;
        Ok(Created { entry, open, dir: self.change(dir, before) })
    }

    pub(super) fn mkdir(&mut self, cx: &Ctx, parent: NodeId, name: Name<'_>, mode: NewMode) -> Result<Made> {
        let kind = Kind::Directory(Directory::new(self.ino(parent)?));
        // Set-group-id is determined by the parent alone (mkdir(2)).
        let mode = NewMode { mode: Mode::new(mode.mode.bits() & 0o1777), ..mode };
        self.make(cx, parent, name, kind, mode, Device::default())
    }

    pub(super) fn symlink(
        &mut self,
        cx: &Ctx,
        parent: NodeId,
        name: Name<'_>,
        target: &[u8],
    ) -> Result<Made> {
        match target {
            [] => return Err(Error::NotFound),
            _ if target.len() > TARGET_MAX => return Err(Error::NameTooLong),
            _ if target.contains(&0) => return Err(Error::InvalidArgument),
            _ => {}
        }
        let mode = NewMode::settled(Mode::new(0o777));
        self.make(cx, parent, name, Kind::Symlink(target.into()), mode, Device::default())
    }

    pub(super) fn mknod(
        &mut self,
        cx: &Ctx,
        parent: NodeId,
        name: Name<'_>,
        file_type: FileType,
        mode: NewMode,
        rdev: Device,
    ) -> Result<Made> {
        let is_device = matches!(file_type, FileType::BlockDevice | FileType::CharDevice);
        if is_device && self.checks() && !cx.identity.is_root() {
            // Errors for an existing name or a refused addition take precedence.
            self.check_make(cx, parent, name)?;
            return Err(Error::NotPermitted);
        }
        let kind = match file_type {
            FileType::Regular => Kind::File(Content::default()),
            FileType::Directory | FileType::Symlink => return Err(Error::BadType),
            special => Kind::Special(special),
        };
        let rdev = if is_device { rdev } else { Device::default() };
        self.make(cx, parent, name, kind, mode, rdev)
    }

    /// Creates a node under a new name in `parent`.
    fn make(
        &mut self,
        cx: &Ctx,
        parent: NodeId,
        name: Name<'_>,
        kind: Kind,
        mode: NewMode,
        rdev: Device,
    ) -> Result<Made> {
        let dir = self.check_make(cx, parent, name)?;
        self.check_node_budget()?;
        let before = self.before(cx, dir);
        let ino = self.create_node(cx, dir, kind, mode, rdev)?;
        let node = self.tree.node_mut(ino)?;
        let is_directory = node.is_directory();
        node.nlink = if is_directory { 2 } else { 1 };
        self.tree.set_name(dir, name.as_bytes(), ino)?;
        let parent = self.tree.node_mut(dir)?;
        parent.nlink += u32::from(is_directory);
        parent.update_mtime();
        Ok(Made { entry: self.look_up(ino)?, dir: self.change(dir, before) })
    }

    /// Checks that the name does not exist and that the user may create it. Returns the directory's inode
    /// number.
    fn check_make(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Result<Ino> {
        let dir = self.ino(parent)?;
        if self.find(cx, parent, name.as_bytes())?.is_some() {
            return Err(Error::Exists);
        }
        self.check_add(cx, dir)?;
        Ok(dir)
    }

    /// Creates a node without a name, with owner and mode derived from the user and from `dir`.
    pub(super) fn create_node(
        &mut self,
        cx: &Ctx,
        dir: Ino,
        kind: Kind,
        mode: NewMode,
        rdev: Device,
    ) -> Result<Ino> {
        let parent = self.tree.node(dir)?;
        let inherits_group = parent.mode.bits() & Mode::SET_GID != 0;
        let gid = if inherits_group { parent.gid } else { cx.identity.gid };
        let is_directory = matches!(kind, Kind::Directory(_));
        let default_acl = if matches!(kind, Kind::Symlink(_)) { None } else { parent.default_acl.clone() };
        let access_acl = default_acl.as_ref().map(|acl| acl.inherited(mode.mode));
        let settled = access_acl.as_ref().map_or(mode.masked(), |acl| acl.mode(mode.mode));
        let mode = with_parents_group(settled, is_directory, inherits_group, &cx.identity, gid);
        let birth = NewNode { kind, mode, uid: cx.identity.uid, gid, rdev };
        let node: &mut Node = self.tree.add(birth)?;
        node.access_acl = access_acl.filter(|acl| !acl.is_minimal());
        node.default_acl = default_acl.filter(|_| is_directory);
        Ok(node.ino)
    }
}

/// Applies a set-group-id directory's effect on a new node's mode: subdirectories inherit the bit; an
/// executable file keeps a requested one only if its creator is in the group (inode(7)).
fn with_parents_group(
    mode: Mode,
    is_directory: bool,
    inherits_group: bool,
    user: &tombolo_core::Identity,
    gid: u32,
) -> Mode {
    const EXECUTABLE: u32 = Mode::SET_GID | 0o010;
    if !inherits_group {
        return mode;
    }
    if is_directory {
        return Mode::new(mode.bits() | Mode::SET_GID);
    }
    let strip = mode.bits() & EXECUTABLE == EXECUTABLE && user.loses_set_gid(gid);
    if strip { Mode::new(mode.bits() & !Mode::SET_GID) } else { mode }
}
