//! Layout of the area, the shared memory that survives this process because the keeper holds it: a header, a
//! record for each node that the guest knows, and one for each of its openings. [`Area`] has the accesses;
//! `table` decides which record is used.
//!
//! A stored word survives a kill at any instruction; a record is in use once its first word, which is stored
//! last, is not 0. The area is large and mostly a hole: memory of a record is allocated when it is written.
//! The content is trusted to be the previous server's; no content makes an access leave the area.

use std::sync::atomic::Ordering;

use smallvec::SmallVec;
use tombolo_core::fs::{NodeId, OpenFlags, OpenId, PersistentHandle, Volume};
use tombolo_mem::{OutOfBounds, Region};

/// Maximum number of nodes that a guest may know at a time.
pub(super) const NODES_MAX: u32 = 1 << 22;
/// Maximum number of openings of a guest.
pub(super) const OPENINGS_MAX: u32 = 1 << 20;

/// Offsets in the header. Numbers are little-endian.
const VERSION_AT: usize = 0;
/// The session: 1 if there is one, and the capabilities and minor version that it negotiated.
const BEGUN_AT: usize = 8;
const CAPABILITIES_AT: usize = 16;
const MINOR_AT: usize = 24;
/// Token that distinguishes the session's requests from those of other sessions.
const TOKEN_AT: usize = 32;
/// Number of records used since the area was last cleared.
const NODES_USED_AT: usize = 48;
const OPENINGS_USED_AT: usize = 56;
/// Identity of the root: its file system and its handle.
const VOLUME_AT: usize = 64;
const ROOT_AT: usize = 80;

const HEADER_LEN: usize = 4096;
const VERSION: u64 = 1;

/// Offsets in a node's record. A record without look-ups is free; until it is reused it identifies the node
/// that the guest has forgotten.
const LOOK_UPS: usize = 0;
const GENERATION: usize = 8;
const HANDLE: usize = 16;
const NODE_LEN: usize = 128;

/// Length of a stored handle in bytes: kind, length and up to `HANDLE_BYTES_MAX` bytes.
const HANDLE_LEN: usize = NODE_LEN - HANDLE;
const HANDLE_BYTES_MAX: usize = HANDLE_LEN - 8;
/// Length that marks a node without a handle, which cannot be found again.
const NO_HANDLE: u32 = u32::MAX;

/// Offsets in an opening's record, whose generation is at `GENERATION`. A record without a node is free.
const NODE: usize = 0;
const UNIQUE: usize = 16;
const FLAGS: usize = 24;
const OPENING_LEN: usize = 32;

const OPENINGS_AT: usize = HEADER_LEN + NODES_MAX as usize * NODE_LEN;

/// Size of an area in bytes, mostly a hole: 2²² nodes and 2²⁰ openings.
pub const AREA_BYTES: usize = OPENINGS_AT + OPENINGS_MAX as usize * OPENING_LEN;

/// The two tables of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Records {
    Nodes,
    Openings,
}

impl Records {
    pub(super) fn max(self) -> u32 {
        match self {
            Self::Nodes => NODES_MAX,
            Self::Openings => OPENINGS_MAX,
        }
    }

    fn used_at(self) -> usize {
        match self {
            Self::Nodes => NODES_USED_AT,
            Self::Openings => OPENINGS_USED_AT,
        }
    }

    fn at(self, index: u32) -> usize {
        match self {
            Self::Nodes => HEADER_LEN + index as usize * NODE_LEN,
            Self::Openings => OPENINGS_AT + index as usize * OPENING_LEN,
        }
    }
}

/// A record's index combined with its generation: the number given to the guest. No two uses of a record have
/// the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Number(pub u64);

impl Number {
    /// Combines a record's index and generation. Generations begin at 1, so that no number equals the root's.
    fn new(records: Records, index: u32, generation: u64) -> Self {
        Self(generation << records.max().trailing_zeros() | u64::from(index))
    }

