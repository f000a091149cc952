//! The numbers of the protocol that must not be mixed up.

/// A node of the session: what a LOOKUP gave out and a FORGET takes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u64);

impl NodeId {
    /// `FUSE_ROOT_ID`: known without a look-up.
    pub const ROOT: NodeId = NodeId(1);
}

/// An open file or directory of the session: what an OPEN gave out and a RELEASE takes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileHandle(pub u64);

/// A file of the host that the kernel was told to read in place of one of the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BackingId(pub i32);

/// The owner of a lock: opaque, made by the kernel per file table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockOwner(pub u64);

/// Names a request while it is outstanding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Unique(pub u64);
