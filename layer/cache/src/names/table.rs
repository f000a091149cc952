//! Compact table of names: a directory may have a million.
//!
//! The bytes of all names are stored consecutively, each name has a slot of 24 bytes, and an index has some
//! five to ten bytes for each. A new name always gets the last position, so slots are ordered by position.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use hashbrown::HashTable;
use tombolo_core::fs::FileType;

use super::Target;
use crate::store::ObjectId;

/// Names with their positions and targets.
#[derive(Debug, Default)]
pub(super) struct Table {
    hasher: RandomState,
    bytes: Vec<u8>,
    slots: Vec<Slot>,
    /// Slots of all names, also those without a known target, by the name's hash.
    index: HashTable<u32>,
    /// Number of names without a known target.
    unknown: usize,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    place: u64,
    object: ObjectId,
    /// Offset of the name's bytes: 40 bits.
    start: u32,
    start_high: u8,
    len: u8,
    file_type: FileType,
    state: State,
}

const _: () = assert!(size_of::<Slot>() == 24);

/// State of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Target known, but not confirmed yet by the listing being stored.
    Known,
    /// Target known, and confirmed by the listing stored last or now, or set since.
    Listed,
    /// Target unknown; the position is reserved for when the name returns.
    Unknown,
    /// Removed name; its slot is dropped when slots are packed.
    Removed,
}

/// Minimum number of removed slots for which slots are packed.
const REMOVED_MIN: usize = 64;

impl Table {
    pub(super) fn unknown(&self) -> usize {
        self.unknown
    }

    pub(super) fn heap_bytes(&self) -> usize {
        let of_index = self.index.capacity() * (size_of::<u32>() + 1) * 8 / 7;
        self.bytes.capacity() + self.slots.capacity() * size_of::<Slot>() + of_index
    }

    /// Returns the position of a name, and its target if known.
    pub(super) fn find(&self, name: &[u8]) -> Option<(u64, Option<Target>)> {
        let slot = self.slots.get(self.slot_of(name)?)?;
        Some((slot.place, slot.target()))
    }

    /// Sets the target of a name of the table. Returns `true` if it has changed.
    pub(super) fn set(&mut self, name: &[u8], target: Target) -> bool {
        let Some(slot) = self.slot_of(name).and_then(|slot| self.slots.get_mut(slot)) else { return false };
        let is_new = slot.target() != Some(target);
        self.unknown -= usize::from(slot.state == State::Unknown);
        (slot.object, slot.file_type, slot.state) = (target.object, target.file_type, State::Listed);
        is_new
    }

    /// Appends a new name at a position after all others. A name of excessive length is ignored.
    pub(super) fn push(&mut self, name: &[u8], place: u64, target: Target) {
        let (Ok(len), Ok(number)) = (u8::try_from(name.len()), u32::try_from(self.slots.len())) else {
            return;
        };
        let start = self.bytes.len();
        let Ok(high) = u8::try_from(start >> 32) else { return };
        let Target { object, file_type } = target;
        let state = State::Listed;
        let (start, start_high) = (start as u32, high);
        self.slots.push(Slot { place, object, start, start_high, len, file_type, state });
        self.bytes.extend_from_slice(name);
        let Self { hasher, bytes, slots, index, .. } = self;
        let hash_of =
            |slot: &u32| hasher.hash_one(slots.get(*slot as usize).map_or(&[][..], |slot| slot.name(bytes)));
        index.insert_unique(hasher.hash_one(name), number, hash_of);
    }

    pub(super) fn remove(&mut self, name: &[u8]) -> Option<u64> {
        let number = self.slot_of(name)?;
        let slot = self.slots.get_mut(number)?;
        let place = slot.place;
        self.unknown -= usize::from(slot.state == State::Unknown);
        slot.state = State::Removed;
        if let Ok(entry) = self.index.find_entry(self.hasher.hash_one(name), |slot| *slot as usize == number)
        {
            entry.remove();
        }
        self.tidy();
        Some(place)
    }

    /// Begins to store a full listing, which has not confirmed any name yet.
    pub(super) fn begin_listing(&mut self) {
        let listed = self.slots.iter_mut().filter(|slot| slot.state == State::Listed);
        listed.for_each(|slot| slot.state = State::Known);
    }

    /// Ends the storing of a full listing: removes the names that the listing lacks. Returns their positions.
    pub(super) fn end_listing(&mut self) -> Vec<u64> {
        self.remove_all(|state| matches!(state, State::Known | State::Unknown))
    }

    pub(super) fn drop_unknown(&mut self) {
        self.remove_all(|state| state == State::Unknown);
    }

    /// Removes the names in these states, which must include [`State::Unknown`]. Returns their positions.
    fn remove_all(&mut self, is_gone: impl Fn(State) -> bool) -> Vec<u64> {
        let mut gone = Vec::new();
        for slot in &mut self.slots {
            if slot.state != State::Removed && is_gone(slot.state) {
                slot.state = State::Removed;
                gone.push(slot.place);
            }
        }
        self.unknown = 0;
        let slots = &self.slots;
        let is_here = |slot: &u32| slots.get(*slot as usize).is_some_and(|slot| slot.state != State::Removed);
        self.index.retain(|slot| is_here(slot));
        self.tidy();
        gone
    }

    /// Marks all targets as unknown.
    pub(super) fn forget(&mut self) {
        let here = self.slots.iter_mut().filter(|slot| slot.state != State::Removed);
        here.for_each(|slot| slot.state = State::Unknown);
        self.unknown = self.index.len();
    }

    /// Iterates over the names with known targets from a position on, in order.
    pub(super) fn from(&self, place: u64) -> impl Iterator<Item = (u64, &[u8], Target)> {
        let first = self.slots.partition_point(|slot| slot.place < place);
        let slots = self.slots.get(first..).unwrap_or_default().iter();
        slots.filter_map(|slot| Some((slot.place, slot.name(&self.bytes), slot.target()?)))
    }

    /// Iterates over the positions of all names, also of those without a known target.
    pub(super) fn places(&self) -> impl Iterator<Item = u64> {
        self.slots.iter().filter(|slot| slot.state != State::Removed).map(|slot| slot.place)
    }

    fn slot_of(&self, name: &[u8]) -> Option<usize> {
        let slot = |number: &u32| self.slots.get(*number as usize);
        let is_name = |number: &u32| slot(number).is_some_and(|slot| slot.name(&self.bytes) == name);
        self.index.find(self.hasher.hash_one(name), is_name).map(|number| *number as usize)
    }

    /// Packs the slots together if at least half are of removed names.
    fn tidy(&mut self) {
        let removed = self.slots.len() - self.index.len();
        if removed < REMOVED_MIN || removed < self.slots.len() / 2 {
            return;
        }
        let before = std::mem::take(self);
        self.hasher = before.hasher;
        self.unknown = before.unknown;
        let left = before.slots.iter().filter(|slot| slot.state != State::Removed);
        self.slots.reserve_exact(before.index.len());
        for slot in left {
            self.push(
                slot.name(&before.bytes),
                slot.place,
                Target { object: slot.object, file_type: slot.file_type },
            );
            if let Some(last) = self.slots.last_mut() {
                last.state = slot.state;
            }
        }
    }
}

impl Slot {
    fn name<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        let start = usize::from(self.start_high) << 32 | self.start as usize;
        bytes.get(start..start + usize::from(self.len)).unwrap_or_default()
    }

    fn target(&self) -> Option<Target> {
        let Self { object, file_type, .. } = *self;
        matches!(self.state, State::Known | State::Listed).then_some(Target { object, file_type })
    }
}
