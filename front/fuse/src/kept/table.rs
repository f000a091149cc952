//! Which records are used and for what, and the order in which the area is told.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};

use smallvec::SmallVec;
use tombolo_core::fs::{File, NodeId, OpenId, PersistentHandle};

use super::area::{Area, Number, Opening, Records};
use super::numbers::Numbers;

/// So many nodes that the guest has forgotten keep their numbers, which are in handles that it has given out.
const FORGOTTEN_MAX: usize = 1 << 16;
/// A queue of free records has so many more than there are before it is looked through.
const SPARE: usize = 1024;

/// Behind a lock, beside the area.
#[derive(Debug)]
pub(super) struct Table {
    /// By the nodes' numbers here.
    nodes: HashMap<NodeId, Known>,
    node_records: Free,
    opening_records: Free,
    unmet: Unmet,
    /// What an earlier process has left: openings, by the requests that made them.
    left: HashMap<u64, u32>,
    /// All openings, by the guest's numbers of their nodes.
    of_nodes: HashMap<NodeId, SmallVec<[u32; 2]>>,
    /// Names that are being taken away, by the guest's numbers of their nodes.
    removals: HashMap<Option<NodeId>, usize>,
    /// The session is over: the area is another's.
    is_over: bool,
}

/// Records of nodes that are not here, by digests of their handles: what leads there leads to the node that
/// the guest knows, or knew. An earlier process has left them, or the guest has forgotten them.
#[derive(Debug, Default)]
struct Unmet {
    records: HashMap<u64, u32>,
    digests: RandomState,
}

impl Unmet {
    fn of(area: &Area) -> Self {
        let mut unmet = Self::default();
        let (forgotten, left): (Vec<u32>, Vec<u32>) =
            (0..area.used(Records::Nodes)).partition(|index| area.is_free(Records::Nodes, *index));
        forgotten.into_iter().chain(left).for_each(|index| unmet.add(area, index));
        unmet
    }

    fn add(&mut self, area: &Area, index: u32) {
        if let Some(handle) = area.node_handle(index) {
            self.records.insert(self.digests.hash_one(&handle), index);
        }
    }

    fn take(&mut self, area: &Area, handle: &PersistentHandle) -> Option<u32> {
        if self.records.is_empty() {
            return None;
        }
        let index = self.records.remove(&self.digests.hash_one(handle))?;
        (area.node_handle(index).as_ref() == Some(handle)).then_some(index)
    }

