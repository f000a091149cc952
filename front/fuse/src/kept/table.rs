//! Which records are used and for what, and the order in which the area is told.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use tombolo_core::fs::{NodeId, OpenId, PersistentHandle};

use super::area::{Area, Number, Opening, Records};
use super::numbers::Numbers;

/// Behind a lock, beside the area.
#[derive(Debug)]
pub(super) struct Table {
    /// By the nodes' numbers here.
    nodes: HashMap<NodeId, Known>,
    node_records: Free,
    opening_records: Free,
    left: Left,
    /// The session is over: the area is another's.
    is_over: bool,
}

/// What an earlier process has left and this one has not met.
#[derive(Debug, Default)]
struct Left {
    /// Records of nodes, by digests of their handles: a name that leads there leads to the node that the guest knows.
    nodes: HashMap<u64, u32>,
    digests: RandomState,
    /// Those of openings, by the requests that made them.
    openings: HashMap<u64, u32>,
}

impl Left {
    fn of(area: &Area) -> Self {
        let mut left = Self::default();
        for index in area.in_use(Records::Nodes) {
            if let Some(handle) = area.node_handle(index) {
                left.nodes.insert(left.digests.hash_one(&handle), index);
            }
        }
        left.openings =
            area.in_use(Records::Openings).map(|index| (area.opening(index).unique, index)).collect();
        left
    }

    fn take_node(&mut self, area: &Area, handle: &PersistentHandle) -> Option<Number> {
        if self.nodes.is_empty() {
            return None;
        }
        let index = self.nodes.remove(&self.digests.hash_one(handle))?;
        // It may have been forgotten since, and be another's.
        let is_it = !area.is_free(Records::Nodes, index) && area.node_handle(index).as_ref() == Some(handle);
        is_it.then(|| area.number(Records::Nodes, index))
    }
}

/// A node that this process has met.
#[derive(Debug)]
struct Known {
    number: Number,
    /// Look-ups of it that the file system counts.
    held: u64,
}

/// Records that are free.
#[derive(Debug)]
struct Free {
    records: Records,
    again: Vec<u32>,
    used: u32,
}

/// Why a node or an opening has no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoRecord {
    /// The session is over.
    Over,
    /// There are too many.
    Full,
}

impl Free {
    fn of(area: &Area, records: Records) -> Self {
        let used = area.used(records);
        let again = (0..used).rev().filter(|index| area.is_free(records, *index)).collect();
        Self { records, again, used }
    }

    fn take(&mut self, area: &Area) -> Result<u32, NoRecord> {
        if let Some(index) = self.again.pop() {
            return Ok(index);
        }
        if self.used >= self.records.max() {
            return Err(NoRecord::Full);
        }
        let index = self.used;
        self.used += 1;
        area.set_used(self.records, self.used);
        Ok(index)
    }
}

impl Table {
    /// What is in use in the area.
    pub(super) fn of(area: &Area) -> Self {
        Self {
            nodes: HashMap::new(),
            node_records: Free::of(area, Records::Nodes),
            opening_records: Free::of(area, Records::Openings),
            left: Left::of(area),
            is_over: false,
        }
    }

    /// Ends the session. Nothing is entered or taken away from now on.
    pub(super) fn end(&mut self) -> bool {
        !std::mem::replace(&mut self.is_over, true)
    }

    pub(super) fn knows(&self, node: NodeId) -> bool {
        self.nodes.contains_key(&node)
    }

    /// The file system has given a look-up of a node, which the guest is about to get: counted before it does.
    pub(super) fn looked_up(&mut self, area: &Area, node: NodeId) -> Option<Number> {
        let known = self.nodes.get_mut(&node).filter(|_| !self.is_over)?;
        known.held += 1;
        area.look_up(known.number.index(Records::Nodes));
        Some(known.number)
    }

    /// The same of one that is not known yet.
    pub(super) fn enter(
        &mut self,
        area: &Area,
        numbers: &Numbers,
        node: NodeId,
        handle: Option<&PersistentHandle>,
    ) -> Result<Number, NoRecord> {
        if self.is_over {
            return Err(NoRecord::Over);
        }
        if let Some(number) = self.looked_up(area, node) {
            return Ok(number);
        }
        let left = handle.and_then(|handle| self.left.take_node(area, handle));
        let number = match left {
            Some(number) => {
                area.look_up(number.index(Records::Nodes));
                number
            }
            None => area.put_node(self.node_records.take(area)?, handle),
        };
        numbers.set(number, node.0);
        self.nodes.insert(node, Known { number, held: 1 });
        Ok(number)
    }

    /// A node that an earlier process has left was found; whether that is news.
    pub(super) fn found(&mut self, area: &Area, numbers: &Numbers, number: Number, node: NodeId) -> bool {
        let is_there = area.find(Records::Nodes, number).is_some();
        if self.is_over || !is_there || self.knows(node) || numbers.here(number).is_some() {
            return false;
        }
        numbers.set(number, node.0);
        self.nodes.insert(node, Known { number, held: 1 });
        true
    }

    /// The guest gives look-ups back. With the last one, those that the file system has counted.
    pub(super) fn forgotten(
        &mut self,
        area: &Area,
        numbers: &Numbers,
        number: Number,
        look_ups: u64,
    ) -> Option<(NodeId, u64)> {
        let index = area.find(Records::Nodes, number).filter(|_| !self.is_over)?;
        if !area.forget(index, look_ups) {
            return None;
        }
        self.node_records.again.push(index);
        let node = NodeId(numbers.take(number)?);
        self.nodes.remove(&node).map(|known| (node, known.held))
    }

    /// A request has made an opening. What it left when it was under way in an earlier process no guest holds.
    pub(super) fn opened(
        &mut self,
        area: &Area,
        numbers: &Numbers,
        opening: Opening,
        here: OpenId,
    ) -> Result<Number, NoRecord> {
        if self.is_over {
            return Err(NoRecord::Over);
        }
        self.drop_left(area, opening.unique);
        let number = area.put_opening(self.opening_records.take(area)?, opening);
        numbers.set(number, here.0);
        Ok(number)
    }

    /// Whether an earlier process has performed that request to open, but for its answer; its opening goes.
    pub(super) fn drop_left(&mut self, area: &Area, unique: u64) -> bool {
        if self.left.openings.is_empty() || self.is_over {
            return false;
        }
        let index = self.left.openings.remove(&unique).filter(|index| area.opening(*index).unique == unique);
        if let Some(index) = index {
            self.free_opening(area, index);
        }
        index.is_some()
    }

    /// An opening that an earlier process has left was made again; whether that is news.
    pub(super) fn reopened(&mut self, area: &Area, numbers: &Numbers, number: Number, here: OpenId) -> bool {
        let is_there = area.find(Records::Openings, number).is_some();
        if self.is_over || !is_there || numbers.here(number).is_some() {
            return false;
        }
        numbers.set(number, here.0);
        true
    }

    /// The guest ends an opening. The one here, if there is one.
    pub(super) fn released(&mut self, area: &Area, numbers: &Numbers, number: Number) -> Option<OpenId> {
        let index = area.find(Records::Openings, number).filter(|_| !self.is_over)?;
        self.left.openings.remove(&area.opening(index).unique);
        self.free_opening(area, index);
        numbers.take(number).map(OpenId)
    }

    fn free_opening(&mut self, area: &Area, index: u32) {
        area.free(Records::Openings, index);
        self.opening_records.again.push(index);
    }
}
