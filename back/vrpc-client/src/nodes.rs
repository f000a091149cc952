//! The nodes of a session, which outlive its links.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tombolo_core::fs::{Granted, GrantedLocks, NodeId, Notice, NoticeQueue, OpenId, PersistentHandle};
use tombolo_core::{Identity, lock};

use crate::released::{Released, ReleasedKind};
use crate::slab::{ServerId, Slab, SlabEntry};

/// The nodes of a session: by the session's own ids, by the current server's ids, and by handle.
#[derive(Debug)]
pub(crate) struct Nodes {
    slab: Slab<Node>,
    index: Mutex<Index>,
    /// Pending notices, with the session's ids.
    pub(crate) notices: Arc<NoticeQueue>,
    /// Number of events so far that may have changed permissions.
    permission_changes: AtomicU64,
    /// Value of `permission_changes` at the last event that may have changed all permissions.
    all_changed_at: AtomicU64,
}

#[derive(Debug, Default)]
struct Node {
    /// Number of look-ups counted by this session's callers.
    look_ups: u64,
    /// Number of look-ups counted by the server of the link on which the node is bound.
    server_look_ups: u64,
    /// Number of openings that keep the node alive.
    openings: u32,
    /// `true` if known from listings only, not looked up.
    listed: bool,
    handle: Option<PersistentHandle>,
    locks: GrantedLocks<Identity>,
    /// The last identity that opened the directory for listing, and the value of `permission_changes` before
    /// its request.
    lister: Option<(Identity, u64)>,
    /// Value of `permission_changes` at a time when the file had no capability.
    no_capability_since: Option<u64>,
    /// Value of `permission_changes` at a time when the node had no access list.
    no_access_list_since: Option<u64>,
}

/// An extended attribute that kernels request by themselves, and most files lack.
#[derive(Clone, Copy, Debug)]
pub(crate) enum KernelXattr {
    /// Requested before a file's first write and at each change of its owner.
    Capability,
    /// Requested at the first check of another user's rights after each change of the attributes, of a
    /// directory's by each change of names in it.
    AccessList,
}

impl Node {
    fn absent_since(&mut self, xattr: KernelXattr) -> &mut Option<u64> {
        match xattr {
            KernelXattr::Capability => &mut self.no_capability_since,
            KernelXattr::AccessList => &mut self.no_access_list_since,
        }
    }
}

/// Maximum number of nodes known from listings only.
const LISTED_MAX: usize = 1 << 17;

#[derive(Debug, Default)]
struct Index {
    /// Number of the newest link.
    link: u32,
    /// Nodes by the ids of that link's server.
    by_server_id: HashMap<u64, NodeId>,
    by_handle: HashMap<PersistentHandle, NodeId>,
    /// Number of nodes known from listings only.
    listed: usize,
    /// Server ids with a notice received before the node was known: the reply that introduces the node may be
    /// older than the notice.
    missed: HashSet<u64>,
}

/// Maximum number of entries in `missed`.
const MISSED_MAX: usize = 1 << 16;

impl Default for Nodes {
    fn default() -> Self {
        let slab = Slab::default();
        let root = slab.insert(Node::default(), 0, 0);
        debug_assert_eq!(NodeId(root), NodeId::ROOT);
        Self {
            slab,
            index: Mutex::default(),
            notices: Arc::default(),
            permission_changes: AtomicU64::new(0),
            all_changed_at: AtomicU64::new(0),
        }
    }
}

impl Nodes {
    /// Starts a new link, whose server knows only the root.
    pub(crate) fn begin(&self, link: u32) {
        let mut index = lock(&self.index);
        index.link = link;
        index.by_server_id.clear();
        index.missed.clear();
        index.by_server_id.insert(NodeId::ROOT.0, NodeId::ROOT);
        self.slab.with(NodeId::ROOT.0, |root| {
            root.bind(link, NodeId::ROOT.0);
        });
    }

