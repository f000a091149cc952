//! Files, directories and links, and their operations.

use std::fmt;
use std::sync::Arc;

use tombolo_core::fs::{
    Attr, Create, Device, Entry, FileType, Made, Mode, Name, NewMode, NodeId, OpenFlags, RenameFlags, SetAttr,
};
use tombolo_core::{Answer, Result};

use crate::file::File;
use crate::listing::Listing;
use crate::tree::Tree;

/// A reference to a node of a [`Tree`]. The file system keeps the node until this reference and all its
/// clones are dropped.
#[derive(Clone)]
pub struct Node(Arc<LookUp>);

/// One look-up, released when dropped.
struct LookUp {
    tree: Tree,
    id: NodeId,
    attr: Option<Attr>,
}

impl Node {
    /// Creates a reference from an operation's answer. Dropping the reference releases the answer's look-up.
    pub(crate) fn of(tree: Tree, entry: Entry) -> Self {
        Self(Arc::new(LookUp { tree, id: entry.node, attr: Some(entry.attr) }))
    }

    /// Creates a reference to the root, which was not looked up and has no known attributes.
    pub(crate) fn root(tree: Tree) -> Self {
        Self(Arc::new(LookUp { tree, id: NodeId::ROOT, attr: None }))
    }

    /// Returns the node's tree.
    pub fn tree(&self) -> &Tree {
        &self.0.tree
    }

    /// Returns the node's number in the session.
    pub fn id(&self) -> NodeId {
        self.0.id
    }

    /// Returns the node's attributes at the time of its look-up; requests those of the root, which was not
    /// looked up.
    pub async fn attr(&self) -> Result<Attr> {
        match self.0.attr {
            Some(attr) => Ok(attr),
            None => self.attr_now().resolve().await,
        }
    }

    /// Returns the node's attributes at the time of its look-up; `None` for the root.
    pub fn attr_found(&self) -> Option<&Attr> {
        self.0.attr.as_ref()
    }

    /// Requests the node's current attributes.
    pub fn attr_now(&self) -> Answer<Attr> {
        self.tree().fs().getattr(&self.tree().cx(), self.id(), None)
    }

    /// Changes attributes and returns the new ones.
    pub fn set_attr(&self, set: &SetAttr) -> Answer<Attr> {
        self.tree().fs().setattr(&self.tree().cx(), self.id(), None, set).map(|(attr, _)| attr)
    }

    /// Finds an entry of this directory.
    pub fn find(&self, name: Name<'_>) -> Answer<Node> {
        let tree = self.tree().clone();
        self.tree().fs().lookup(&self.tree().cx(), self.id(), name).map(|entry| Node::of(tree, entry))
    }

    /// Reads the target of this link.
    pub fn read_link(&self) -> Answer<Vec<u8>> {
        self.tree().fs().readlink(&self.tree().cx(), self.id())
    }

    /// Opens this file or directory.
    pub async fn open(&self, flags: OpenFlags) -> Result<File> {
        let opened = self.tree().fs().open(&self.tree().cx(), self.id(), flags).resolve().await?;
        Ok(File::new(self.clone(), opened.open, opened.attr))
    }

    /// Creates a file in this directory, or opens it, according to `how`, which also has the umask.
    pub async fn create(&self, name: Name<'_>, how: Create) -> Result<File> {
        let created = self.tree().fs().create(&self.tree().cx(), self.id(), name, &how).resolve().await?;
        let attr = created.entry.attr;
        Ok(File::new(Node::of(self.tree().clone(), created.entry), created.open, Some(attr)))
    }

    /// Makes a directory in this one. The tree's umask is applied to `mode`.
    pub fn make_dir(&self, name: Name<'_>, mode: Mode) -> Answer<Node> {
        self.made(self.tree().fs().mkdir(&self.tree().cx(), self.id(), name, self.new_mode(mode)))
    }

    /// Makes a symbolic link in this directory.
    pub fn make_link(&self, name: Name<'_>, target: &[u8]) -> Answer<Node> {
        self.made(self.tree().fs().symlink(&self.tree().cx(), self.id(), name, target))
    }

    /// Makes a device, a pipe or a socket in this directory. The tree's umask is applied to `mode`.
    pub fn make_special(
        &self,
        name: Name<'_>,
        file_type: FileType,
        mode: Mode,
        device: Device,
    ) -> Answer<Node> {
        let mode = self.new_mode(mode);
        self.made(self.tree().fs().mknod(&self.tree().cx(), self.id(), name, file_type, mode, device))
    }

    /// Links a file of the same session under another name in this directory.
    pub fn add_name(&self, file: NodeId, name: Name<'_>) -> Answer<Node> {
        self.made(self.tree().fs().link(&self.tree().cx(), file, self.id(), name))
    }

    fn made(&self, made: Answer<Made>) -> Answer<Node> {
        let tree = self.tree().clone();
        made.map(|made| Node::of(tree, made.entry))
    }

    /// Removes a name of a non-directory from this directory.
    pub fn remove(&self, name: Name<'_>) -> Answer<()> {
        self.tree().fs().unlink(&self.tree().cx(), self.id(), name).map(|_| ())
    }

    /// Removes an empty directory from this one.
    pub fn remove_dir(&self, name: Name<'_>) -> Answer<()> {
        self.tree().fs().rmdir(&self.tree().cx(), self.id(), name).map(|_| ())
    }

    /// Renames an entry of this directory, also into another directory of the same session.
    pub fn rename(&self, from: Name<'_>, to_dir: &Node, to: Name<'_>, flags: RenameFlags) -> Answer<()> {
        self.tree().fs().rename(&self.tree().cx(), self.id(), from, to_dir.id(), to, flags).map(|_| ())
    }

    /// Lists this directory; with `plus`, together with the nodes and their attributes.
    pub async fn list(&self, plus: bool) -> Result<Listing> {
        let dir = self.open(OpenFlags::READ | OpenFlags::DIRECTORY).await?;
        Ok(Listing::new(dir, plus))
    }

    fn new_mode(&self, mode: Mode) -> NewMode {
        NewMode { mode, umask: self.tree().umask() }
    }
}

impl Drop for LookUp {
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
