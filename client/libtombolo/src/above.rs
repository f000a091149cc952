//! Telling when a directory contains itself.

use std::collections::HashSet;

use tombolo_core::fs::NodeId;
use tombolo_core::{Error, Result};

use crate::DEPTH_MAX;
use crate::node::Node;

/// The directories from the top of a walk down to where it is.
///
/// No file system has a directory in itself, but a server can say so, and a damaged disk may: a walk that
/// does not look never ends. Numbers of files do not tell: the subvolumes of btrfs have the same, 256, and
/// behind NFS servers the same file system (RFC 1813 §2.6, `fsid` and `fileid`). A server's file handle does,
/// and while a node is held there is one for each.
#[derive(Debug, Default)]
pub struct Above {
    way: Vec<Node>,
    ids: HashSet<NodeId>,
}

impl Above {
    /// Enters a directory that has so many of the walk above it; those entered at that depth or below it are
    /// left.
    ///
    /// # Errors
    /// [`Error::Io`]: it is one of those above it, or it lies deeper than [`DEPTH_MAX`].
    pub fn enter(&mut self, depth: usize, dir: &Node) -> Result<()> {
        self.way.drain(depth.min(self.way.len())..).for_each(|left| {
            self.ids.remove(&left.id());
        });
        if depth >= DEPTH_MAX as usize {
            return Err(too_deep());
        }
        if !self.ids.insert(dir.id()) {
            return Err(contains_itself());
        }
        self.way.push(dir.clone());
        Ok(())
    }
}

pub(crate) fn contains_itself() -> Error {
    Error::io("the directory contains itself")
}

pub(crate) fn too_deep() -> Error {
    Error::io(format!("directories lie in each other more than {DEPTH_MAX} levels deep"))
}
