//! What is kept of an answer.

use tombolo_core::Stability;
use tombolo_core::fs::{Attr, PersistentHandle, Timestamp};

use tombolo_host_runtime::promise::Promise;

use super::failure::Failure;

/// The reply of an operation under way, awaited by its duplicates. Made when the first of them comes.
pub(super) type PendingReply = Promise<Outcome>;

/// How an operation ended, in words that stay good when the session and the server are gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It succeeded, and that says it all.
    Done,
    /// It made this node, or opened it.
    Node(NodeMark),
    /// It wrote.
    Wrote { count: u64, stability: Stability },
    /// It failed.
    Failed(Failure),
}

/// How a node is found again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NodeMark {
    /// By its handle.
    Handle(PersistentHandle),
    /// There are no handles: the name that it was given must still lead to it.
    Inode(Inode),
}

/// What tells a node from any other of its file system, its number's former bearers included.
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