    /// Returns `true` if listings may add nodes. A kernel retains all of them until its own memory runs
    /// short, so an endless directory would exhaust this process's memory; above the limit, names are looked
    /// up one by one.
    pub(crate) fn takes_listed(&self) -> bool {
        lock(&self.index).listed < LISTED_MAX
    }

    /// Returns the node's id at the server of that link.
    #[inline]
    pub(crate) fn server_id(&self, node: NodeId, link: u32) -> ServerId {
        self.slab.server_id(node.0, link)
    }

    /// Returns the node with this server id, if it is known.
    pub(crate) fn node_of(&self, link: u32, server_id: NodeId) -> Option<NodeId> {
        lock(&self.index).node_of(link, server_id)
    }

    /// Returns the node with this server id for a notice, and records the id if it is unknown.
    pub(crate) fn node_for_notice(&self, link: u32, server_id: NodeId) -> Option<NodeId> {
        let mut index = lock(&self.index);
        if index.link != link {
            return None;
        }
        let existing = index.by_server_id.get(&server_id.0).copied();
        if existing.is_none() {
            index.missed.insert(server_id.0);
            if index.missed.len() > MISSED_MAX {
                index.missed.clear();
                drop(index);
                self.notice(Notice::Everything);
            }
        }
        existing
    }

    /// Registers a node in a reply of that link's server, and counts a look-up unless it is the root. A new
    /// node from a listing counts as `listed` until it is looked up. Returns the session's id.
    pub(crate) fn adopt(
        &self,
        listed: bool,
        link: u32,
        server_id: NodeId,
        handle: Option<PersistentHandle>,
    ) -> NodeId {
        let node = self.adopt_known_or_new(listed, link, server_id, handle);
        let is_missed = {
            let mut index = lock(&self.index);
            index.link == link && !index.missed.is_empty() && index.missed.remove(&server_id.0)
        };
        if is_missed {
            self.notice(Notice::Data { node, start: 0, last: u64::MAX });
        }
        node
    }

    fn adopt_known_or_new(
        &self,
        listed: bool,
        link: u32,
        server_id: NodeId,
        handle: Option<PersistentHandle>,
    ) -> NodeId {
        if server_id == NodeId::ROOT {
            return NodeId::ROOT;
        }
        let mut guard = lock(&self.index);
        let index = &mut *guard;
        for is_by_handle in [false, true] {
            let known = match &handle {
                Some(handle) if is_by_handle => index.by_handle.get(handle).copied(),
                _ => index.node_of(link, server_id),
            };
            let Some(node) = known else { continue };
            let has_handle = self.slab.with(node.0, |mut item| {
                // A node has one id per server.
                if !granted(&mut item, link, server_id) {
                    return None;
                }
                item.value.look_ups = item.value.look_ups.saturating_add(1);
                if !listed {
                    item.value.uncount_listed(&mut index.listed);
                }
                let has_handle = item.value.handle.is_some();
                if !has_handle {
                    item.value.handle.clone_from(&handle);
                }
                Some(has_handle)
            });
            let Some(has_handle) = has_handle.flatten() else { continue };
            // The node may have been introduced by a reply without handles.
            index.adopted(link, server_id, node, handle.filter(|_| !has_handle));
            return node;
        }
        let node =
            Node { look_ups: 1, server_look_ups: 1, listed, handle: handle.clone(), ..Node::default() };
        index.listed += usize::from(listed);
        let node = NodeId(self.slab.insert(node, link, server_id.0));
        index.adopted(link, server_id, node, handle);
        node
    }

    /// Binds a node found again by its handle. Returns the release of the look-up, if it was superfluous.
    pub(crate) fn rebind(&self, link: u32, node: NodeId, server_id: NodeId) -> Option<(NodeId, u64)> {
        let mut index = lock(&self.index);
        let is_kept = self.slab.with(node.0, |mut item| granted(&mut item, link, server_id));
        if is_kept != Some(true) {
            return Some((server_id, 1));
        }
        if index.link == link {
            index.by_server_id.entry(server_id.0).or_insert(node);
        }
        None
    }

    pub(crate) fn handle(&self, node: NodeId) -> Option<PersistentHandle> {
        self.slab.with(node.0, |item| item.value.handle.clone()).flatten()
    }

