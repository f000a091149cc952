//! Identifiers of the protocol, each with its own type.

/// A node of the session: returned by a LOOKUP, released by a FORGET.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u64);

impl NodeId {
    /// `FUSE_ROOT_ID`: valid without a look-up.
    pub const ROOT: NodeId = NodeId(1);
}

/// An open file or directory of the session: returned by an OPEN, released by a RELEASE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileHandle(pub u64);

/// A registered host file that the kernel reads in place of one of the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BackingId(pub i32);

/// The owner of a lock: opaque, assigned by the kernel per file table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockOwner(pub u64);

/// The identifier of a request while it is outstanding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Unique(pub u64);