    pub(super) fn index(self, records: Records) -> u32 {
        self.0 as u32 & (records.max() - 1)
    }

    fn generation(self, records: Records) -> u64 {
        self.0 >> records.max().trailing_zeros()
    }
}

/// Capabilities and minor version that INIT negotiated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Negotiated {
    pub(crate) capabilities: u64,
    pub(crate) minor: u32,
}

/// The part of an opening that is needed to reopen it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Opening {
    pub node: NodeId,
    pub flags: OpenFlags,
    /// The request that created the opening.
    pub unique: u64,
}

/// The area's memory, at least [`AREA_BYTES`] long.
#[derive(Debug)]
pub(super) struct Area(Region);

impl Area {
    /// Wraps the area's memory; `None` if it is too short.
    pub(super) fn new(memory: Region) -> Option<Self> {
        (memory.len() >= AREA_BYTES).then_some(Self(memory))
    }

    /// Returns `true` if the area belongs to this tree, after initialising a new area for the tree.
    pub(super) fn is_of(&self, volume: Volume, root: &PersistentHandle) -> bool {
        let version = self.load(VERSION_AT);
        let mut found = [0; 16];
        let is_read = self.0.read_at(VOLUME_AT, &mut found).is_ok();
        if version == VERSION {
            return is_read && found == volume.0 && self.handle(ROOT_AT).as_ref() == Some(root);
        }
        let is_new = version == 0 && self.0.write_at(VOLUME_AT, &volume.0).is_ok();
        if is_new && self.store_handle(ROOT_AT, Some(root)) {
            self.store(VERSION_AT, VERSION);
            return true;
        }
        false
    }

    /// Returns what the current session negotiated, if there is one.
    pub(super) fn negotiated(&self) -> Option<Negotiated> {
        (self.load(BEGUN_AT) == 1).then(|| Negotiated {
            capabilities: self.load(CAPABILITIES_AT),
            minor: self.load(MINOR_AT) as u32,
        })
    }

    pub(super) fn begin(&self, negotiated: Negotiated) {
        self.store(CAPABILITIES_AT, negotiated.capabilities);
        self.store(MINOR_AT, negotiated.minor.into());
        self.store(BEGUN_AT, 1);
    }

    pub(super) fn token(&self) -> [u8; 16] {
        let mut token = [0; 16];
        // In bounds, because the area's length was checked; so is each access whose result is ignored.
        let _ = self.0.read_at(TOKEN_AT, &mut token);
        token
    }

    /// Ends the session in the area and frees all records, for a next session with this token.
    pub(super) fn clear(&self, token: [u8; 16]) {
        self.store(BEGUN_AT, 0);
        for records in [Records::Openings, Records::Nodes] {
            (0..self.used(records)).for_each(|index| self.free(records, index));
            self.set_used(records, 0);
        }
        let _ = self.0.write_at(TOKEN_AT, &token);
    }

    /// Returns the number of records used since the area was last cleared.
    pub(super) fn used(&self, records: Records) -> u32 {
        u32::try_from(self.load(records.used_at())).map_or(records.max(), |used| used.min(records.max()))
    }

    /// Iterates over the indices of the records in use.
    pub(super) fn in_use(&self, records: Records) -> impl Iterator<Item = u32> {
        (0..self.used(records)).filter(move |index| !self.is_free(records, *index))
    }

    /// Stores the number of records used so far, before the next is used: a later process examines these.
    pub(super) fn set_used(&self, records: Records, used: u32) {
        self.store(records.used_at(), used.into());
    }

    pub(super) fn is_free(&self, records: Records, index: u32) -> bool {
        self.load(records.at(index)) == 0
    }

    /// Frees a record: in both tables the first word is 0 in a free one.
    pub(super) fn free(&self, records: Records, index: u32) {
        self.store(records.at(index), 0);
    }

    /// Returns the guest's number of a record.
    pub(super) fn number(&self, records: Records, index: u32) -> Number {
        Number::new(records, index, self.load(records.at(index) + GENERATION))
    }