    /// Subtracts look-ups. Returns the release to send if nothing refers to the node any more.
    pub(crate) fn forget(&self, node: NodeId, look_ups: u64) -> Option<Released> {
        self.change(node, |node| node.look_ups = node.look_ups.saturating_sub(look_ups))
    }

    /// Counts an opening, which keeps the node alive.
    pub(crate) fn opened(&self, node: NodeId) {
        self.slab.with(node.0, |item| item.value.openings += 1);
    }

    /// Decrements the number of a node's openings, and drops the locks of `open`. Returns the release to
    /// send if nothing refers to the node any more.
    pub(crate) fn released(&self, node: NodeId, open: OpenId) -> Option<Released> {
        self.change(node, |node| {
            node.openings = node.openings.saturating_sub(1);
            node.locks.released(open);
        })
    }

    /// Returns the count to pass to [`Nodes::set_lister`] or [`Nodes::set_absent`]. The caller reads it
    /// before it sends the request.
    pub(crate) fn permission_changes(&self) -> u64 {
        self.permission_changes.load(Ordering::SeqCst)
    }

    /// Records that the server let that identity open the directory for listing, by a request sent after
    /// `permission_changes` was read.
    pub(crate) fn set_lister(&self, node: NodeId, lister: &Identity, permission_changes: u64) {
        self.slab.with(node.0, |item| {
            // A change after this check invalidates the entry.
            if self.permission_changes() == permission_changes {
                item.value.lister = Some((lister.clone(), permission_changes));
            }
        });
    }

    /// Returns `true` if the server would let that identity open the directory for listing, as far as this
    /// client knows.
    pub(crate) fn is_lister(&self, node: NodeId, identity: &Identity) -> bool {
        let look = |item: SlabEntry<'_, Node>| match &item.value.lister {
            Some((lister, since)) => self.is_valid(*since) && lister == identity,
            None => false,
        };
        self.slab.with(node.0, look).unwrap_or(false)
    }

    /// Records that a node lacks an attribute, by the reply to a request sent after `permission_changes` was
    /// read.
    pub(crate) fn set_absent(&self, node: NodeId, xattr: KernelXattr, permission_changes: u64) {
        self.slab.with(node.0, |item| {
            // A change after this check invalidates the entry.
            if self.permission_changes() == permission_changes {
                *item.value.absent_since(xattr) = Some(permission_changes);
            }
        });
    }

    /// Returns `true` if the node lacks the attribute, as far as this client knows.
    pub(crate) fn is_absent(&self, node: NodeId, xattr: KernelXattr) -> bool {
        let look = |item: SlabEntry<'_, Node>| {
            item.value.absent_since(xattr).is_some_and(|since| self.is_valid(since))
        };
        self.slab.with(node.0, look).unwrap_or(false)
    }

    /// Returns `true` unless all permissions may have changed since `permission_changes` had the value
    /// `since`.
    fn is_valid(&self, since: u64) -> bool {
        since >= self.all_changed_at.load(Ordering::SeqCst)
    }

    /// Records that extended attributes of a node may have changed, and thereby its permissions.
    pub(crate) fn xattrs_changed(&self, node: NodeId) {
        // Counted first, so that `set_absent` does not record a reply from before the change.
        self.permissions_changed(node);
        self.slab.with(node.0, |item| item.value.no_capability_since = None);
    }

    pub(crate) fn permissions_changed(&self, node: NodeId) {
        self.permission_changes.fetch_add(1, Ordering::SeqCst);
        self.slab.with(node.0, |item| (item.value.lister, item.value.no_access_list_since) = (None, None));
    }

    fn all_permissions_changed(&self) {
        let now = self.permission_changes.fetch_add(1, Ordering::SeqCst) + 1;
        self.all_changed_at.fetch_max(now, Ordering::SeqCst);
    }

    /// Queues a notice for the session, after recording that the permissions concerned may have changed.
    pub(crate) fn notice(&self, notice: Notice) {
        match &notice {
            Notice::Attributes(node) | Notice::Data { node, .. } | Notice::Gone { node, .. } => {
                self.xattrs_changed(*node);
            }
            Notice::Everything => self.all_permissions_changed(),
            Notice::Name { .. } => {}
        }
        self.notices.push(notice);
    }

    /// Reads or changes the locks on a node.
    pub(crate) fn with_locks<R>(
        &self,
        node: NodeId,
        look: impl FnOnce(&mut GrantedLocks<Identity>) -> R,
    ) -> Option<R> {
        self.slab.with(node.0, |item| look(&mut item.value.locks))
    }

    pub(crate) fn locks_of(&self, node: NodeId, open: OpenId) -> Vec<Granted<Identity>> {
        self.with_locks(node, |locks| locks.of(open)).unwrap_or_default()
    }

    /// Changes the references to a node. If none is left, removes it and returns the release to send.
    fn change(&self, node: NodeId, change: impl FnOnce(&mut Node)) -> Option<Released> {
        let mut index = lock(&self.index);
        let is_kept = self.slab.with(node.0, |item| {
            change(item.value);
            node == NodeId::ROOT || item.value.look_ups > 0 || item.value.openings > 0
        })?;
        if is_kept {
            return None;
        }
        let (mut gone, server_id) = self.slab.remove(node.0)?;
        gone.uncount_listed(&mut index.listed);
        if let Some(handle) = &gone.handle
            && index.by_handle.get(handle) == Some(&node)
        {
            index.by_handle.remove(handle);
        }
        let (link, server_id) = server_id?;
        if index.link == link && index.by_server_id.get(&server_id) == Some(&node) {
            index.by_server_id.remove(&server_id);
        }
        Some(Released { link, kind: ReleasedKind::LookUps(NodeId(server_id), gone.server_look_ups) })
    }
}

