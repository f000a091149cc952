//! Changes made by an operation, found by comparing nodes before and after it.

use tombolo_core::fs::{Attr, FileType, Name, NameBuf};

use crate::directory::Ino;
use crate::node::Node;

/// A change made by an operation, of which subscribed sessions are notified.
#[derive(Debug)]
pub(crate) enum Changed {
    Attributes(Ino),
    Data(Ino),
    /// A name in this directory.
    Name(Ino, NameBuf),
    /// The node has lost its last name.
    Gone(Ino),
}

impl Changed {
    /// Returns the changed node; for a name, its directory.
    pub(crate) fn ino(&self) -> Ino {
        match self {
            Self::Attributes(ino) | Self::Data(ino) | Self::Name(ino, _) | Self::Gone(ino) => *ino,
        }
    }
}

/// Nodes and names that an operation may change. Recorded only while a session is subscribed.
#[derive(Debug, Default)]
pub(crate) struct ChangeLog {
    is_enabled: bool,
    nodes: Vec<(Ino, Attr)>,
    names: Vec<(Ino, NameBuf)>,
}

impl ChangeLog {
    /// Enables or disables recording for the operation that begins.
    pub(crate) fn enable(&mut self, is_enabled: bool) {
        self.is_enabled = is_enabled;
    }

    /// Records the attributes of a node before it may change.
    #[inline]
    pub(crate) fn note(&mut self, node: &Node) {
        if self.is_enabled && !self.nodes.iter().any(|(ino, _)| *ino == node.ino) {
            self.nodes.push((node.ino, node.attr(0)));
        }
    }

    pub(crate) fn note_name(&mut self, dir: Ino, name: &[u8]) {
        if self.is_enabled
            && let Ok(name) = Name::new(name)
        {
            self.names.push((dir, name.to_owned()));
        }
    }

    /// Removes the records, and returns the changes that they show, at the end of the operation.
    pub(crate) fn take<'n>(&mut self, node: impl Fn(Ino) -> Option<&'n Node>) -> Vec<Changed> {
        let names = self.names.drain(..).map(|(dir, name)| Changed::Name(dir, name));
        let nodes = self.nodes.drain(..).filter_map(|(ino, before)| {
            let Some(after) = node(ino).map(|node| node.attr(0)) else { return Some(Changed::Gone(ino)) };
            let is_rewritten = (before.mtime, before.size) != (after.mtime, after.size);
            match () {
                () if before == after => None,
                () if before.nlink > 0 && after.nlink == 0 => Some(Changed::Gone(ino)),
                () if is_rewritten && after.file_type == FileType::Regular => Some(Changed::Data(ino)),
                () => Some(Changed::Attributes(ino)),
            }
        });
        names.chain(nodes).collect()
    }
}