    /// Returns the record with this number, unless it is free or has been reused.
    pub(super) fn find(&self, records: Records, number: Number) -> Option<u32> {
        let index = number.index(records);
        let generation = self.load(records.at(index) + GENERATION);
        let is_it = generation != 0 && generation == number.generation(records);
        (is_it && !self.is_free(records, index)).then_some(index)
    }

    /// Begins another use of a free record: returns its number with the next generation.
    fn renew(&self, records: Records, index: u32) -> Number {
        let generation = self.load(records.at(index) + GENERATION).wrapping_add(1).max(1);
        self.store(records.at(index) + GENERATION, generation);
        Number::new(records, index, generation)
    }

    /// Writes the record at `index`, which is free, for a node that the guest is about to receive, with one
    /// look-up. Returns the node's number.
    pub(super) fn put_node(&self, index: u32, handle: Option<&PersistentHandle>) -> Number {
        let at = Records::Nodes.at(index);
        let number = self.renew(Records::Nodes, index);
        self.store_handle(at + HANDLE, handle);
        self.store(at + LOOK_UPS, 1);
        number
    }

    /// Counts one more look-up of a node.
    pub(super) fn look_up(&self, index: u32) {
        let at = Records::Nodes.at(index) + LOOK_UPS;
        self.store(at, self.load(at).saturating_add(1));
    }

    /// Subtracts look-ups; returns `true` if none is left.
    pub(super) fn forget(&self, index: u32, look_ups: u64) -> bool {
        let at = Records::Nodes.at(index) + LOOK_UPS;
        let remaining = self.load(at).saturating_sub(look_ups);
        self.store(at, remaining);
        remaining == 0
    }

    /// Returns the handle of the node with this number, also after the guest has forgotten it; `None` if it
    /// has none, or once the record is reused.
    pub(super) fn handle_by(&self, number: Number) -> Option<PersistentHandle> {
        let index = number.index(Records::Nodes);
        let generation = self.load(Records::Nodes.at(index) + GENERATION);
        let is_it = generation != 0 && generation == number.generation(Records::Nodes);
        is_it.then(|| self.node_handle(index)).flatten()
    }

    pub(super) fn node_handle(&self, index: u32) -> Option<PersistentHandle> {
        self.handle(Records::Nodes.at(index) + HANDLE)
    }

    pub(super) fn put_opening(&self, index: u32, opening: Opening) -> Number {
        let at = Records::Openings.at(index);
        let number = self.renew(Records::Openings, index);
        self.store(at + UNIQUE, opening.unique);
        self.store(at + FLAGS, opening.flags.bits().into());
        self.store(at + NODE, opening.node.0);
        number
    }

    pub(super) fn opening(&self, index: u32) -> Opening {
        let at = Records::Openings.at(index);
        Opening {
            node: NodeId(self.load(at + NODE)),
            flags: OpenFlags::from_bits_truncate(self.load(at + FLAGS) as u16),
            unique: self.load(at + UNIQUE),
        }
    }

    fn handle(&self, at: usize) -> Option<PersistentHandle> {
        let head = self.load(at);
        let (kind, len) = (head as u32 as i32, (head >> 32) as u32);
        let mut bytes = SmallVec::new();
        bytes.resize(usize::try_from(len).ok().filter(|len| *len <= HANDLE_BYTES_MAX)?, 0);
        self.0.read_at(at + 8, &mut bytes).ok()?;
        Some(PersistentHandle { kind, bytes })
    }

    /// Stores a handle. Returns `true` if there is one and it fits.
    fn store_handle(&self, at: usize, handle: Option<&PersistentHandle>) -> bool {
        let handle = handle.filter(|handle| handle.bytes.len() <= HANDLE_BYTES_MAX);
        let (kind, len) =
            handle.map_or((0, NO_HANDLE), |handle| (handle.kind as u32, handle.bytes.len() as u32));
        if let Some(handle) = handle {
            let _ = self.0.write_at(at + 8, &handle.bytes);
        }
        self.store(at, u64::from(kind) | u64::from(len) << 32);
        handle.is_some()
    }

