//! Detection of directories that contain themselves.

use std::collections::HashSet;

use tombolo_core::fs::NodeId;
use tombolo_core::{Error, Result};

use crate::DEPTH_MAX;
use crate::node::Node;

/// The directories from the top of a walk down to its present position.
///
/// No file system nests a directory in itself, but a faulty server or a damaged disk may report one, and an
/// unchecked walk would never end. File numbers do not identify a directory: the roots of btrfs subvolumes
/// all have 256, and behind an NFS server they also have the same `fsid` (RFC 1813 §2.6). The [`NodeId`] of a
/// node that is still referenced does, because it stands for one file handle assigned by the server.
#[derive(Debug, Default)]
pub struct Above {
    way: Vec<Node>,
    ids: HashSet<NodeId>,
}

impl Above {
    /// Enters a directory at `depth`; directories entered at that depth or deeper are left.
    ///
    /// # Errors
    /// [`Error::Io`]: the directory is one of its own ancestors, or `depth` is [`DEPTH_MAX`] or more.
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
    Error::io(format!("directories are nested more than {DEPTH_MAX} levels deep"))
}
