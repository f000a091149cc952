//! All nodes of a session, by number, by handle, and by name (`names`).

mod names;
#[cfg(test)]
pub(super) mod tests;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use tombolo_core::fs::{NameBuf, NodeId};
use tombolo_core::{Budget, Error, Permit, Resource, Result, lock};
use tombolo_wire_nfs3::{Fattr3, FileHandleBuf};

use super::evicted::Evicted;
use super::freshness::UnknownRemoval;
use super::node::{Epoch, Node};
use crate::options::AttributeTimes;

#[derive(Debug)]
pub(crate) struct Nodes {
    root: Arc<Node>,
    times: AttributeTimes,
    counts: Arc<Budget>,
    removal: Arc<UnknownRemoval>,
    table: Mutex<Table>,
}

#[derive(Debug)]
struct Table {
    by_id: HashMap<NodeId, Held>,
    by_handle: HashMap<FileHandleBuf, NodeId>,
    /// Last known targets of names.
    by_name: HashMap<(NodeId, NameBuf), Sighting>,
    /// Number of negative entries in `by_name`.
    absent: usize,
    evicted: Evicted,
    /// Number of nodes known from listings alone.
    listed: u64,
    next: u64,
}

/// Last known target of a name.
#[derive(Clone, Copy, Debug)]
struct Sighting {
    /// Target; `None` if the name does not exist.
    node: Option<NodeId>,
    /// Epoch of the directory.
    epoch: Epoch,
}

/// Cached target of a name.
pub(crate) enum CachedName {
    /// The node, whose look-up has been counted.
    Node(Arc<Node>),
    /// No such name.
    Nothing,
}

/// Procedure that found a node.
pub(crate) enum FoundBy {
    /// A look-up, or a procedure that made the node, perhaps with a permit for it.
    LookUp(Option<Permit>),
    /// A listing.
    Listing,
}

/// Maximum number of negative entries; then all of them are discarded.
const ABSENT_MAX: usize = 1 << 16;

/// Divisor of a session's node limit that gives the limit of listed nodes: 131,072 by default.
const LISTED_ONE_IN: u64 = 32;

/// A node in the table.
#[derive(Debug)]
struct Held {
    node: Arc<Node>,
    look_ups: u64,
    /// `true` if the node is known from listings only: no look-up has returned it.
    listed: bool,
    /// Permit; `None` for a node that was forgotten while in use and looked up again at the limit.
    _permit: Option<Permit>,
}

impl Nodes {
    /// Creates a table with the root alone.
    pub(crate) fn new(
        root: FileHandleBuf,
        fattr: &Fattr3,
        asked: Instant,
        times: AttributeTimes,
        counts: Arc<Budget>,
    ) -> Self {
        let removal = Arc::<UnknownRemoval>::default();
        let node = Arc::new(Node::new(NodeId::ROOT, root, fattr, (asked, asked), times, removal.clone()));
        let permit = counts.take(Resource::Nodes, 1);
        let held = Held { node: node.clone(), look_ups: 1, listed: false, _permit: permit };
        let table = Table {
            by_id: HashMap::from([(NodeId::ROOT, held)]),
            by_handle: HashMap::from([(root, NodeId::ROOT)]),
            by_name: HashMap::new(),
            absent: 0,
            evicted: Evicted::default(),
            listed: 0,
            next: NodeId::ROOT.0 + 1,
        };
        Self { root: node, times, counts, removal, table: Mutex::new(table) }
    }

    /// Returns the root, which is never forgotten.
    pub(crate) fn root(&self) -> &Arc<Node> {
        &self.root
    }

    /// Returns a node by its number; [`Error::Stale`] if the session has forgotten it.
    pub(crate) fn node(&self, id: NodeId) -> Result<Arc<Node>> {
        if id == NodeId::ROOT {
            return Ok(self.root.clone());
        }
        lock(&self.table).by_id.get(&id).map(|held| held.node.clone()).ok_or(Error::Stale)
    }

    /// Takes a permit for one more node; [`Error::NoMemory`] at the session's limit.
    pub(crate) fn permit(&self) -> Result<Permit> {
        self.counts.take(Resource::Nodes, 1).ok_or(Error::NoMemory)
    }

    /// Returns `true` if listings may add nodes. A session's client, such as a kernel, forgets listed nodes
    /// only when its memory runs short, so an endless directory would fill this table. Half of the table is
    /// reserved for nodes that were looked up; without further listed nodes, names are looked up on demand.
    pub(crate) fn takes_listed(&self) -> bool {
        let limit = self.counts.limit(Resource::Nodes);
        lock(&self.table).listed < limit / LISTED_ONE_IN && self.counts.used(Resource::Nodes) < limit / 2
    }

