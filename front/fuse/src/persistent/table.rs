//! Allocation of the area's records ([`RecordTable`]). A look-up is counted in the area before the guest
//! receives the reply, and a record is freed after the guest has forgotten its node: if the server is killed
//! in between, the area has a record that the guest does not know, and never lacks one that the guest knows.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};

use smallvec::SmallVec;
use tombolo_core::fs::{File, NodeId, OpenId, PersistentHandle};

use super::area::{Area, Number, Opening, Records};
use super::numbers::Numbers;

/// Number of forgotten nodes whose records are not reused until the table is full, because the guest may have
/// put their numbers into file handles.
const FORGOTTEN_MAX: usize = 1 << 16;
/// Number of stale entries, beyond one for each free record, that a queue of free records may have before it
/// is cleaned up.
const SPARE: usize = 1024;

/// Process-local index of the area; guarded by a mutex.
#[derive(Debug)]
pub(super) struct RecordTable {
    /// By this process's node numbers.
    nodes: HashMap<NodeId, KnownNode>,
    node_records: FreeRecords,
    opening_records: FreeRecords,
    dormant: DormantRecords,
    /// Records of openings left by an earlier process, by the requests that made them.
    earlier_openings: HashMap<u64, u32>,
    /// Records of all openings, by the guest's numbers of their nodes.
    openings_by_node: HashMap<NodeId, SmallVec<[u32; 2]>>,
    /// Number of removals of names in progress, by the guest's node number; `None`: not looked up yet.
    removals: HashMap<Option<NodeId>, usize>,
    /// `true` once the session is over: the area may belong to the next one.
    has_ended: bool,
}

/// Records of nodes left by an earlier process or forgotten by the guest, by digests of their handles. A
/// look-up of the same handle gets the same record.
#[derive(Debug, Default)]
struct DormantRecords {
    records: HashMap<u64, u32>,
    digests: RandomState,
}

impl DormantRecords {
    fn of(area: &Area) -> Self {
        let mut dormant = Self::default();
        let (forgotten, in_use): (Vec<u32>, Vec<u32>) =
            (0..area.used(Records::Nodes)).partition(|index| area.is_free(Records::Nodes, *index));
        // Of two records of one handle, that in use is added last, and replaces the other.
        forgotten.into_iter().chain(in_use).for_each(|index| dormant.add(area, index));
        dormant
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

    /// Removes a record that is about to be reused for another node.
    fn drop(&mut self, area: &Area, index: u32) {
        let digest = area.node_handle(index).map(|handle| self.digests.hash_one(&handle));
        if let Some(digest) = digest.filter(|digest| self.records.get(digest) == Some(&index)) {
            self.records.remove(&digest);
        }
    }
}

/// A node known to this process.
#[derive(Debug)]
struct KnownNode {
    number: Number,
    /// Number of look-ups counted by the underlying file system.
    look_up_count: u64,
}

/// Free records of one of the two tables.
#[derive(Debug)]
struct FreeRecords {
    records: Records,
    /// Free records: first those that were free when the process started, then the longest free first. May
    /// contain records in use, and duplicates.
    queue: VecDeque<u32>,
    count: usize,
    /// Number of free records that are not reused until the table is full.
    reserve: usize,
    used: u32,
}

/// Reason why a node or an opening has no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoRecord {
    /// The session is over.
    Over,
    /// The table is full.
    Full,
}

impl FreeRecords {
    fn of(area: &Area, records: Records, reserve: usize) -> Self {
        let used = area.used(records);
        let queue: VecDeque<u32> = (0..used).filter(|index| area.is_free(records, *index)).collect();
        Self { records, count: queue.len(), queue, reserve, used }
    }

