//! Creation of nodes and names.

use tombolo_core::fs::{
    Attr, Change, Create, Created, Device, Entry, Exclusive, FileType, Made, Mode, NameBuf, NewMode, NodeId,
    OpenFlags,
};
use tombolo_core::{Error, Identity, Result};

use super::View;
use crate::journal::Ticket;
use crate::tree::{LOCAL_NODE_BIT, Node, Set, Target, Tree, is_hidden, now};

/// Maximum length of a symbolic link's target (POSIX `PATH_MAX` without the terminator).
const LINK_BYTES_MAX: usize = 4095;

/// A node to create.
#[derive(Clone, Debug)]
pub(super) struct New {
    pub file_type: FileType,
    pub mode: NewMode,
    pub rdev: Device,
    pub link: Option<Vec<u8>>,
    pub verifier: Option<[u8; 8]>,
}

impl New {
    pub(super) fn of(file_type: FileType, mode: NewMode) -> Self {
        Self { file_type, mode, rdev: Device::default(), link: None, verifier: None }
    }

    fn is_device(&self) -> bool {
        matches!(self.file_type, FileType::BlockDevice | FileType::CharDevice)
    }

    /// Creates the node, as a child of a directory with these attributes.
    fn node(self, id: NodeId, dir: (NodeId, &Attr), user: &Identity) -> Node {
        let (parent, dir) = dir;
        let inherits = dir.mode.bits() & Mode::SET_GID != 0;
        let gid = if inherits { dir.gid } else { user.gid };
        let is_directory = self.file_type == FileType::Directory;
        let mut mode = self.mode.masked();
        if is_directory {
            // Other bits of the mode do not apply to new directories (mkdir(2)).
            let inherited = if inherits { Mode::SET_GID } else { 0 };
            mode = Mode::new(mode.bits() & 0o1777 | inherited);
        } else if inherits && mode.bits() & 0o2010 == 0o2010 && user.loses_set_gid(gid) {
            mode = Mode::new(mode.bits() & !Mode::SET_GID);
        }
        if self.file_type == FileType::Symlink {
            mode = Mode::new(0o777);
        }
        let time = now();
        let attr = Attr {
            file_type: self.file_type,
            mode,
            nlink: if is_directory { 2 } else { 1 },
            uid: user.uid,
            gid,
            size: self.link.as_ref().map_or(0, |link| link.len() as u64),
            blocks: 0,
            block_size: dir.block_size,
            rdev: if self.is_device() { self.rdev } else { Device::default() },
            fsid: dir.fsid,
            fileid: id.0,
            generation: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: Some(time),
            volatile: false,
        };
        let parent = is_directory.then_some(parent);
        let set = Set::MODE | Set::OWNER | Set::ATIME | Set::MTIME;
        let (link, verifier) = (self.link, self.verifier);
        Node { parent, link, verifier, set, implied: set, ..Node::made(attr, user.clone()) }
    }
}

/// Updates a directory that has gained or lost a name, and whose number of subdirectories has changed by
/// `more`. Returns its attributes before and after.
pub(super) fn touch_dir(
    tree: &mut Tree,
    dir: NodeId,
    attr: &Attr,
    more: i32,
    user: &Identity,
) -> (Attr, Attr) {
    let node = tree.touch(dir, attr);
    let before = node.attr;
    node.attr.nlink = node.attr.nlink.saturating_add_signed(more);
    node.touch_mtime(user);
    (before, node.attr)
}

impl View {
    /// Creates a node under a free name; fails with `Exists` if the name is not free.
    async fn make(&self, parent: NodeId, name: &NameBuf, new: New) -> Result<(Attr, Change, Ticket)> {
        if is_hidden(name) {
            return Err(Error::AccessDenied);
        }
        let is_directory = new.file_type == FileType::Directory;
        let user = &self.cx.identity;
        loop {
            let dir = self.directory(parent).await?;
            let seen = self.find(parent, name).await?;
            if seen.found.is_some() {
                return Err(Error::Exists);
            }
            if dir.nlink == 0 {
                return Err(Error::NotFound);
            }
            self.check_add(parent).await?;
            if new.is_device() && !user.is_root() {
                return Err(Error::NotPermitted);
            }
            let new = new.clone();
            let (made, ticket) = self.shared().change(|tree| {
                if !seen.holds(tree) {
                    return Ok(None);
                }
                let id = NodeId(LOCAL_NODE_BIT | tree.ids.next().ok_or(Error::NoSpace)?);
                let (before, after) = touch_dir(tree, parent, &dir, is_directory.into(), user);
                let node = new.node(id, (parent, &after), user);
                let attr = node.attr;
                tree.add(id, node);
                let target = Target { node: id, file_type: attr.file_type };
                tree.set_name(parent, name, None, Some(target), user);
                Ok(Some((attr, before, after)))
            })?;
            if let Some((attr, before, after)) = made {
                return Ok((attr, self.told(&before, after), ticket));
            }
        }
    }