    /// Returns the node that a call made at `asked` found, cached or new, and counts a look-up. A handle of
    /// another file than before gets another number. A node evicted since the call may have changed: its
    /// attributes are then expired. A new node takes the permit, or reserves one. A listed one counts as such
    /// until a look-up returns it. Fails as [`permit`](Self::permit) does.
    pub(crate) fn enter(
        &self,
        by: FoundBy,
        handle: FileHandleBuf,
        fattr: &Fattr3,
        asked: Instant,
        now: Instant,
    ) -> Result<Arc<Node>> {
        let (listed, permit) = match by {
            FoundBy::LookUp(permit) => (false, permit),
            FoundBy::Listing => (true, None),
        };
        let mut guard = lock(&self.table);
        let table = &mut *guard;
        if let Some(id) = table.by_handle.get(&handle).copied()
            && let Some(held) = table.by_id.get_mut(&id)
        {
            if held.node.learn(fattr, asked, now) {
                held.look_ups += 1;
                if !listed {
                    held.uncount_listed(&mut table.listed);
                }
                return Ok(held.node.clone());
            }
            table.by_handle.remove(&handle);
        }
        let permit = match permit {
            Some(permit) => permit,
            None => self.permit()?,
        };
        let id = NodeId(table.next);
        table.next += 1;
        let node = Arc::new(Node::new(id, handle, fattr, (asked, now), self.times, self.removal.clone()));
        if !table.evicted.may_tell(&handle, asked) {
            node.expire(now);
        }
        table.listed += u64::from(listed);
        table.by_id.insert(id, Held { node: node.clone(), look_ups: 1, listed, _permit: Some(permit) });
        table.by_handle.insert(handle, id);
        Ok(node)
    }

    pub(crate) fn has(&self, handle: &FileHandleBuf) -> bool {
        lock(&self.table).by_handle.contains_key(handle)
    }

    /// Counts another look-up of a node, which may have been forgotten while in use.
    pub(crate) fn look_up_again(&self, node: &Arc<Node>) {
        let mut table = lock(&self.table);
        let again = || Held { node: node.clone(), look_ups: 0, listed: false, _permit: self.permit().ok() };
        let held = table.by_id.entry(node.id).or_insert_with(again);
        held.look_ups += 1;
    }

    /// Subtracts look-ups. An unreferenced node is dropped without a lock, unless it is open or has retained
    /// writes, which a new look-up must find.
    pub(crate) fn forget(&self, look_ups: &[(NodeId, u64)]) {
        let mut gone = Vec::new();
        let mut table = lock(&self.table);
        for &(id, count) in look_ups {
            let Some(held) = table.by_id.get_mut(&id).filter(|_| id != NodeId::ROOT) else { continue };
            held.look_ups = held.look_ups.saturating_sub(count);
            gone.extend(table.take_unused(id));
        }
        drop(table);
        drop(gone);
    }

    /// Drops a node that was closed or flushed, if unreferenced.
    pub(crate) fn let_go(&self, node: &Node) {
        let gone = lock(&self.table).take_unused(node.id);
        drop(gone);
    }

    /// Replaces the handle of a node, which the server now knows by another one.
    pub(crate) fn rename_handle(&self, node: &Arc<Node>, handle: FileHandleBuf) {
        let mut table = lock(&self.table);
        let before = node.handle();
        if table.by_handle.get(&before) == Some(&node.id) {
            table.by_handle.remove(&before);
        }
        node.set_handle(handle);
        table.by_handle.insert(handle, node.id);
    }

    pub(crate) fn all(&self) -> Vec<Arc<Node>> {
        lock(&self.table).by_id.values().map(|held| held.node.clone()).collect()
    }
}

impl Held {
    /// Removes the node from the count of `listed`, because a look-up returns it or it is dropped.
    fn uncount_listed(&mut self, listed: &mut u64) {
        *listed -= u64::from(std::mem::take(&mut self.listed));
    }
}

impl Table {
    /// Removes a node that is unreferenced and has no pending work.
    fn take_unused(&mut self, id: NodeId) -> Option<Arc<Node>> {
        let held = self.by_id.get(&id).filter(|_| id != NodeId::ROOT)?;
        if held.look_ups > 0 || held.node.is_open() || held.node.data.is_dirty() {
            return None;
        }
        let mut held = self.by_id.remove(&id)?;
        held.uncount_listed(&mut self.listed);
        let node = held.node;
        self.unname(&node);
        let handle = node.handle();
        if self.by_handle.get(&handle) == Some(&id) {
            self.by_handle.remove(&handle);
        }
        if let Some(changed) = node.changed() {
            self.evicted.add(handle, changed);
        }
        Some(node)
    }
}
