//! All nodes of a session, by number and by handle.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tombolo_core::fs::{FileType, NameBuf, NodeId};
use tombolo_core::{Budget, Error, Permit, Resource, Result};
use tombolo_wire_nfs3::{Fattr3, FileHandleBuf};

use super::evicted::Evicted;
use super::freshness::UnknownRemoval;
use super::node::{Epoch, Location, Node};
use crate::options::AttributeTimes;

/// The nodes that a session knows.
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
    /// What was last seen under a name.
    by_name: HashMap<(NodeId, NameBuf), Sighting>,
    /// How many of them are of names that there are not.
    absent: usize,
    evicted: Evicted,
    /// How many nodes only listings have brought.
    listed: u64,
    next: u64,
}

/// What was seen under a name, and when.
#[derive(Clone, Copy, Debug)]
struct Sighting {
    /// None: there is no such name.
    node: Option<NodeId>,
    /// Of the directory.
    epoch: Epoch,
}

/// What a name leads to, as far as it is known.
pub(crate) enum CachedName {
    /// To this node; it counts a look-up.
    Node(Arc<Node>),
    /// There is no such name.
    Nothing,
}

/// So many names that there are not are remembered; then all of these are forgotten.
const ABSENT_MAX: usize = 1 << 16;

/// Listings fill one part in so many of what a session may know: 131,072 nodes by default, which take 120 MiB.
const LISTED_ONE_IN: u64 = 32;

#[derive(Debug)]
struct Held {
    node: Arc<Node>,
    look_ups: u64,
    /// A listing has brought it, and no operation has used its name or handle.
    listed: bool,
    /// None where there was no leave left for one that was forgotten while it was in use.
    _permit: Option<Permit>,
}

