//! Identifiers, each with its own type.

/// A reference to a node, valid in the session that received it until its look-ups are released.
///
/// Each operation that returns an [`Entry`](super::Entry) counts one look-up; `forget` releases them. A back
/// end never reuses a number while a stale reference to the old node could be taken for one to the new node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u64);

impl NodeId {
    /// The root of the export. It is never forgotten.
    pub const ROOT: Self = Self(1);
    /// No node, for operations on a node that no longer exists: they fail with
    /// [`Error::Stale`](crate::Error::Stale). No back end assigns it.
    pub const NONE: Self = Self(0);
}

/// One opening of a file or directory, valid in its session until `release`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpenId(pub u64);

/// An opening together with its node. A back end refuses a mismatched pair with
/// [`Error::BadOpen`](crate::Error::BadOpen), so layers may rely on the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct File {
    /// The node that was opened.
    pub node: NodeId,
    /// The opening, of that node.
    pub open: OpenId,
}

/// A position in a directory. Opaque except for [`Cookie::START`]; stable across restarts of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cookie(pub u64);

impl Cookie {
    /// Position before the first entry.
    pub const START: Self = Self(0);
}

/// The owner of a lock, as the client's kernel names it. Unique within a session only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockOwner(pub u64);