    fn load(&self, at: usize) -> u64 {
        // The address is in bounds and aligned: indices are below their table's length.
        let found: Result<u64, OutOfBounds> = self.0.load_u64(at, Ordering::Acquire);
        found.map_or(0, u64::from_le)
    }

    /// Stores a word in program order: a killed process leaves the stores before its death, and none after.
    fn store(&self, at: usize, value: u64) {
        let stored = self.0.store_u64(at, value.to_le(), Ordering::Release);
        debug_assert!(stored.is_ok());
    }
}

/// Returns the flags for reopening: without one-time effects.
pub(super) fn reopen_flags(flags: OpenFlags) -> OpenFlags {
    flags - OpenFlags::TRUNCATE - OpenFlags::KILL_PRIVILEGES
}

impl From<Number> for NodeId {
    fn from(number: Number) -> Self {
        Self(number.0)
    }
}

impl From<Number> for OpenId {
    fn from(number: Number) -> Self {
        Self(number.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn area() -> Area {
        let memory = tombolo_sys::memfd::create("test", AREA_BYTES as u64).expect("memory");
        Area::new(Region::map(memory, 0, AREA_BYTES).expect("mapped")).expect("long enough")
    }

    fn handle(len: usize) -> PersistentHandle {
        PersistentHandle { kind: -7, bytes: (0..len as u8).collect() }
    }

    #[test]
    fn record_is_found_only_by_its_current_number() {
        let area = area();
        let last = NODES_MAX - 1;
        let first = area.put_node(last, Some(&handle(104)));
        assert_eq!(
            (area.find(Records::Nodes, first), area.node_handle(last)),
            (Some(last), Some(handle(104)))
        );
        area.look_up(last);
        assert!(!area.forget(last, 1) && area.forget(last, 1));
        assert_eq!(area.find(Records::Nodes, first), None);
        let second = area.put_node(last, Some(&handle(105)));
        assert_eq!((area.find(Records::Nodes, first), area.find(Records::Nodes, second)), (None, Some(last)));
        assert_eq!(area.node_handle(last), None, "one that is too long is none");
        let opening = Opening { node: second.into(), flags: OpenFlags::READ | OpenFlags::APPEND, unique: 3 };
        let number = area.put_opening(OPENINGS_MAX - 1, opening);
        assert_eq!(area.find(Records::Openings, number).map(|index| area.opening(index)), Some(opening));
    }

    #[test]
    fn an_area_is_of_one_root_alone() {
        let area = area();
        assert!(area.is_of(Volume([1; 16]), &handle(9)) && area.is_of(Volume([1; 16]), &handle(9)));
        assert!(!area.is_of(Volume([1; 16]), &handle(8)) && !area.is_of(Volume([2; 16]), &handle(9)));
        assert!(Area::new(Region::heap(4096)).is_none());
    }

    #[test]
    fn arbitrary_area_contents_stay_in_bounds() {
        for byte in [0xFF, 0x01, 0x80] {
            let area = area();
            area.0.write_at(0, &[byte; 2 * HEADER_LEN]).expect("inside");
            area.0.write_at(OPENINGS_AT, &[byte; 4096]).expect("inside");
            assert!(!area.is_of(Volume::default(), &handle(1)));
            for number in (0..64).map(|bit| Number(1 << bit)).chain([Number(u64::MAX)]) {
                for records in [Records::Nodes, Records::Openings] {
                    assert!(area.used(records) <= records.max());
                    let index = area.find(records, number).unwrap_or(number.index(records));
                    assert!(index < records.max());
                }
                let handle = area.node_handle(number.index(Records::Nodes));
                assert!(handle.is_none_or(|handle| handle.bytes.len() <= HANDLE_BYTES_MAX));
                area.opening(number.index(Records::Openings));
            }
        }
    }
}
