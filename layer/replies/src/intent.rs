//! What an operation is about to change, and what was there before.

use std::sync::Arc;

use tombolo_core::fs::{FileType, NameBuf, NodeId, PersistentHandle, SetAttr, Timestamp, XattrNameBuf};

use super::append_locks::AppendLocks;
use super::outcome::Inode;
use tombolo_core::fs::Op;

/// Where an operation will leave its trace.
#[derive(Clone, Debug)]
pub(super) enum Trail {
    /// It makes a node of this type, under this name.
    Makes { parent: NodeId, name: NameBuf, file_type: FileType },
    /// It gives a node this name.
    Links { node: NodeId, parent: NodeId, name: NameBuf },
    /// It takes this name away.
    Removes { parent: NodeId, name: NameBuf },
    /// It moves a name.
    Renames { from_parent: NodeId, from: NameBuf, to_parent: NodeId, to: NameBuf },
    /// It changes attributes.
    Changes { node: NodeId, set: SetAttr },
    /// It makes or replaces an extended attribute, or takes it away, as it is there or is not.
    Xattr { node: NodeId, name: XattrNameBuf, change: XattrChange },
    /// It adds so many bytes to a file. One at a time does, of those that hold an append lock, or it could
    /// not be told whose bytes are there.
    Appends { node: NodeId, len: u64, append_locks: Arc<AppendLocks> },
}

/// An operation that is about to run, in words that stay good when the process is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Intent {
    /// Which operation.
    pub op: Op,
    /// What it does.
    pub deed: Deed,
}

/// What an operation is to do, and what was there when it began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Deed {
    /// Make a node of this type.
    Make { at: NamedEntry, file_type: FileType },
    /// Give this node a name.
    Link { at: NamedEntry, node: Inode },
    /// Take a name away.
    Remove { at: NamedEntry },
    /// Move a name.
    Rename { from: NamedEntry, to: NamedEntry },
    /// Change attributes of a node that had this ctime.
    Change { node: PersistentHandle, set: SetAttr, ctime_before: Timestamp, size_before: u64 },
    /// Change an extended attribute that had this value, if it was there.
    Xattr { node: PersistentHandle, name: XattrNameBuf, before: Option<ValueMark>, change: XattrChange },
    /// Add bytes to a file that had this size.
    Append { node: PersistentHandle, size_before: u64, len: u64 },
}

/// What becomes of an extended attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum XattrChange {
    /// It is made, unless it is there.
    Make(ValueMark),
    /// It gets this value, if it is there.
    Replace(ValueMark),
    /// It goes.
    Remove,
}

/// What tells an attribute's value from others: its length and its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ValueMark(pub u64);

impl ValueMark {
    pub fn of(value: &[u8]) -> Self {
        Self((value.len() as u64) << 32 | u64::from(crc32c::crc32c(value)))
    }
}

/// A name, and what it led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NamedEntry {
    pub parent: PersistentHandle,
    pub name: NameBuf,
    /// `None`: nothing.
    pub found: Option<Inode>,
}

/// What a deed makes or takes away: two deeds that did not begin one after the other's end and claim the same
/// cannot both have happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    /// Nothing that another could not claim as well.
    Nothing,
    /// A name and the node that it led to, as a digest.
    Taken(u64),
    /// A name, as a digest; the node is yet to be made.
    Making(u32),
}

impl Deed {
    /// The name that it is about, for the log.
    pub fn name(&self) -> String {
        match self {
            Self::Make { at, .. }
            | Self::Link { at, .. }
            | Self::Remove { at }
            | Self::Rename { from: at, .. } => at.name.as_name().to_string(),
            Self::Xattr { name, .. } => name.as_name().as_bytes().escape_ascii().to_string(),
            Self::Change { .. } | Self::Append { .. } => String::new(),
        }
    }

    /// What it claims before it has happened.
    pub fn claim(&self) -> Claim {
        match self {
            Self::Make { at, .. } if at.found.is_none() => Claim::Making(digest_of(at, 1)),
            Self::Link { at, node } if at.found.is_none() => {
                Claim::Making(digest_of(at, 1)).with(Some(*node))
            }
            Self::Remove { at } | Self::Rename { from: at, .. } => {
                Claim::Making(digest_of(at, 0)).with(at.found)
            }
            Self::Xattr { node, name, before: None, change: XattrChange::Make(value) } => {
                taken(digest(node, name.as_name().as_bytes(), 1), *value)
            }
            Self::Xattr { node, name, before: Some(value), change: XattrChange::Remove } => {
                taken(digest(node, name.as_name().as_bytes(), 0), *value)
            }
            _ => Claim::Nothing,
        }
    }
}

/// Of an attribute, by its value.
fn taken(place: u32, value: ValueMark) -> Claim {
    Claim::Taken(u64::from(place) << 32 | u64::from(crc32c::crc32c(&value.0.to_le_bytes())))
}

impl Claim {
    /// The same, once the node is known.
    pub fn with(self, node: Option<Inode>) -> Self {
        let (Self::Making(place), Some(node)) = (self, node) else { return self };
        let inode = crc32c::crc32c(&node.fileid.to_le_bytes());
        let inode = crc32c::crc32c_append(inode, &node.generation.to_le_bytes());
        Self::Taken(u64::from(place) << 32 | u64::from(inode))
    }

    /// The digest; 0 for none.
    pub fn number(self) -> u64 {
        match self {
            Self::Taken(number) => number.max(1),
            Self::Nothing | Self::Making(_) => 0,
        }
    }
}

fn digest_of(named_entry: &NamedEntry, made: u8) -> u32 {
    digest(&named_entry.parent, named_entry.name.as_name().as_bytes(), made)
}

fn digest(node: &PersistentHandle, name: &[u8], made: u8) -> u32 {
    let digest = crc32c::crc32c(&[made]);
    let digest = crc32c::crc32c_append(digest, &node.kind.to_le_bytes());
    let digest = crc32c::crc32c_append(digest, &node.bytes);
    crc32c::crc32c_append(digest, name)
}