    /// The record becomes another node's.
    fn drop(&mut self, area: &Area, index: u32) {
        let digest = area.node_handle(index).map(|handle| self.digests.hash_one(&handle));
        if let Some(digest) = digest.filter(|digest| self.records.get(digest) == Some(&index)) {
            self.records.remove(&digest);
        }
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
    /// The one that has been free longest comes first. Some may be used again, or be here twice.
    queue: VecDeque<u32>,
    count: usize,
    /// So many stay free.
    rest: usize,
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
    fn of(area: &Area, records: Records, rest: usize) -> Self {
        let used = area.used(records);
        let queue: VecDeque<u32> = (0..used).filter(|index| area.is_free(records, *index)).collect();
        Self { records, count: queue.len(), queue, rest, used }
    }

    fn take(&mut self, area: &Area) -> Result<u32, NoRecord> {
        let is_full = self.used >= self.records.max();
        if self.count > self.rest || is_full {
            let free = std::iter::from_fn(|| self.queue.pop_front());
            let index = free.into_iter().find(|index| area.is_free(self.records, *index));
            self.count = self.count.saturating_sub(1);
            return index.ok_or(NoRecord::Full);
        }
        let index = self.used;
        self.used += 1;
        area.set_used(self.records, self.used);
        Ok(index)
    }

    /// One is used again as what it was.
    fn revived(&mut self) {
        self.count = self.count.saturating_sub(1);
    }

    fn give_back(&mut self, area: &Area, index: u32) {
        self.queue.push_back(index);
        self.count += 1;
        if self.queue.len() > 2 * self.count + SPARE {
            let mut seen = HashSet::new();
            self.queue.retain(|index| area.is_free(self.records, *index) && seen.insert(*index));
        }
    }
}

impl Table {
    /// What is in use in the area.
    pub(super) fn of(area: &Area) -> Self {
        let mut of_nodes = HashMap::<_, SmallVec<_>>::new();
        for index in area.in_use(Records::Openings) {
            of_nodes.entry(area.opening(index).node).or_default().push(index);
        }
        Self {
            of_nodes,
            removals: HashMap::new(),
            nodes: HashMap::new(),
            node_records: Free::of(area, Records::Nodes, FORGOTTEN_MAX),
            opening_records: Free::of(area, Records::Openings, 0),
            unmet: Unmet::of(area),
            left: area.in_use(Records::Openings).map(|index| (area.opening(index).unique, index)).collect(),
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

    /// The file system has given a look-up of a node, which the guest is about to get: counted before it
    /// does.
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
        let number = match handle.and_then(|handle| self.unmet.take(area, handle)) {
            Some(index) => {
                if area.is_free(Records::Nodes, index) {
                    self.node_records.revived();
                }
                area.look_up(index);
                area.number(Records::Nodes, index)
            }
            None => {
                let index = self.node_records.take(area)?;
                self.unmet.drop(area, index);
                area.put_node(index, handle)
            }
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
        self.node_records.give_back(area, index);
        self.unmet.add(area, index);
        let node = NodeId(numbers.take(number)?);
        self.nodes.remove(&node).map(|known| (node, known.held))
    }

    /// A name is about to go, of this node, or of one that is not known yet. Whether anything is open.
    pub(super) fn removes(&mut self, node: Option<NodeId>) -> bool {
        *self.removals.entry(node).or_default() += 1;
        !self.of_nodes.is_empty()
    }

    /// It has gone, or stays.
    pub(super) fn removed(&mut self, node: Option<NodeId>) {
        if let Entry::Occupied(mut removals) = self.removals.entry(node) {
            *removals.get_mut() -= 1;
            if *removals.get() == 0 {
                removals.remove();
            }
        }
    }

    /// Whether a name of the node may be about to go.
    pub(super) fn is_removed(&self, node: NodeId) -> bool {
        self.removals.contains_key(&Some(node)) || self.removals.contains_key(&None)
    }

    /// The openings of a node, by the guest's numbers.
    pub(super) fn openings_of(&self, area: &Area, node: NodeId) -> Vec<OpenId> {
        let indices = self.of_nodes.get(&node).into_iter().flatten();
        indices.map(|index| area.number(Records::Openings, *index).into()).collect()
    }

    /// The opening that a request has left which an earlier process has performed, but for its answer.
    pub(super) fn left_by(&self, area: &Area, unique: u64) -> Option<File> {
        let index = *self.left.get(&unique)?;
        let opening = area.opening(index);
        let open = area.number(Records::Openings, index).into();
        (opening.unique == unique && !self.is_over).then_some(File { node: opening.node, open })
    }

    /// A request has made an opening.
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
        let index = self.opening_records.take(area)?;
        let number = area.put_opening(index, opening);
        self.of_nodes.entry(opening.node).or_default().push(index);
        numbers.set(number, here.0);
        Ok(number)
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
        self.left.remove(&area.opening(index).unique);
        self.free_opening(area, index);
        numbers.take(number).map(OpenId)
    }

    fn free_opening(&mut self, area: &Area, index: u32) {
        let node = area.opening(index).node;
        if let Some(indices) = self.of_nodes.get_mut(&node) {
            indices.retain(|other| *other != index);
            if indices.is_empty() {
                self.of_nodes.remove(&node);
            }
        }
        area.free(Records::Openings, index);
        self.opening_records.give_back(area, index);
    }
}
