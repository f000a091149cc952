//! Cache of recently used nodes, by handle and by number ([`Nodes`]).
//!
//! A handle in a call must be resolved to a node: if cached, by a table look-up, otherwise by verifying the
//! handle's MAC and calling the file system. Each cached node holds one look-up; the cache is bounded, evicts
//! by the clock algorithm, and forgets an evicted node once no call uses it.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use hashbrown::HashTable;
use tombolo_core::fs::{FileSystem, NodeId};
use tombolo_core::{Ctx, SessionId, lock};
use tombolo_wire_nfs3::FileHandle;

/// A node with the look-up that keeps it valid and the handle that clients use.
pub(crate) struct Node {
    /// Number of the node in the export's session.
    pub id: NodeId,
    /// Signed handle.
    pub handle: Box<[u8]>,
    guard: NodeGuard,
    /// `true` if used since the hand of the eviction clock passed this node.
    used: AtomicBool,
}

/// A look-up that is forgotten when this guard is dropped.
pub(crate) struct NodeGuard {
    file_system: Arc<dyn FileSystem>,
    session: SessionId,
    id: NodeId,
}

impl NodeGuard {
    /// Takes over one look-up of `id`.
    pub fn new(file_system: &Arc<dyn FileSystem>, session: SessionId, id: NodeId) -> Self {
        Self { file_system: file_system.clone(), session, id }
    }

    /// Returns the node's number.
    pub fn id(&self) -> NodeId {
        self.id
    }
}

impl Drop for NodeGuard {
    fn drop(&mut self) {
        // The root has no look-ups.
        if self.id != NodeId::ROOT {
            self.file_system.forget(&Ctx::root(self.session), &[(self.id, 1)]);
        }
    }
}

impl Node {
    /// Returns the handle for a reply.
    pub fn wire_handle(&self) -> FileHandle<'_> {
        FileHandle::new(&self.handle).unwrap_or(NO_HANDLE)
    }

    /// Creates a node with its signed handle.
    pub fn new(guard: NodeGuard, handle: Box<[u8]>) -> Arc<Self> {
        Arc::new(Self { id: guard.id(), handle, guard, used: AtomicBool::new(false) })
    }
}

/// Hashes a node number. Mixing the bits is enough, because the file system chooses the numbers, not a peer.
fn mixed(id: NodeId) -> u64 {
    let product = id.0.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    product ^ (product >> 32)
}

/// Placeholder for an oversized handle, which is never signed.
const NO_HANDLE: FileHandle<'static> = match FileHandle::new(&[]) {
    Some(handle) => handle,
    None => unreachable!(),
};

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Node({:?})", self.guard.id())
    }
}

/// The node cache. Its single mutex is held for operations on the table only.
pub(crate) struct Nodes {
    table: Mutex<NodeTable>,
    hasher: RandomState,
    limit: usize,
}

#[derive(Default)]
struct NodeTable {
    by_handle: HashTable<Arc<Node>>,
    by_id: HashTable<Arc<Node>>,
    /// Nodes in the order of the eviction clock, whose hand is at the front. References are weak, so that an
    /// evicted or removed node is dropped at once: otherwise a removed file's space would stay allocated.
    ring: VecDeque<Weak<Node>>,
    /// Number of ring entries that are no longer in the tables.
    dead: usize,
}

impl Nodes {
    /// Creates a cache of at most `limit` nodes.
    pub fn new(limit: usize) -> Self {
        Self { table: Mutex::default(), hasher: RandomState::new(), limit: limit.max(1) }
    }

    /// Returns the node of a handle, if cached.
    pub fn by_handle(&self, handle: &[u8]) -> Option<Arc<Node>> {
        let hash = self.hasher.hash_one(handle);
        let table = lock(&self.table);
        let node = table.by_handle.find(hash, |node| *node.handle == *handle)?;
        node.used.store(true, Ordering::Relaxed);
        Some(node.clone())
    }

    /// Returns `true` if a node is cached under any handle.
    pub fn holds(&self, id: NodeId) -> bool {
        self.with_handle(id, |_| true).is_some()
    }

    /// Returns a node if it is cached under a handle that satisfies the predicate: after a change of the
    /// signing key a node may be cached under two handles.
    pub fn with_handle(&self, id: NodeId, is_such: impl Fn(&[u8]) -> bool) -> Option<Arc<Node>> {
        let table = lock(&self.table);
        table.by_id.find(mixed(id), |node| node.id == id && is_such(&node.handle)).cloned()
    }

    /// Inserts a node, or returns the one that is cached under its handle.
    pub fn enter(&self, node: Arc<Node>) -> Arc<Node> {
        let (hash, id_hash) = (self.hasher.hash_one(&*node.handle), mixed(node.id));
        let mut stale = None;
        let mut table = lock(&self.table);
        if let Some(cached) = table.by_handle.find(hash, |cached| cached.handle == node.handle) {
            if cached.id == node.id {
                return cached.clone();
            }
            // The file system has forgotten the old number and assigned another.
            let cached = cached.clone();
            self.unlink(&mut table, &cached);
            stale = Some(cached);
        }
        table.by_handle.insert_unique(hash, node.clone(), |node| self.hasher.hash_one(&*node.handle));
        table.by_id.insert_unique(id_hash, node.clone(), |node| mixed(node.id));
        table.ring.push_back(Arc::downgrade(&node));
        let evicted = self.evict(&mut table);
        drop(table);
        // Nodes are dropped outside of the lock, because forgetting calls the file system.
        drop((stale, evicted));
        node
    }