    pub(super) async fn mknod(self, parent: NodeId, name: NameBuf, new: New) -> Result<Made> {
        match new.link.as_ref().map(Vec::len) {
            Some(0) => return Err(Error::NotFound),
            Some(len) if len > LINK_BYTES_MAX => return Err(Error::NameTooLong),
            _ => {}
        }
        let (attr, dir, ticket) = self.make(parent, &name, new).await?;
        let made = Made { entry: Entry { node: NodeId(attr.fileid), attr }, dir };
        self.stable_if_keyed((made, ticket)).await
    }

    pub(super) async fn create(self, parent: NodeId, name: NameBuf, how: Create) -> Result<Created> {
        let permit = self.session.permit()?;
        let dir_before = self.directory(parent).await?;
        let verifier = match how.exclusive {
            Exclusive::Verifier(verifier) => Some(verifier),
            _ => None,
        };
        let new = New { verifier, ..New::of(FileType::Regular, how.mode) };
        let (attr, dir, ticket) = loop {
            match self.make(parent, &name, new.clone()).await {
                Err(Error::Exists) if how.exclusive != Exclusive::Yes => {}
                made => break made?,
            }
            let Some((target, attr)) = self.find(parent, &name).await?.found else { continue };
            if target.file_type == FileType::Directory {
                return Err(Error::IsDirectory);
            }
            let is_again = verifier.is_some_and(|verifier| {
                let tree = self.shared().tree();
                tree.nodes.get(&target.node).is_some_and(|node| node.verifier == Some(verifier))
            });
            if verifier.is_some() && !is_again {
                return Err(Error::Exists);
            }
            if !is_again {
                self.check_open(target.node, how.flags).await?;
            }
            if how.flags.contains(OpenFlags::TRUNCATE) {
                self.truncate(target.node, how.flags).await?;
            }
            let attr = if is_again { attr } else { self.attr(target.node).await? };
            let open = self.session.open(permit, target.node, how.flags, &self.cx.identity);
            let dir = self.told(&dir_before, dir_before);
            return Ok(Created { entry: Entry { node: target.node, attr }, open, dir });
        };
        let node = NodeId(attr.fileid);
        let open = self.session.open(permit, node, how.flags, &self.cx.identity);
        self.stable_if_keyed((Created { entry: Entry { node, attr }, open, dir }, ticket)).await
    }

    pub(super) async fn create_unnamed(self, parent: NodeId, how: Create) -> Result<Created> {
        let permit = self.session.permit()?;
        let dir = self.directory(parent).await?;
        self.check_add(parent).await?;
        if !how.flags.contains(OpenFlags::WRITE) {
            return Err(Error::InvalidArgument);
        }
        let new = New::of(FileType::Regular, how.mode);
        let ((node, attr), _) = self.shared().change(|tree| {
            let id = NodeId(LOCAL_NODE_BIT | tree.ids.next().ok_or(Error::NoSpace)?);
            let mut node = new.node(id, (parent, &dir), &self.cx.identity);
            node.attr.nlink = 0;
            node.is_linkable = how.exclusive == Exclusive::No;
            let attr = node.attr;
            tree.add(id, node);
            // The opening is counted before any other operation can consider the node unused.
            tree.open.insert(id, 1);
            Ok((id, attr))
        })?;
        let open = self.session.open(permit, node, how.flags, &self.cx.identity);
        if let Some(count) = self.shared().tree().open.get_mut(&node) {
            *count -= 1;
        }
        Ok(Created { entry: Entry { node, attr }, open, dir: Change::default() })
    }

    pub(super) async fn link(self, node: NodeId, parent: NodeId, name: NameBuf) -> Result<Made> {
        if is_hidden(&name) {
            return Err(Error::AccessDenied);
        }
        let user = &self.cx.identity;
        loop {
            let (attr, dir) = (self.attr(node).await?, self.directory(parent).await?);
            let seen = self.find(parent, &name).await?;
            if seen.found.is_some() {
                return Err(Error::Exists);
            }
            self.check_add(parent).await?;
            if attr.file_type == FileType::Directory {
                return Err(Error::NotPermitted);
            }
            let (made, ticket) = self.shared().change(|tree| {
                if !seen.holds(tree) {
                    return Ok(None);
                }
                let linked = tree.touch(node, &attr);
                if linked.attr.nlink == 0 && !linked.is_linkable {
                    return Err(Error::NotFound);
                }
                linked.is_linkable = false;
                linked.touch_names(1);
                let linked = linked.attr;
                let target = Target { node, file_type: linked.file_type };
                tree.set_name(parent, &name, None, Some(target), user);
                Ok(Some((linked, touch_dir(tree, parent, &dir, 0, user))))
            })?;
            if let Some((attr, (before, after))) = made {
                let made = Made { entry: Entry { node, attr }, dir: self.told(&before, after) };
                return self.stable_if_keyed((made, ticket)).await;
            }
        }
    }
}
