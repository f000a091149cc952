//! What a session holds as descriptors of this host, so that it can be held elsewhere when the process dies.

use std::os::fd::OwnedFd;

use super::{File, LockOwner, NodeId, OpenFlags, OpenId, PersistentHandle};
use crate::{Ctx, Result};

/// Openings and record locks that outlive the process: another one keeps duplicates of their descriptors, and
/// gives them to a later process with the same tree. As long as one duplicate is open the locks are held
/// (flock(2); fcntl(2), open file description locks), and the data of a file that has no name any more are
/// there. None of the calls waits for anything but the file system.
pub trait Descriptors: Send + Sync {
    /// A duplicate of what a regular file is open by. [`Error::BadOpen`](crate::Error::BadOpen) for an
    /// opening that is none.
    fn of_opening(&self, file: File) -> Result<OwnedFd>;
    /// A duplicate of what holds the record locks that an owner has on a file; `None` if it has not asked for
    /// any since its last flush.
    fn of_records(&self, file: File, owner: LockOwner) -> Result<Option<OwnedFd>>;
    /// Makes an opening of such a descriptor again, on that node and with the flags that it had. Counts a
    /// look-up of the node.
    fn opening(
        &self,
        cx: &Ctx,
        node: &PersistentHandle,
        descriptor: OwnedFd,
        flags: OpenFlags,
    ) -> Result<(NodeId, OpenId)>;
    /// Gives record locks back to an owner, who took them through `file`. Which ranges they have is the
    /// kernel's to know.
    fn records(&self, file: File, owner: LockOwner, descriptor: OwnedFd) -> Result<()>;
}
