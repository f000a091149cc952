//! Seeing without a request whether what was learnt still holds.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::super::{Attr, NodeId};
use crate::{Answer, Ctx};

/// A state of a node: of its attributes, of a file's data, a link's target, a directory's names. Two states
/// may have the same version only if nothing of that differs between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Version {
    /// The life of the place where it is counted.
    pub epoch: u64,
    /// How many changes there were.
    pub count: u64,
    /// Where it is counted; other nodes may be counted there too.
    pub slot: u32,
}

/// Versions of nodes, which are looked at in memory.
///
/// Who remembers what it has learnt of a node together with the node's version from before it asked may
/// believe it for as long as the version [holds](Self::hold): a change by whatever session is seen before it
/// is answered, one by another process of the host once the kernel has told of it.
pub trait Versions: Send + Sync {
    /// The attributes of a node, and its version from before they were looked at; none when it is not to be
    /// had, because something changes at present, or because not all changes are seen.
    fn look(&self, cx: &Ctx, node: NodeId) -> Answer<(Attr, Option<Version>)>;

    /// Whether all of them hold: nothing of their nodes has changed since. No request is sent, and nothing
    /// waits.
    fn hold(&self, versions: &[Version]) -> bool;

    /// Memory in which other processes of the host see the same, if there is any (docs/formats/window.md).
    fn window(&self) -> Option<Arc<OwnedFd>>;
}