impl Nodes {
    /// The root alone.
    pub(crate) fn new(
        root: FileHandleBuf,
        fattr: &Fattr3,
        asked: Instant,
        times: AttributeTimes,
        counts: Arc<Budget>,
    ) -> Self {
        let removal = Arc::<UnknownRemoval>::default();
        let node = Arc::new(Node::new(NodeId::ROOT, root, fattr, asked, times, removal.clone()));
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

    /// The root.
    pub(crate) fn root(&self) -> &Arc<Node> {
        &self.root
    }

    /// A node by its number.
    pub(crate) fn node(&self, id: NodeId) -> Result<Arc<Node>> {
        if id == NodeId::ROOT {
            return Ok(self.root.clone());
        }
        self.table().by_id.get(&id).map(|held| held.node.clone()).ok_or(Error::Stale)
    }

    /// Leave to know one more.
    ///
    /// # Errors
    /// More nodes than a session may know.
    pub(crate) fn permit(&self) -> Result<Permit> {
        self.counts.take(Resource::Nodes, 1).ok_or(Error::NoMemory)
    }

    /// Whether listings may bring further nodes. Who lists keeps them all until its own memory runs short, so a directory
    /// without end would fill this table; beyond a part of it, names are looked up one by one on demand.
    /// Those that are looked up do not count, but room is left for as many again.
    pub(crate) fn takes_listed(&self) -> bool {
        let limit = self.counts.limit(Resource::Nodes);
        self.table().listed < limit / LISTED_ONE_IN && self.counts.used(Resource::Nodes) < limit / 2
    }

    /// A node that a call of `asked` found: the known one, or a new one. Counts a look-up. A handle that names another file
    /// than before gets another number. One that was forgotten since the call was made may have changed meanwhile: its
    /// attributes are doubtful then. A new one takes `permit`, or one of its own if that is none.
    ///
    /// # Errors
    /// More nodes than a session may know.
    pub(crate) fn enter(
        &self,
        permit: Option<Permit>,
        handle: FileHandleBuf,
        fattr: &Fattr3,
        asked: Instant,
        now: Instant,
    ) -> Result<Arc<Node>> {
        self.enter_from(false, permit, (handle, fattr), asked, now)
    }

    /// [`Nodes::enter`], for a node from a listing, which may never be used.
    pub(crate) fn enter_listed(
        &self,
        handle: FileHandleBuf,
        fattr: &Fattr3,
        asked: Instant,
        now: Instant,
    ) -> Result<Arc<Node>> {
        self.enter_from(true, None, (handle, fattr), asked, now)
    }

    fn enter_from(
        &self,
        listed: bool,
        permit: Option<Permit>,
        (handle, fattr): (FileHandleBuf, &Fattr3),
        asked: Instant,
        now: Instant,
    ) -> Result<Arc<Node>> {
        let mut guard = self.table();
        let table = &mut *guard;
        if let Some(id) = table.by_handle.get(&handle).copied()
            && let Some(held) = table.by_id.get_mut(&id)
        {
            if held.node.learn(fattr, asked, now) {
                held.look_ups += 1;
                if !listed {
                    held.is_asked_for(&mut table.listed);
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
        let node = Arc::new(Node::new(id, handle, fattr, asked, self.times, self.removal.clone()));
        if !table.evicted.may_tell(&handle, asked) {
            node.doubt(now);
        }
        table.listed += u64::from(listed);
        table.by_id.insert(id, Held { node: node.clone(), look_ups: 1, listed, _permit: Some(permit) });
        table.by_handle.insert(handle, id);
        Ok(node)
    }

    /// One look-up more of a node that is known.
    pub(crate) fn look_up_again(&self, node: &Arc<Node>) {
        let mut table = self.table();
        let again = || Held { node: node.clone(), look_ups: 0, listed: false, _permit: self.permit().ok() };
        let held = table.by_id.entry(node.id).or_insert_with(again);
        held.look_ups += 1;
    }

    /// Takes back look-ups. An unreferenced node is dropped, with no lock held. One that is open, or holds
    /// written bytes, is not: a look-up meanwhile has to find the written data.
    pub(crate) fn forget(&self, look_ups: &[(NodeId, u64)]) {
        let mut gone = Vec::new();
        let mut table = self.table();
        for &(id, count) in look_ups {
            let Some(held) = table.by_id.get_mut(&id).filter(|_| id != NodeId::ROOT) else { continue };
            held.look_ups = held.look_ups.saturating_sub(count);
            gone.extend(table.take_unused(id));
        }
        drop(table);
        drop(gone);
    }

    /// A node is no longer open, or no longer holds written bytes: it is dropped if unreferenced.
    pub(crate) fn let_go(&self, node: &Node) {
        let gone = self.table().take_unused(node.id);
        drop(gone);
    }

    /// The node was seen under this name, in a reply to a call that was made when the directory was in this epoch. That a
    /// directory is in itself, or deeper than any path is, is not remembered: its location keeps those above it.
    pub(crate) fn record(&self, node: &Arc<Node>, dir: &Arc<Node>, name: &NameBuf, epoch: Epoch) {
        if node.id == NodeId::ROOT {
            return;
        }
        let mut table = self.table();
        let is_there_already =
            node.location().is_some_and(|location| location.dir.id == dir.id && location.name == *name);
        if !is_there_already {
            table.unname(node);
            if node.file_type == FileType::Directory && !dir.may_hold(node) {
                node.set_location(None);
                table.unsee(&(dir.id, name.clone()));
                return;
            }
            node.set_location(Some(Location { dir: dir.clone(), name: name.clone() }));
        }
        table.see((dir.id, name.clone()), Sighting { node: Some(node.id), epoch });
    }

    /// There was no such name when the directory was in this epoch.
    pub(crate) fn record_absent(&self, dir: &Arc<Node>, name: &NameBuf, epoch: Epoch) {
        let mut table = self.table();
        if table.absent >= ABSENT_MAX {
            table.by_name.retain(|_, sighting| sighting.node.is_some());
            table.absent = 0;
        }
        table.see((dir.id, name.clone()), Sighting { node: None, epoch });
    }

    /// What a name leads to, if it was seen while the directory was as it is now. Counts a look-up.
    pub(crate) fn cached(&self, dir: &Arc<Node>, name: &NameBuf) -> Option<CachedName> {
        let mut guard = self.table();
        let table = &mut *guard;
        let sighting = *table.by_name.get(&(dir.id, name.clone()))?;
        if sighting.epoch != dir.epoch() {
            return None;
        }
        match sighting.node {
            None => Some(CachedName::Nothing),
            Some(id) => {
                let held = table.by_id.get_mut(&id)?;
                held.look_ups += 1;
                held.is_asked_for(&mut table.listed);
                Some(CachedName::Node(held.node.clone()))
            }
        }
    }

    /// What was last seen under a name, however long ago, if it is known still.
    pub(crate) fn at(&self, dir: NodeId, name: &NameBuf) -> Option<Arc<Node>> {
        let table = self.table();
        let id = table.by_name.get(&(dir, name.clone()))?.node?;
        table.by_id.get(&id).map(|held| held.node.clone())
    }

    /// The name is gone. What it led to.
    pub(crate) fn removed(&self, dir: NodeId, name: &NameBuf) -> Option<Arc<Node>> {
        let mut table = self.table();
        let id = table.by_name.get(&(dir, name.clone()))?.node?;
        table.unsee(&(dir, name.clone()));
        let node = table.by_id.get(&id).map(|held| held.node.clone());
        drop(table);
        if let Some(node) = &node
            && node.location().is_some_and(|location| location.dir.id == dir && location.name == *name)
        {
            node.set_location(None);
        }
        node
    }

    /// A name is gone by now that these were seen under. If none was, a file of several names may have lost one.
    pub(crate) fn lost_a_name<'a>(&self, seen: impl IntoIterator<Item = &'a Arc<Node>>, now: Instant) {
        let mut last = None;
        for node in seen {
            if last.replace(node.id) != Some(node.id) {
                node.lost_a_name(now);
            }
        }
        if last.is_none() {
            self.removal.happened(now);
        }
    }

    /// Was there no such name when the directory was as it is now?
    pub(crate) fn is_absent(&self, dir: &Node, name: &NameBuf) -> bool {
        let table = self.table();
        let sighting = table.by_name.get(&(dir.id, name.clone()));
        sighting.is_some_and(|sighting| sighting.node.is_none() && sighting.epoch == dir.epoch())
    }

    /// What the name leads to is not known any more.
    pub(crate) fn forget_name(&self, dir: NodeId, name: &NameBuf) {
        self.table().unsee(&(dir, name.clone()));
    }

    /// The server calls a node otherwise from now on.
    pub(crate) fn rename_handle(&self, node: &Arc<Node>, handle: FileHandleBuf) {
        let mut table = self.table();
        let before = node.handle();
        if table.by_handle.get(&before) == Some(&node.id) {
            table.by_handle.remove(&before);
        }
        node.set_handle(handle);
        table.by_handle.insert(handle, node.id);
    }

    /// All nodes that are known now.
    pub(crate) fn all(&self) -> Vec<Arc<Node>> {
        self.table().by_id.values().map(|held| held.node.clone()).collect()
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    /// It counts no longer among the `listed`.
    fn is_asked_for(&mut self, listed: &mut u64) {
        *listed -= u64::from(std::mem::take(&mut self.listed));
    }
}

impl Table {
    /// Takes out a node that is unreferenced and has no pending work.
    fn take_unused(&mut self, id: NodeId) -> Option<Arc<Node>> {
        let held = self.by_id.get(&id).filter(|_| id != NodeId::ROOT)?;
        if held.look_ups > 0 || held.node.is_open() || held.node.data.is_dirty() {
            return None;
        }
        let mut held = self.by_id.remove(&id)?;
        held.is_asked_for(&mut self.listed);
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

    fn see(&mut self, key: (NodeId, NameBuf), sighting: Sighting) {
        self.absent += usize::from(sighting.node.is_none());
        if let Some(before) = self.by_name.insert(key, sighting) {
            self.absent -= usize::from(before.node.is_none());
        }
    }

    fn unsee(&mut self, key: &(NodeId, NameBuf)) {
        if let Some(before) = self.by_name.remove(key) {
            self.absent -= usize::from(before.node.is_none());
        }
    }

    /// Forgets the name that a node was last seen under, if nothing else was seen there since.
    fn unname(&mut self, node: &Node) {
        if let Some(Location { dir, name }) = node.location() {
            let key = (dir.id, name);
            if self.by_name.get(&key).is_some_and(|sighting| sighting.node == Some(node.id)) {
                self.unsee(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tombolo_core::Limits;
    use tombolo_core::fs::Name;
    use tombolo_wire_nfs3::{FileHandle, FileType3, NfsTime3, SpecData3, WccAttr, WccData};

    use super::super::node::DEPTH_MAX;
    use super::*;

    fn handle(number: u8) -> FileHandleBuf {
        FileHandle::new(&[number; 8]).expect("short").to_owned()
    }

    fn fattr(fileid: u64, file_type: FileType3, seconds: u32) -> Fattr3 {
        let time = NfsTime3 { seconds, nseconds: 0 };
        Fattr3 {
            file_type,
            mode: 0o755,
            nlink: 1,
            uid: 0,
            gid: 0,
            size: 0,
            used: 0,
            rdev: SpecData3 { major: 0, minor: 0 },
            fsid: 1,
            fileid,
            atime: time,
            mtime: time,
            ctime: time,
        }
    }

    fn nodes(nodes_max: u64) -> Nodes {
        let root = fattr(1, FileType3::Directory, 1);
        let counts = Budget::new(Limits { nodes: nodes_max, ..Limits::default() });
        Nodes::new(handle(1), &root, Instant::now(), AttributeTimes::default(), counts)
    }

    fn name(text: &str) -> NameBuf {
        Name::new(text.as_bytes()).expect("a name").to_owned()
    }

    fn enter(nodes: &Nodes, number: u8, fileid: u64) -> Arc<Node> {
        let file = fattr(fileid, FileType3::Regular, 1);
        nodes.enter(None, handle(number), &file, Instant::now(), Instant::now()).expect("within the budget")
    }

    #[test]
    fn a_handle_that_names_another_file_gets_another_number() {
        let nodes = nodes(100);
        let first = enter(&nodes, 2, 10);
        assert_eq!(enter(&nodes, 2, 10).id, first.id);
        let other = enter(&nodes, 2, 11);
        assert_ne!(other.id, first.id);
        assert_eq!(nodes.node(first.id).expect("still known").fileid, 10);
        assert_eq!(enter(&nodes, 2, 11).id, other.id);
    }

    #[test]
    fn an_open_node_is_retained_until_close() {
        let nodes = nodes(100);
        let node = enter(&nodes, 2, 10);
        node.opened();
        nodes.forget(&[(node.id, 1)]);
        assert!(Arc::ptr_eq(&enter(&nodes, 2, 10), &node));
        nodes.forget(&[(node.id, 1)]);
        node.closed();
        nodes.let_go(&node);
        assert!(nodes.node(node.id).is_err());
    }

    #[test]
    fn a_node_forgotten_as_often_as_looked_up_is_dropped_but_the_root_stays() {
        let nodes = nodes(2);
        let node = enter(&nodes, 2, 10);
        enter(&nodes, 2, 10);
        assert!(matches!(
            nodes.enter(None, handle(3), &fattr(11, FileType3::Regular, 1), Instant::now(), Instant::now()),
            Err(Error::NoMemory)
        ));
        nodes.forget(&[(node.id, 1), (NodeId::ROOT, 100)]);
        assert!(nodes.node(node.id).is_ok());
        nodes.forget(&[(node.id, 7)]);
        assert!(matches!(nodes.node(node.id), Err(Error::Stale)));
        assert!(nodes.node(NodeId::ROOT).is_ok());
        enter(&nodes, 3, 11);
    }

    #[test]
    fn a_name_is_known_until_others_change_its_directory() {
        let nodes = nodes(100);
        let (root, node) = (nodes.root().clone(), enter(&nodes, 2, 10));
        nodes.record(&node, &root, &name("a"), root.epoch());
        nodes.record_absent(&root, &name("b"), root.epoch());
        assert!(
            matches!(nodes.cached(&root, &name("a")), Some(CachedName::Node(found)) if found.id == node.id)
        );
        assert!(matches!(nodes.cached(&root, &name("b")), Some(CachedName::Nothing)));
        // A change of ours with no other client's in between.
        let before = fattr(1, FileType3::Directory, 1);
        let own = WccData {
            before: Some(WccAttr { size: before.size, mtime: before.mtime, ctime: before.ctime }),
            after: Some(fattr(1, FileType3::Directory, 2)),
        };
        root.learn_change(&own, Instant::now(), Instant::now());
        assert!(nodes.cached(&root, &name("a")).is_some());
        // The same again: what was before is not what we knew.
        let foreign = WccData { after: Some(fattr(1, FileType3::Directory, 3)), ..own };
        root.learn_change(&foreign, Instant::now(), Instant::now());
        assert!(nodes.cached(&root, &name("a")).is_none() && nodes.cached(&root, &name("b")).is_none());
        assert!(nodes.at(root.id, &name("a")).is_some(), "where it was last seen is known still");
    }

    #[test]
    fn a_reply_older_than_a_change_is_not_used_for_an_evicted_node() {
        let (nodes, start) = (nodes(100), Instant::now());
        let at = |millis| start + Duration::from_millis(millis);
        let file = fattr(10, FileType3::Regular, 1);
        let enter = |asked, came| {
            nodes.enter(None, handle(2), &file, at(asked), at(came)).expect("within the budget")
        };
        let node = enter(0, 1);
        let longer = WccData { before: None, after: Some(Fattr3 { size: 7, ..file }) };
        // A WRITE, beside a listing that was asked for before it and is answered after it.
        node.changing();
        node.learn_change(&longer, at(3), at(4));
        nodes.forget(&[(node.id, 1)]);
        let node = enter(2, 5);
        assert!(node.is_doubtful(), "of 0 bytes");
        nodes.forget(&[(node.id, 1)]);
        assert!(!enter(6, 7).is_doubtful(), "asked for after all that is known");
    }

    #[test]
    fn nlink_zero_needs_the_last_name_removed_here() {
        let (nodes, start) = (nodes(100), Instant::now());
        let at = |millis| start + Duration::from_millis(millis);
        let file = Fattr3 { nlink: 3, ..fattr(10, FileType3::Regular, 1) };
        let node = nodes.enter(None, handle(2), &file, at(0), at(1)).expect("within the budget");
        assert!(node.after_its_end().is_none(), "removed by others");
        // CachedName under the name, and found there.
        nodes.lost_a_name([&node, &node], at(2));
        assert!(node.after_its_end().is_none(), "others may have replaced the other names");
        assert!(node.learn(&Fattr3 { nlink: 2, ..file }, at(3), at(4)));
        nodes.lost_a_name([&node], at(5));
        assert!(node.after_its_end().is_none(), "one is left");
        nodes.lost_a_name([&node], at(6));
        assert_eq!(node.after_its_end().map(|attr| attr.nlink), Some(0));
        assert!(node.learn(&Fattr3 { nlink: 1, ..file }, at(7), at(8)));
        assert!(node.after_its_end().is_none(), "another client gave it a name");
        let dir = Fattr3 { nlink: 5, ..fattr(11, FileType3::Directory, 1) };
        let dir = nodes.enter(None, handle(3), &dir, at(0), at(1)).expect("within the budget");
        dir.lost_a_name(at(2));
        assert_eq!(dir.after_its_end().map(|attr| attr.nlink), Some(0));
    }

    #[test]
    fn listings_bring_nodes_as_long_as_few_are_known_from_listings_alone() {
        let nodes = nodes(3 * LISTED_ONE_IN);
        let (root, now) = (nodes.root().clone(), Instant::now());
        let listed = |number: u8| {
            let file = fattr(number.into(), FileType3::Regular, 1);
            let node = nodes.enter_listed(handle(number), &file, now, now).expect("within the budget");
            nodes.record(&node, &root, &name(&number.to_string()), root.epoch());
            node
        };
        (50..90).for_each(|number| drop(enter(&nodes, number, number.into())));
        assert!(nodes.takes_listed(), "what was looked up does not count");
        let first = listed(2);
        (3..5).for_each(|number| drop(listed(number)));
        listed(50);
        assert!(!nodes.takes_listed());
        assert!(nodes.cached(&root, &name("3")).is_some());
        assert!(nodes.takes_listed(), "one was looked up");
        listed(6);
        assert!(!nodes.takes_listed());
        nodes.forget(&[(first.id, 1)]);
        assert!(nodes.takes_listed(), "one is forgotten");
        (90..96).for_each(|number| drop(enter(&nodes, number, number.into())));
        assert!(!nodes.takes_listed(), "half of all");
    }

    #[test]
    fn directories_that_are_in_each_other_are_freed() {
        let nodes = nodes(100);
        let dir = |number| {
            let fattr = fattr(number, FileType3::Directory, 1);
            nodes
                .enter(None, handle(number as u8), &fattr, Instant::now(), Instant::now())
                .expect("within the budget")
        };
        let dirs = [dir(2), dir(3), dir(4)];
        for (inner, outer) in [(1, 0), (2, 1), (0, 2), (1, 1), (2, 0), (0, 1)] {
            nodes.record(&dirs[inner], &dirs[outer], &name("again"), dirs[outer].epoch());
        }
        let seen: Vec<_> = dirs.iter().map(Arc::downgrade).collect();
        dirs.iter().for_each(|dir| nodes.forget(&[(dir.id, 1)]));
        drop(dirs);
        assert!(seen.iter().all(|dir| dir.strong_count() == 0), "they keep each other");
        assert!(nodes.table().by_name.is_empty());
    }

    #[test]
    fn an_endless_tree_retains_one_path() {
        let nodes = nodes(100);
        let (mut seen, mut above) = (Vec::new(), nodes.root().clone());
        for number in 0..2 * DEPTH_MAX as u64 + 100 {
            let fattr = fattr(number + 2, FileType3::Directory, 1);
            let handle = FileHandle::new(&(number + 2).to_be_bytes()).expect("short").to_owned();
            let below =
                nodes.enter(None, handle, &fattr, Instant::now(), Instant::now()).expect("within the budget");
            nodes.record(&below, &above, &name("deeper"), above.epoch());
            nodes.forget(&[(above.id, 1)]);
            seen.push(Arc::downgrade(&below));
            above = below;
        }
        let kept = seen.iter().filter(|node| node.strong_count() > 0).count();
        assert!(kept <= DEPTH_MAX, "{kept} directories for one");
    }

    #[test]
    fn a_moved_node_is_not_where_it_was() {
        let nodes = nodes(100);
        let (root, node) = (nodes.root().clone(), enter(&nodes, 2, 10));
        nodes.record(&node, &root, &name("a"), root.epoch());
        nodes.record(&node, &root, &name("b"), root.epoch());
        assert!(nodes.at(root.id, &name("a")).is_none());
        assert_eq!(nodes.removed(root.id, &name("b")).map(|node| node.id), Some(node.id));
        assert!(node.location().is_none() && nodes.at(root.id, &name("b")).is_none());
    }
}
