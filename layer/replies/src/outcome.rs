//! Outcomes of operations, as kept for their duplicates.

use tombolo_core::Stability;
use tombolo_core::fs::{Attr, PersistentHandle, Timestamp};

use tombolo_host_runtime::promise::Promise;

use super::failure::Failure;

/// The outcome of an operation in progress, awaited by its duplicates. Created for the first duplicate.
pub(super) type PendingReply = Promise<Outcome>;

/// Outcome of an operation, in terms that outlive session and server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Success without a result.
    Done,
    /// Success; created or opened this node.
    Node(NodeMark),
    /// Success of a write of this length, with this stability.
    Wrote { count: u64, stability: Stability },
    /// Failure, which duplicates get again.
    Failed(Failure),
}

/// The means to find a node again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NodeMark {
    /// The node's persistent handle.
    Handle(PersistentHandle),
    /// The node's identity, in a file system without handles: its name must still lead to this inode.
    Inode(Inode),
}

/// Identity of a node in its file system. Generation and birth time, as far as the file system has them,
/// distinguish the node from earlier ones with its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Inode {
    pub fsid: u64,
    pub fileid: u64,
    pub generation: u64,
    pub birth: Option<Timestamp>,
}

impl From<&Attr> for Inode {
    fn from(attr: &Attr) -> Self {
        Self { fsid: attr.fsid, fileid: attr.fileid, generation: attr.generation, birth: attr.btime }
    }
}