    fn take(&mut self, area: &Area) -> Result<u32, NoRecord> {
        let is_full = self.used >= self.records.max();
        if self.count > self.reserve || is_full {
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

    /// Stops counting a record as free: it is in use for its former node again. Its queue entry is skipped
    /// later.
    fn revived(&mut self) {
        self.count = self.count.saturating_sub(1);
    }

    fn give_back(&mut self, area: &Area, index: u32) {
        self.queue.push_back(index);
        self.count += 1;
        if self.queue.len() > 2 * self.count + SPARE {
            let mut retained = HashSet::new();
            self.queue.retain(|index| area.is_free(self.records, *index) && retained.insert(*index));
        }
    }
}

impl RecordTable {
    /// Builds the table from the records in the area.
    pub(super) fn of(area: &Area) -> Self {
        let mut openings_by_node = HashMap::<_, SmallVec<_>>::new();
        for index in area.in_use(Records::Openings) {
            openings_by_node.entry(area.opening(index).node).or_default().push(index);
        }
        Self {
            openings_by_node,
            removals: HashMap::new(),
            nodes: HashMap::new(),
            node_records: FreeRecords::of(area, Records::Nodes, FORGOTTEN_MAX),
            opening_records: FreeRecords::of(area, Records::Openings, 0),
            dormant: DormantRecords::of(area),
            earlier_openings: area
                .in_use(Records::Openings)
                .map(|index| (area.opening(index).unique, index))
                .collect(),
            has_ended: false,
        }
    }

    /// Ends the session; later calls change no records. Returns `false` if it had ended before.
    pub(super) fn end(&mut self) -> bool {
        !std::mem::replace(&mut self.has_ended, true)
    }

    pub(super) fn contains(&self, node: NodeId) -> bool {
        self.nodes.contains_key(&node)
    }

    /// Counts a look-up of a known node, before the guest receives it. `None`: the node is unknown, or the
    /// session has ended.
    pub(super) fn looked_up(&mut self, area: &Area, node: NodeId) -> Option<Number> {
        let known_node = self.nodes.get_mut(&node).filter(|_| !self.has_ended)?;
        known_node.look_up_count += 1;
        area.look_up(known_node.number.index(Records::Nodes));
        Some(known_node.number)
    }

    /// Registers a node, unless it is registered already, and counts its look-up.
    pub(super) fn enter(
        &mut self,
        area: &Area,
        numbers: &Numbers,
        node: NodeId,
        handle: Option<&PersistentHandle>,
    ) -> Result<Number, NoRecord> {
        if self.has_ended {
            return Err(NoRecord::Over);
        }
        if let Some(number) = self.looked_up(area, node) {
            return Ok(number);
        }
        let number = match handle.and_then(|handle| self.dormant.take(area, handle)) {
            Some(index) => {
                if area.is_free(Records::Nodes, index) {
                    self.node_records.revived();
                }
                area.look_up(index);
                area.number(Records::Nodes, index)
            }
            None => {
                let index = self.node_records.take(area)?;
                self.dormant.drop(area, index);
                area.put_node(index, handle)
            }
        };
        numbers.set(number, node.0);
        self.nodes.insert(node, KnownNode { number, look_up_count: 1 });
        Ok(number)
    }

    /// Registers a node recovered from an earlier process. Returns `false` if it was forgotten or registered
    /// in the meantime, or if the session has ended.
    pub(super) fn recovered(&mut self, area: &Area, numbers: &Numbers, number: Number, node: NodeId) -> bool {
        let is_there = area.find(Records::Nodes, number).is_some();
        if self.has_ended || !is_there || self.contains(node) || numbers.local(number).is_some() {
            return false;
        }
        numbers.set(number, node.0);
        self.nodes.insert(node, KnownNode { number, look_up_count: 1 });
        true
    }

    /// Subtracts look-ups that the guest has forgotten. With the last one of a node that this process knows,
    /// returns the node and the number of look-ups to forget in the file system; otherwise `None`.
    pub(super) fn forgotten(
        &mut self,
        area: &Area,
        numbers: &Numbers,
        number: Number,
        look_ups: u64,
    ) -> Option<(NodeId, u64)> {
        let index = area.find(Records::Nodes, number).filter(|_| !self.has_ended)?;
        if !area.forget(index, look_ups) {
            return None;
        }
        self.node_records.give_back(area, index);
        self.dormant.add(area, index);
        let node = NodeId(numbers.take(number)?);
        self.nodes.remove(&node).map(|known_node| (node, known_node.look_up_count))
    }

    /// Begins the removal of a name of this node; `None`: of a node not looked up yet. Returns `true` if the
    /// guest has any openings, whose files might lose their last names.
    pub(super) fn removes(&mut self, node: Option<NodeId>) -> bool {
        *self.removals.entry(node).or_default() += 1;
        !self.openings_by_node.is_empty()
    }

    /// Ends the removal, successful or not.
    pub(super) fn removed(&mut self, node: Option<NodeId>) {
        if let Entry::Occupied(mut removals) = self.removals.entry(node) {
            *removals.get_mut() -= 1;
            if *removals.get() == 0 {
                removals.remove();
            }
        }
    }

    /// Returns `true` if a removal in progress may remove a name of the node.
    pub(super) fn may_lose_name(&self, node: NodeId) -> bool {
        self.removals.contains_key(&Some(node)) || self.removals.contains_key(&None)
    }

    /// Returns the guest's numbers of the openings of a node.
    pub(super) fn openings_of(&self, area: &Area, node: NodeId) -> Vec<OpenId> {
        let indices = self.openings_by_node.get(&node).into_iter().flatten();
        indices.map(|index| area.number(Records::Openings, *index).into()).collect()
    }

    /// Returns the opening made by an earlier process that executed this request unanswered, if any.
    pub(super) fn earlier_opening(&self, area: &Area, unique: u64) -> Option<File> {
        let index = *self.earlier_openings.get(&unique)?;
        let opening = area.opening(index);
        let open = area.number(Records::Openings, index).into();
        (opening.unique == unique && !self.has_ended).then_some(File { node: opening.node, open })
    }

    /// Registers the opening that a request has made.
    pub(super) fn opened(
        &mut self,
        area: &Area,
        numbers: &Numbers,
        opening: Opening,
        local: OpenId,
    ) -> Result<Number, NoRecord> {
        if self.has_ended {
            return Err(NoRecord::Over);
        }
        let index = self.opening_records.take(area)?;
        let number = area.put_opening(index, opening);
        self.openings_by_node.entry(opening.node).or_default().push(index);
        numbers.set(number, local.0);
        Ok(number)
    }

    /// Registers an opening recovered from an earlier process. Returns `false` if it was released or
    /// recovered in the meantime, or if the session has ended; the caller then closes `local`.
    pub(super) fn reopened(&mut self, area: &Area, numbers: &Numbers, number: Number, local: OpenId) -> bool {
        let is_there = area.find(Records::Openings, number).is_some();
        if self.has_ended || !is_there || numbers.local(number).is_some() {
            return false;
        }
        numbers.set(number, local.0);
        true
    }

    /// Removes the opening with the guest's `number`; returns this process's number of it, if it has one.
    pub(super) fn released(&mut self, area: &Area, numbers: &Numbers, number: Number) -> Option<OpenId> {
        let index = area.find(Records::Openings, number).filter(|_| !self.has_ended)?;
        self.earlier_openings.remove(&area.opening(index).unique);
        self.free_opening(area, index);
        numbers.take(number).map(OpenId)
    }

    fn free_opening(&mut self, area: &Area, index: u32) {
        let node = area.opening(index).node;
        if let Some(indices) = self.openings_by_node.get_mut(&node) {
            indices.retain(|other| *other != index);
            if indices.is_empty() {
                self.openings_by_node.remove(&node);
            }
        }
        area.free(Records::Openings, index);
        self.opening_records.give_back(area, index);
    }
}
