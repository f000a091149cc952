//! Record of POSIX locks, so that most files are opened without FLUSH.
//!
//! A FLUSH at every close costs a round trip. It reports errors of delayed writes, of which a read-only
//! opening has none, and releases the POSIX locks of the closing process (POSIX: closing *any* descriptor of
//! a file drops the process's locks on it). A file is therefore opened for reading without FLUSH as long as
//! no process in this session has locked it. A lock taken later through such an opening is released with the
//! opening: see [`PosixLocks::release`].

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use tombolo_core::fs::{LockOwner, NodeId, OpenId};
use tombolo_core::lock;

/// Files of a session that were locked since the kernel last forgot them, and each opening's lock owners.
#[derive(Debug, Default)]
pub(super) struct PosixLocks {
    /// `true` from the first lock request on; until then the table need not be searched.
    any: AtomicBool,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    nodes: HashSet<NodeId>,
    owners: HashMap<OpenId, Vec<LockOwner>>,
}

impl PosixLocks {
    /// Records a lock request of `owner`.
    pub(super) fn lock(&self, node: NodeId, open: OpenId, owner: LockOwner) {
        self.any.store(true, Ordering::Release);
        let mut table = lock(&self.table);
        table.nodes.insert(node);
        let owners = table.owners.entry(open).or_default();
        if !owners.contains(&owner) {
            owners.push(owner);
        }
    }

    /// Returns `true` if the file was not locked since the kernel last forgot it.
    pub(super) fn is_free(&self, node: NodeId) -> bool {
        !self.any.load(Ordering::Acquire) || !lock(&self.table).nodes.contains(&node)
    }

    /// Removes an opening; returns the owners that took locks through it.
    pub(super) fn release(&self, open: OpenId) -> Vec<LockOwner> {
        if !self.any.load(Ordering::Acquire) {
            return Vec::new();
        }
        lock(&self.table).owners.remove(&open).unwrap_or_default()
    }

    /// Removes a node that the kernel forgets.
    pub(super) fn forget(&self, node: NodeId) {
        if self.any.load(Ordering::Acquire) {
            lock(&self.table).nodes.remove(&node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locked_file_stays_marked_until_forgotten() {
        let locks = PosixLocks::default();
        assert!(locks.is_free(NodeId(5)));
        locks.lock(NodeId(5), OpenId(1), LockOwner(7));
        locks.lock(NodeId(5), OpenId(1), LockOwner(7));
        assert!(!locks.is_free(NodeId(5)) && locks.is_free(NodeId(6)));
        assert_eq!(locks.release(OpenId(1)), [LockOwner(7)]);
        assert!(locks.release(OpenId(1)).is_empty());
        assert!(!locks.is_free(NodeId(5)), "another opening may still hold one");
        locks.forget(NodeId(5));
        assert!(locks.is_free(NodeId(5)));
    }
}