impl Index {
    /// Returns the node with this id at the server of that link, if it is known.
    fn node_of(&self, link: u32, server_id: NodeId) -> Option<NodeId> {
        (self.link == link).then(|| self.by_server_id.get(&server_id.0).copied()).flatten()
    }

    /// Adds a node by its id at the server of that link, and by a handle that it did not have before.
    fn adopted(&mut self, link: u32, server_id: NodeId, node: NodeId, handle: Option<PersistentHandle>) {
        if self.link == link {
            self.by_server_id.insert(server_id.0, node);
        }
        if let Some(handle) = handle {
            self.by_handle.entry(handle).or_insert(node);
        }
    }
}

impl Node {
    /// Removes the node from the count of those known from listings only.
    fn uncount_listed(&mut self, listed: &mut usize) {
        *listed -= usize::from(std::mem::take(&mut self.listed));
    }
}

/// Counts a look-up granted by the server of that link, and binds the node there. Returns `false` if it has
/// another id there.
fn granted(item: &mut SlabEntry<'_, Node>, link: u32, server_id: NodeId) -> bool {
    match item.server_id(link) {
        Some(other) if other != server_id.0 => return false,
        Some(_) => item.value.server_look_ups = item.value.server_look_ups.saturating_add(1),
        None if item.bind(link, server_id.0) => item.value.server_look_ups = 1,
        None => {}
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(byte: u8) -> Option<PersistentHandle> {
        Some(PersistentHandle { kind: 1, bytes: [byte; 8].as_slice().into() })
    }

    fn gone(link: u32, server_id: u64, look_ups: u64) -> Option<Released> {
        Some(Released { link, kind: ReleasedKind::LookUps(NodeId(server_id), look_ups) })
    }

    fn on_a_link() -> Nodes {
        let nodes = Nodes::default();
        nodes.begin(1);
        nodes
    }

    #[test]
    fn node_has_one_id_and_is_forgotten_once() {
        let nodes = on_a_link();
        let node = nodes.adopt(false, 1, NodeId(70), handle(1));
        assert_eq!(nodes.adopt(false, 1, NodeId(70), handle(1)), node);
        assert_ne!(nodes.adopt(false, 1, NodeId(71), handle(2)), node);
        assert_eq!(nodes.forget(node, 1), None);
        assert_eq!(nodes.server_id(node, 1), ServerId::Bound(70));
        assert_eq!(nodes.forget(node, 1), gone(1, 70, 2));
        assert_eq!(nodes.server_id(node, 1), ServerId::Gone);
        assert_ne!(nodes.adopt(false, 1, NodeId(70), handle(1)), node);
    }

    #[test]
    fn node_found_over_next_link_is_recognised_by_handle() {
        let nodes = on_a_link();
        let node = nodes.adopt(false, 1, NodeId(70), handle(1));
        nodes.begin(2);
        assert_eq!(nodes.server_id(node, 2), ServerId::Unbound);
        assert_eq!(nodes.server_id(NodeId::ROOT, 2), ServerId::Bound(1));
        assert_eq!(nodes.adopt(false, 2, NodeId(5), handle(1)), node);
        assert_eq!(nodes.server_id(node, 2), ServerId::Bound(5));
        assert_eq!(nodes.forget(node, 2), gone(2, 5, 1), "the new server gave one look-up");
    }

    #[test]
    fn node_seen_again_gets_its_missing_handle() {
        let nodes = on_a_link();
        let node = nodes.adopt(false, 1, NodeId(70), None);
        assert_eq!(nodes.adopt(false, 1, NodeId(70), handle(1)), node);
        assert_eq!(nodes.handle(node), handle(1));
        nodes.begin(2);
        assert_eq!(nodes.adopt(false, 2, NodeId(5), handle(1)), node);
    }

    #[test]
    fn server_id_of_former_link_is_meaningless() {
        let nodes = on_a_link();
        let node = nodes.adopt(false, 1, NodeId(70), handle(1));
        nodes.begin(2);
        assert_ne!(nodes.adopt(false, 2, NodeId(70), handle(2)), node);
        assert_eq!(nodes.rebind(2, node, NodeId(9)), None);
        assert_eq!(nodes.server_id(node, 2), ServerId::Bound(9));
        assert_eq!(nodes.rebind(2, node, NodeId(9)), None, "asked twice");
        assert_eq!(nodes.rebind(2, node, NodeId(10)), Some((NodeId(10), 1)), "another each time");
        assert_eq!(nodes.forget(node, 1), gone(2, 9, 2));
        assert_eq!(nodes.rebind(2, node, NodeId(9)), Some((NodeId(9), 1)), "forgotten meanwhile");
    }

    #[test]
    fn looked_up_nodes_do_not_count_as_listed() {
        let nodes = on_a_link();
        let listed = || lock(&nodes.index).listed;
        let node = nodes.adopt(true, 1, NodeId(70), handle(1));
        let other = nodes.adopt(true, 1, NodeId(71), handle(2));
        nodes.adopt(false, 1, NodeId(72), handle(3));
        nodes.adopt(true, 1, NodeId(72), handle(3));
        assert_eq!(listed(), 2);
        nodes.adopt(false, 1, NodeId(70), handle(1));
        assert_eq!(listed(), 1);
        nodes.forget(other, 1);
        nodes.forget(node, 2);
        assert_eq!(listed(), 0);
        nodes.adopt(true, 1, NodeId(73), handle(4));
        nodes.begin(2);
        nodes.adopt(false, 2, NodeId(5), handle(4));
        assert_eq!(listed(), 0, "looked up behind another link");
    }

    #[test]
    fn an_opening_keeps_its_node() {
        let nodes = on_a_link();
        let node = nodes.adopt(false, 1, NodeId(70), handle(1));
        nodes.opened(node);
        assert_eq!(nodes.forget(node, 1), None);
        assert_eq!(nodes.server_id(node, 1), ServerId::Bound(70));
        assert_eq!(nodes.released(node, OpenId(3)), gone(1, 70, 1));
        assert_eq!(nodes.forget(NodeId::ROOT, 5), None);
        assert_eq!(nodes.server_id(NodeId::ROOT, 1), ServerId::Bound(1));
    }
}