    /// Removes a node, under all its handles.
    pub fn remove(&self, id: NodeId) {
        let mut table = lock(&self.table);
        let mut out = Vec::new();
        while let Some(node) = table.by_id.find(mixed(id), |node| node.id == id).cloned() {
            self.unlink(&mut table, &node);
            out.push(node);
        }
        // The table is unlocked first, because forgetting calls the file system.
        drop(table);
    }

    /// Evicts nodes not recently used until the limit holds; the caller must drop them outside of the lock.
    fn evict(&self, table: &mut NodeTable) -> Vec<Arc<Node>> {
        let mut out = Vec::new();
        // Removed nodes leave ring entries, which this loop also removes, to keep the ring short.
        while table.by_handle.len() > self.limit || table.dead > self.limit {
            let Some(entry) = table.ring.pop_front() else { break };
            let Some(node) = entry.upgrade() else {
                table.dead = table.dead.saturating_sub(1);
                continue;
            };
            if !Self::has(table, &node) {
                table.dead = table.dead.saturating_sub(1);
            } else if node.used.swap(false, Ordering::Relaxed) {
                table.ring.push_back(entry);
                continue;
            } else {
                self.unlink(table, &node);
                table.dead = table.dead.saturating_sub(1);
            }
            out.push(node);
        }
        out
    }

    fn has(table: &NodeTable, node: &Arc<Node>) -> bool {
        let hash = mixed(node.id);
        table.by_id.find(hash, |cached| Arc::ptr_eq(cached, node)).is_some()
    }

    /// Removes a node from the tables; its ring entry remains.
    fn unlink(&self, table: &mut NodeTable, node: &Arc<Node>) {
        let (hash, id_hash) = (self.hasher.hash_one(&*node.handle), mixed(node.id));
        if let Ok(entry) = table.by_handle.find_entry(hash, |cached| Arc::ptr_eq(cached, node)) {
            entry.remove();
        }
        if let Ok(entry) = table.by_id.find_entry(id_hash, |cached| Arc::ptr_eq(cached, node)) {
            entry.remove();
            table.dead += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tombolo_back_memory::Memory;
    use tombolo_core::Error;
    use tombolo_test_support::Session;

    fn attached(limit: usize) -> (Session, Nodes) {
        (Session::attach(&Memory::default()), Nodes::new(limit))
    }

    /// Enters a node with one look-up under this handle.
    fn enter(session: &Session, nodes: &Nodes, node: NodeId, handle: &str) -> Arc<Node> {
        let guard = NodeGuard::new(&session.fs, session.cx.session, node);
        nodes.enter(Node::new(guard, handle.as_bytes().into()))
    }

    /// Makes a directory whose only look-up is that of its cached node.
    fn made(session: &Session, nodes: &Nodes, name: &str) -> Arc<Node> {
        enter(session, nodes, session.dir(name), name)
    }

    fn is_known(session: &Session, node: NodeId) -> bool {
        !matches!(session.lookup(node), Err(Error::Stale))
    }

    #[test]
    fn least_recently_used_nodes_are_evicted_and_forgotten() {
        let (session, nodes) = attached(2);
        let (first, second) = (made(&session, &nodes, "a").id, made(&session, &nodes, "b").id);
        assert!(nodes.by_handle(b"a").is_some(), "used: it stays");
        made(&session, &nodes, "c");
        assert!(nodes.by_handle(b"b").is_none() && !nodes.holds(second));
        assert!(!is_known(&session, second), "the look-up was given back");
        assert!(nodes.by_handle(b"a").is_some() && is_known(&session, first));
        assert_eq!(lock(&nodes.table).by_id.len(), 2);
    }

    #[test]
    fn node_in_use_outlives_eviction() {
        let (session, nodes) = attached(1);
        let first = made(&session, &nodes, "a");
        made(&session, &nodes, "b");
        assert!(nodes.by_handle(b"a").is_none());
        assert!(is_known(&session, first.id));
        let id = first.id;
        drop(first);
        assert!(!is_known(&session, id));
    }

    #[test]
    fn repeated_look_ups_share_one_node() {
        let (session, nodes) = attached(8);
        let first = made(&session, &nodes, "a");
        let again = enter(&session, &nodes, session.node("a").expect("lookup"), "a");
        assert!(Arc::ptr_eq(&first, &again));
        nodes.remove(first.id);
        assert!(lock(&nodes.table).by_handle.is_empty() && lock(&nodes.table).by_id.is_empty());
    }

    #[test]
    fn file_with_two_handles_is_removed_under_both() {
        let (session, nodes) = attached(8);
        let id = made(&session, &nodes, "old").id;
        enter(&session, &nodes, session.node("old").expect("lookup"), "new");
        let found = |handle: &'static [u8]| nodes.with_handle(id, |cached| cached == handle);
        assert!(found(b"old").is_some() && found(b"new").is_some() && found(b"other").is_none());
        nodes.remove(id);
        assert!(nodes.by_handle(b"old").is_none() && nodes.by_handle(b"new").is_none());
        assert!(!is_known(&session, id));
    }

    #[test]
    fn nodes_that_come_and_go_leave_nothing_behind() {
        let (session, nodes) = attached(4);
        for round in 0..100 {
            let node = made(&session, &nodes, &format!("{round}"));
            nodes.remove(node.id);
        }
        assert!(lock(&nodes.table).ring.len() <= 16, "{}", lock(&nodes.table).ring.len());
    }
}
