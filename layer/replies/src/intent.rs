//! Intents: the change that an operation is about to make, and the state before it.

use std::sync::Arc;

use tombolo_core::fs::{FileType, NameBuf, NodeId, PersistentHandle, SetAttr, Timestamp, XattrNameBuf};

use super::append_locks::AppendLocks;
use super::outcome::Inode;

/// Effects of an operation by which its execution can be detected.
#[derive(Clone, Debug)]
pub(super) enum ExpectedEffect {
    /// Creates a node of this type, with this name.
    Makes { parent: NodeId, name: NameBuf, file_type: FileType },
    /// Gives a node this name.
    Links { node: NodeId, parent: NodeId, name: NameBuf },
    /// Removes this name.
    Removes { parent: NodeId, name: NameBuf },
    /// Moves a name.
    Renames { from_parent: NodeId, from: NameBuf, to_parent: NodeId, to: NameBuf },
    /// Changes attributes.
    Changes { node: NodeId, set: SetAttr },
    /// Creates, replaces or removes an extended attribute, conditional on its existence.
    Xattr { node: NodeId, name: XattrNameBuf, change: XattrChange },
    /// Appends bytes to a file. Appends are serialized by append locks, so that it is certain which request
    /// wrote the bytes.
    Appends { node: NodeId, len: u64, append_locks: Arc<AppendLocks> },
}

/// Effect of an operation about to run and the state before it, in terms that outlive the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RecordedEffect {
    /// Creates a node of this type.
    Make { at: NamedEntry, file_type: FileType },
    /// Gives this node a name.
    Link { at: NamedEntry, node: Inode },
    /// Removes a name.
    Remove { at: NamedEntry },
    /// Moves a name.
    Rename { from: NamedEntry, to: NamedEntry },
    /// Changes attributes of a node that had this ctime and size.
    Change { node: PersistentHandle, set: SetAttr, ctime_before: Timestamp, size_before: u64 },
    /// Changes an extended attribute that had this value, if it existed.
    Xattr { node: PersistentHandle, name: XattrNameBuf, before: Option<ValueMark>, change: XattrChange },
    /// Appends bytes to a file that had this size.
    Append { node: PersistentHandle, size_before: u64, len: u64 },
}

/// Change of an extended attribute, whose success depends on the attribute's existence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum XattrChange {
    /// Creates the attribute; fails if it exists.
    Make(ValueMark),
    /// Replaces the attribute's value; fails if the attribute does not exist.
    Replace(ValueMark),
    /// Removes the attribute.
    Remove,
}

/// Identification of an extended attribute's value by length and CRC-32C, compared after a crash. A client
/// that may set the attribute can forge another value with an equal mark: a request in progress at the crash
/// may then be executed twice or not at all. By setting the attribute the client could undo that request as
/// well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ValueMark(pub u64);

impl ValueMark {
    pub fn of(value: &[u8]) -> Self {
        Self((value.len() as u64) << 32 | u64::from(crc32c::crc32c(value)))
    }
}

/// A name, and the node that it led to before the operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NamedEntry {
    pub parent: PersistentHandle,
    pub name: NameBuf,
    /// `None` if there was no node.
    pub found: Option<Inode>,
}

/// The exclusive effect of an operation. After a crash the tree may show an effect that two pending requests
/// intended. If two operations have the same claim, and neither began after the other's end, at most one can
/// have had the effect: `Reconciler` attributes it to the one with a recorded outcome, or else to the earlier
/// one, and takes the other as not executed. Clients choose names and can forge an equal CRC-32C: at worst a
/// request in progress at the crash, although executed, is executed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    /// No exclusive effect: other operations could have the same effect.
    Nothing,
    /// Digest of a name and its node, or of an extended attribute and its value.
    Complete(u64),
    /// Digest of a name that is created or removed: no node is known (yet), so it is compared with no other.
    Partial(u32),
}

impl RecordedEffect {
    /// Returns the name concerned, for the log; empty for changes of attributes and for appends.
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

    /// Returns the claim as far as it is known before the operation ([`Claim::with`] completes it). A
    /// creation under an existing name claims nothing: it fails, or opens the existing file as others may do
    /// too. A rename claims the removal of the old name only: that is exclusive, whatever the new name led
    /// to.
    pub fn claim(&self) -> Claim {
        match self {
            Self::Make { at, .. } if at.found.is_none() => Claim::Partial(digest_of(at, 1)),
            Self::Link { at, node } if at.found.is_none() => {
                Claim::Partial(digest_of(at, 1)).with(Some(*node))
            }
            Self::Remove { at } | Self::Rename { from: at, .. } => {
                Claim::Partial(digest_of(at, 0)).with(at.found)
            }
            Self::Xattr { node, name, before: None, change: XattrChange::Make(value) } => {
                xattr_claim(digest(node, name.as_name().as_bytes(), 1), *value)
            }
            Self::Xattr { node, name, before: Some(value), change: XattrChange::Remove } => {
                xattr_claim(digest(node, name.as_name().as_bytes(), 0), *value)
            }
            _ => Claim::Nothing,
        }
    }
}

/// Returns the claim on an extended attribute, from the digest of its name, with this value.
fn xattr_claim(name: u32, value: ValueMark) -> Claim {
    Claim::Complete(u64::from(name) << 32 | u64::from(crc32c::crc32c(&value.0.to_le_bytes())))
}

impl Claim {
    /// Completes [`Claim::Partial`] with the node, if there is one; returns any other claim unchanged.
    pub fn with(self, node: Option<Inode>) -> Self {
        let (Self::Partial(name), Some(node)) = (self, node) else { return self };
        let inode = crc32c::crc32c(&node.fileid.to_le_bytes());
        let inode = crc32c::crc32c_append(inode, &node.generation.to_le_bytes());
        Self::Complete(u64::from(name) << 32 | u64::from(inode))
    }

    /// Returns the digest, 1 instead of 0; 0 for [`Claim::Nothing`] and [`Claim::Partial`].
    pub fn number(self) -> u64 {
        match self {
            Self::Complete(number) => number.max(1),
            Self::Nothing | Self::Partial(_) => 0,
        }
    }
}

/// Returns the digest of a name; `made` is 1 if the operation creates it, 0 if it removes it.
fn digest_of(named_entry: &NamedEntry, made: u8) -> u32 {
    digest(&named_entry.parent, named_entry.name.as_name().as_bytes(), made)
}

/// Returns the digest of a name in a directory, or of an extended attribute's name and its node.
fn digest(node: &PersistentHandle, name: &[u8], made: u8) -> u32 {
    let digest = crc32c::crc32c(&[made]);
    let digest = crc32c::crc32c_append(digest, &node.kind.to_le_bytes());
    let digest = crc32c::crc32c_append(digest, &node.bytes);
    crc32c::crc32c_append(digest, name)
}
