//! Last known targets of names.

use std::sync::Arc;
use std::time::Instant;

use tombolo_core::fs::{FileType, NameBuf, NodeId};
use tombolo_core::lock;

use super::{ABSENT_MAX, CachedName, Nodes, Sighting, Table};
use crate::nodes::node::{Epoch, Location, Node};

impl Nodes {
    /// Records that a name leads to a node, from a call in this epoch of the directory. A location is not
    /// recorded if it would put a directory into itself or too deep, since a location references all parents.
    pub(crate) fn record(&self, node: &Arc<Node>, dir: &Arc<Node>, name: &NameBuf, epoch: Epoch) {
        if node.id == NodeId::ROOT {
            return;
        }
        let mut table = lock(&self.table);
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

    /// Records that a name does not exist in this epoch of the directory.
    pub(crate) fn record_absent(&self, dir: &Arc<Node>, name: &NameBuf, epoch: Epoch) {
        let mut table = lock(&self.table);
        if table.absent >= ABSENT_MAX {
            table.by_name.retain(|_, sighting| sighting.node.is_some());
            table.absent = 0;
        }
        table.see((dir.id, name.clone()), Sighting { node: None, epoch });
    }

    /// Returns the cached target of a name if its epoch is current. Counts a look-up.
    pub(crate) fn cached(&self, dir: &Arc<Node>, name: &NameBuf) -> Option<CachedName> {
        let mut guard = lock(&self.table);
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
                held.uncount_listed(&mut table.listed);
                Some(CachedName::Node(held.node.clone()))
            }
        }
    }

    /// Returns the last known target of a name, regardless of age, if it is still cached.
    pub(crate) fn at(&self, dir: NodeId, name: &NameBuf) -> Option<Arc<Node>> {
        let table = lock(&self.table);
        let id = table.by_name.get(&(dir, name.clone()))?.node?;
        table.by_id.get(&id).map(|held| held.node.clone())
    }

    /// Forgets a name that was removed; returns its last known target.
    pub(crate) fn removed(&self, dir: NodeId, name: &NameBuf) -> Option<Arc<Node>> {
        let mut table = lock(&self.table);
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

    /// Records that a name of these nodes was removed. Without nodes, any file with several names may have
    /// lost one.
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

    /// Returns `true` if the name is known not to exist in the current epoch.
    pub(crate) fn is_absent(&self, dir: &Node, name: &NameBuf) -> bool {
        let table = lock(&self.table);
        let sighting = table.by_name.get(&(dir.id, name.clone()));
        sighting.is_some_and(|sighting| sighting.node.is_none() && sighting.epoch == dir.epoch())
    }

    pub(crate) fn forget_name(&self, dir: NodeId, name: &NameBuf) {
        lock(&self.table).unsee(&(dir, name.clone()));
    }
}

impl Table {
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

    /// Forgets the name of a node, unless another node was recorded there since.
    pub(super) fn unname(&mut self, node: &Node) {
        if let Some(Location { dir, name }) = node.location() {
            let key = (dir.id, name);
            if self.by_name.get(&key).is_some_and(|sighting| sighting.node == Some(node.id)) {
                self.unsee(&key);
            }
        }
    }
}
