//! Validation of cached data without a request.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use tombolo_mem::Region;

use super::super::{Attr, NodeId};
use crate::{Answer, Ctx};

/// The version of a node's state: attributes, file data, link target, directory entries. Two states have the
/// same version only if none of those differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Version {
    /// Epoch of the window in which changes are counted.
    pub epoch: u64,
    /// Count of the changes of all nodes that share the slot, as encoded in the window.
    pub count: u64,
    /// Slot in which the node's changes are counted; shared with other nodes.
    pub slot: u32,
}

/// Versions of nodes, readable in memory.
///
/// Data fetched after a version was taken are valid for as long as that version [holds](Self::hold): a change
/// by any session is visible before it is answered, one by another host process once the kernel reports it.
pub trait Versions: Send + Sync {
    /// Returns the attributes of a node, and its version from before they were read; `None` if there is no
    /// valid one, as while a change is in progress, or if not all changes are observed.
    fn look(&self, cx: &Ctx, node: NodeId) -> Answer<(Attr, Option<Version>)>;

    /// Returns `true` if all versions hold: none of their nodes has changed since. No request is sent, and
    /// nothing blocks.
    fn hold(&self, versions: &[Version]) -> bool;

    /// Returns the memory in which other processes of the host read the same counts, if any
    /// (docs/formats/window.md).
    fn window(&self) -> Option<Arc<OwnedFd>>;

    /// Maintains a mirror of the window at `offset` of `memory`, for a reader with another kernel, until the
    /// result is dropped. Returns `None` if there is no window, or the memory is too small for it.
    fn mirror(&self, memory: &Region, offset: usize) -> Option<Box<dyn WindowMirror>>;
}

/// A mirror of a window: changes are counted in it until it is dropped.
pub trait WindowMirror: Send + Sync {
    /// Invalidates all versions in the mirror. Must not be called once its memory may belong to another
    /// server.
    fn invalidate(&self);
}
