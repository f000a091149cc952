//! Record of POSIX locks, so that most files are opened without FLUSH.
//!
//! A FLUSH at every close costs a round trip. It reports errors of delayed writes, of which a read-only
//! opening has none, and releases the POSIX locks of the closing process (POSIX: closing *any* descriptor of
//! a file drops the process's locks on it). A file is therefore opened for reading without FLUSH as long as
//! no process in this session has locked it. A lock taken later through such an opening is released with the
//! opening: see [`PosixLocks::release`].

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use tombolo_core::fs::{File, LockOwner, NodeId};
use tombolo_core::lock;

/// Files that were locked, until the kernel forgets them, and each opening's lock owners.
#[derive(Debug, Default)]
pub(super) struct PosixLocks {
    /// `true` from the first lock request on; until then the table need not be searched.
    any: AtomicBool,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    /// Number of openings with owners, by node.
    nodes: HashMap<NodeId, usize>,
    owners: HashMap<File, Vec<LockOwner>>,
}

impl PosixLocks {
    /// Records a lock request of `owner`.
    pub(super) fn lock(&self, file: File, owner: LockOwner) {
        self.any.store(true, Ordering::Release);
        let Table { nodes, owners } = &mut *lock(&self.table);
        let owners = owners.entry(file).or_default();
        if owners.is_empty() {
            *nodes.entry(file.node).or_default() += 1;
        }
        if !owners.contains(&owner) {
            owners.push(owner);
        }
    }

    /// Returns `true` if the file has not been locked, as far as is recorded.
    pub(super) fn is_free(&self, node: NodeId) -> bool {
        !self.any.load(Ordering::Acquire) || !lock(&self.table).nodes.contains_key(&node)
    }

    /// Removes an opening; returns the owners that took locks through it.
    pub(super) fn release(&self, file: File) -> Vec<LockOwner> {
        if !self.any.load(Ordering::Acquire) {
            return Vec::new();
        }
        let Table { nodes, owners } = &mut *lock(&self.table);
        let Some(owners) = owners.remove(&file) else { return Vec::new() };
        nodes.entry(file.node).and_modify(|openings| *openings -= 1);
        owners
    }

    /// Removes a node of which the kernel forgets look-ups, unless an opening with owners remains: Linux also
    /// forgets a look-up of a node in use, when a cached name turns out to lead to that node.
    pub(super) fn forget(&self, node: NodeId) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        let nodes = &mut lock(&self.table).nodes;
        if nodes.get(&node) == Some(&0) {
            nodes.remove(&node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tombolo_core::fs::OpenId;

    #[test]
    fn locked_file_stays_marked_until_forgotten() {
        let locks = PosixLocks::default();
        assert!(locks.is_free(NodeId(5)));
        let [first, second] = [1, 2].map(|open| File { node: NodeId(5), open: OpenId(open) });
        for (file, owner) in [(first, 7), (first, 7), (first, 8), (second, 7)] {
            locks.lock(file, LockOwner(owner));
        }
        assert!(!locks.is_free(NodeId(5)) && locks.is_free(NodeId(6)));
        assert_eq!(locks.release(first), [LockOwner(7), LockOwner(8)]);
        assert!(locks.release(first).is_empty());
        locks.forget(NodeId(5));
        assert!(!locks.is_free(NodeId(5)), "only one look-up was forgotten");
        assert_eq!(locks.release(second), [LockOwner(7)]);
        assert!(!locks.is_free(NodeId(5)), "the kernel still knows it");
        locks.forget(NodeId(5));
        assert!(locks.is_free(NodeId(5)));
    }
}
