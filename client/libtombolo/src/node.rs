//! A file, directory or link that was found, and what can be done with it.

use std::fmt;
use std::sync::Arc;

use tombolo_core::fs::{
    Attr, Create, Device, Entry, FileType, Mode, Name, NewMode, NodeId, OpenFlags, RenameFlags, SetAttr,
};
use tombolo_core::{Answer, Result};

use crate::file::File;
use crate::listing::Listing;
use crate::tree::Tree;

/// A reference to a node of a [`Tree`]. The file system keeps the node for as long as this, or a clone of it,
/// lives.
#[derive(Clone)]
pub struct Node(Arc<Held>);

/// One look-up, given back when dropped.
struct Held {
    tree: Tree,
    id: NodeId,
    attr: Option<Attr>,
}

impl Node {
    /// A reference that an operation answered with; it takes the look-up over.
    pub(crate) fn of(tree: Tree, entry: Entry) -> Self {
        Self(Arc::new(Held { tree, id: entry.node, attr: Some(entry.attr) }))
    }

    /// The root, which was not looked up, and whose attributes are not known.
    pub(crate) fn root(tree: Tree) -> Self {
        Self(Arc::new(Held { tree, id: NodeId::ROOT, attr: None }))
    }

    /// The tree that it is of.
    pub fn tree(&self) -> &Tree {
        &self.0.tree
    }

    /// Its number in the session.
    pub fn id(&self) -> NodeId {
        self.0.id
    }

    /// Its attributes as they were when it was found; asked for now when that was not said.
    pub async fn attr(&self) -> Result<Attr> {
        match self.0.attr {
            Some(attr) => Ok(attr),
            None => self.attr_now().resolve().await,
        }
    }

    /// Its attributes as they were when it was found.
    pub fn attr_found(&self) -> Option<&Attr> {
        self.0.attr.as_ref()
    }

    /// Its attributes now.
    pub fn attr_now(&self) -> Answer<Attr> {
        self.tree().fs().getattr(&self.tree().cx(), self.id(), None)
    }

    /// Changes attributes; answers with the new ones.
    pub fn set_attr(&self, set: &SetAttr) -> Answer<Attr> {
        self.tree().fs().setattr(&self.tree().cx(), self.id(), None, set).map(|(attr, _)| attr)
    }

    /// Finds an entry of this directory.
    pub fn find(&self, name: Name<'_>) -> Answer<Node> {
        let tree = self.tree().clone();
        self.tree().fs().lookup(&self.tree().cx(), self.id(), name).map(|entry| Node::of(tree, entry))
    }

    /// The target of this link.
    pub fn read_link(&self) -> Answer<Vec<u8>> {
        self.tree().fs().readlink(&self.tree().cx(), self.id())
    }

    /// Opens this file.
    pub async fn open(&self, flags: OpenFlags) -> Result<File> {
        let opened = self.tree().fs().open(&self.tree().cx(), self.id(), flags).resolve().await?;
        Ok(File::new(self.clone(), opened.open, opened.attr))
    }

    /// Makes a file in this directory, or opens it, as `how` says. The tree's umask is taken off its mode.
    pub async fn create(&self, name: Name<'_>, how: Create) -> Result<File> {
        let created = self.tree().fs().create(&self.tree().cx(), self.id(), name, &how).resolve().await?;
        let attr = created.entry.attr;
        Ok(File::new(Node::of(self.tree().clone(), created.entry), created.open, Some(attr)))
    }

    /// Makes a directory in this one.
    pub fn make_dir(&self, name: Name<'_>, mode: Mode) -> Answer<Node> {
        let tree = self.tree().clone();
        let made = self.tree().fs().mkdir(&self.tree().cx(), self.id(), name, self.new_mode(mode));
        made.map(|made| Node::of(tree, made.entry))
    }

    /// Makes a symbolic link in this directory.
    pub fn make_link(&self, name: Name<'_>, target: &[u8]) -> Answer<Node> {
        let tree = self.tree().clone();
        let made = self.tree().fs().symlink(&self.tree().cx(), self.id(), name, target);
        made.map(|made| Node::of(tree, made.entry))
    }

    /// Makes a device, a pipe or a socket in this directory.
    pub fn make_special(
        &self,
        name: Name<'_>,
        file_type: FileType,
        mode: Mode,
        device: Device,
    ) -> Answer<Node> {
        let tree = self.tree().clone();
        let mode = self.new_mode(mode);
        let made = self.tree().fs().mknod(&self.tree().cx(), self.id(), name, file_type, mode, device);
        made.map(|made| Node::of(tree, made.entry))
    }

    /// Gives a file of the same session another name, in this directory.
    pub fn add_name(&self, file: NodeId, name: Name<'_>) -> Answer<Node> {
        let tree = self.tree().clone();
        let made = self.tree().fs().link(&self.tree().cx(), file, self.id(), name);
        made.map(|made| Node::of(tree, made.entry))
    }

    /// Removes a name in this directory that is not a directory's.
    pub fn remove(&self, name: Name<'_>) -> Answer<()> {
        self.tree().fs().unlink(&self.tree().cx(), self.id(), name).map(|_| ())
    }

    /// Removes an empty directory in this one.
    pub fn remove_dir(&self, name: Name<'_>) -> Answer<()> {
        self.tree().fs().rmdir(&self.tree().cx(), self.id(), name).map(|_| ())
    }

    /// Moves a name of this directory to another directory of the same session.
    pub fn rename(&self, from: Name<'_>, to_dir: &Node, to: Name<'_>, flags: RenameFlags) -> Answer<()> {
        self.tree().fs().rename(&self.tree().cx(), self.id(), from, to_dir.id(), to, flags).map(|_| ())
    }

    /// Lists this directory, with the nodes and their attributes when `plus` is set.
    pub async fn list(&self, plus: bool) -> Result<Listing> {
        let dir = self.open(OpenFlags::READ | OpenFlags::DIRECTORY).await?;
        Ok(Listing::new(dir, plus))
    }

    fn new_mode(&self, mode: Mode) -> NewMode {
        NewMode { mode, umask: self.tree().umask() }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // The root was not looked up.
        if self.attr.is_some() {
            self.tree.fs().forget(&self.tree.cx(), &[(self.id, 1)]);
        }
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({} of {:?})", self.id().0, self.tree())
    }
}
