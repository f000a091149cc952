//! Open files.

use std::fmt;

use tombolo_core::fs::{
    Attr, File as Opening, LockOwner, OpenId, ReadDone, SetAttr, SyncScope, Whence, Write, Written,
    read_whole,
};
use tombolo_core::{Answer, Error};
use tombolo_mem::{Sink, Source};

use crate::node::Node;

/// An open file or directory, closed when dropped.
///
/// Errors of closing are reported by [`File::flush`]: a writer calls it before it drops the file. Any number
/// of reads and writes may be in flight at once, from any threads.
pub struct File {
    node: Node,
    open: OpenId,
    attr: Option<Attr>,
}

impl File {
    pub(crate) fn new(node: Node, open: OpenId, attr: Option<Attr>) -> Self {
        Self { node, open, attr }
    }

    /// Returns the node that was opened.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Returns the opening, for the operations of the waist.
    pub fn opening(&self) -> Opening {
        Opening { node: self.node.id(), open: self.open }
    }

    /// Returns the attributes at the time of opening, where the file system reported them, or of the look-up.
    pub fn attr_found(&self) -> Option<&Attr> {
        self.attr.as_ref().or_else(|| self.node.attr_found())
    }

    /// Requests the current attributes.
    pub fn attr_now(&self) -> Answer<Attr> {
        let tree = self.node.tree();
        tree.fs().getattr(&tree.cx(), self.node.id(), Some(self.opening()))
    }

    /// Changes attributes and returns the new ones.
    pub fn set_attr(&self, set: &SetAttr) -> Answer<Attr> {
        let tree = self.node.tree();
        tree.fs().setattr(&tree.cx(), self.node.id(), Some(self.opening()), set).map(|(attr, _)| attr)
    }

    /// Reads from `offset` into `into`. The count is short only at the end of the file.
    pub fn read_at(&self, offset: u64, into: Sink) -> Answer<ReadDone> {
        let tree = self.node.tree();
        read_whole(tree.fs(), &tree.cx(), self.opening(), offset, into)
    }

    /// Writes from `from` and returns how much was written.
    pub fn write_at(&self, how: &Write, from: Source) -> Answer<Written> {
        let tree = self.node.tree();
        tree.fs().write(&tree.cx(), self.opening(), how, from)
    }

    /// Finds data or a hole; [`Error::NotSupported`] where the file system cannot tell.
    pub fn seek(&self, offset: u64, whence: Whence) -> Answer<u64> {
        let tree = self.node.tree();
        match tree.fs().ranges() {
            Some(ranges) => ranges.seek(&tree.cx(), self.opening(), offset, whence),
            None => Answer::err(Error::NotSupported),
        }
    }

    /// Sends pending writes and reports their errors.
    pub fn flush(&self) -> Answer<()> {
        let tree = self.node.tree();
        tree.fs().flush(&tree.cx(), self.opening(), LockOwner(0))
    }

    /// Makes written data stable.
    pub fn sync(&self, what: SyncScope) -> Answer<()> {
        let tree = self.node.tree();
        tree.fs().fsync(&tree.cx(), self.opening(), what)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let tree = self.node.tree();
        tree.fs().release(&tree.cx(), self.opening());
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "File({:?}, {})", self.node, self.open.0)
    }
}
