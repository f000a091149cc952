//! File descriptors of a session, to be preserved by another process when this one dies.

use std::os::fd::OwnedFd;

use super::{File, LockOwner, NodeId, OpenFlags, OpenId, PersistentHandle};
use crate::{Ctx, Result};

/// Openings and record locks that outlive the process: another process keeps duplicates of their descriptors
/// and passes them to a later process that serves the same tree. As long as one duplicate is open the locks
/// persist (flock(2); fcntl(2), open file description locks), and so do the data of an unlinked file. No call
/// blocks on anything but the file system.
pub trait Descriptors: Send + Sync {
    /// Returns a duplicate of the descriptor of an open regular file. Fails with
    /// [`Error::BadOpen`](crate::Error::BadOpen) for an unknown opening.
    fn of_opening(&self, file: File) -> Result<OwnedFd>;
    /// Returns a duplicate of the descriptor that carries an owner's record locks on a file; `None` if the
    /// owner has requested none since its last flush.
    fn of_records(&self, file: File, owner: LockOwner) -> Result<Option<OwnedFd>>;
    /// Recreates an opening from a preserved descriptor, on the given node and with its former flags. Counts
    /// a look-up of the node.
    fn opening(
        &self,
        cx: &Ctx,
        node: &PersistentHandle,
        descriptor: OwnedFd,
        flags: OpenFlags,
    ) -> Result<(NodeId, OpenId)>;
    /// Restores the record locks that an owner took through `file`. The kernel knows their ranges.
    fn records(&self, file: File, owner: LockOwner, descriptor: OwnedFd) -> Result<()>;
}
