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

/// A host file that was registered with the kernel, which reads and writes it in place of a file of the
/// session (passthrough).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BackingId(pub i32);

/// The owner of a lock: an opaque number that the kernel assigns to a file table, or for flock(2) and
/// `F_OFD_SETLK` to an opening.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockOwner(pub u64);

/// The identifier of a request, unique while the request is outstanding; repeated in its reply and in an
/// INTERRUPT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Unique(pub u64);
