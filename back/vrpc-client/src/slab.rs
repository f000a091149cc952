//! Ids assigned by a session, each with the server's id of the same object on some link.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use tombolo_core::lock;

/// Objects by id. The server's id of an object is read without a lock.
///
/// An id consists of a slot number, from 1 on, and above it the slot's generation, so that a new object is
/// not mistaken for a former one in the same slot.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    /// Chunks of slots, each with twice as many as the one before. They are never freed, so that a slot can
    /// be read without a lock.
    chunks: [OnceLock<Box<[Slot<T>]>>; CHUNKS],
    free: Mutex<Free>,
}

/// Number of chunks: enough for all slot numbers of 32 bits.
const CHUNKS: usize = 27;
/// Number of slots in the first chunk; a power of two.
const FIRST_LEN: u64 = 64;

#[derive(Debug, Default)]
struct Free {
    slots: Vec<u32>,
    /// First slot that was never used.
    unused: u32,
}

#[derive(Debug)]
struct Slot<T> {
    generation: AtomicU32,
    /// Number of the link on which `server_id` is the object's id; stored after `server_id`, so that a reader
    /// sees that id or one of a later link.
    link: AtomicU32,
    server_id: AtomicU64,
    value: Mutex<Option<T>>,
}

/// The id of an object at a link's server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerId {
    /// The server knows the object by this id.
    Bound(u64),
    /// The object has no id at the server yet, and may not exist there.
    Unbound,
    /// The object does not exist any more.
    Gone,
}

/// An object of a slab, with its slot locked.
pub(crate) struct SlabEntry<'a, T> {
    pub(crate) value: &'a mut T,
    slot: &'a Slot<T>,
}

impl<T> SlabEntry<'_, T> {
    /// Returns the object's id at the server of a link; `None` if it is not bound there.
    pub(crate) fn server_id(&self, link: u32) -> Option<u64> {
        (self.slot.link.load(Ordering::Acquire) == link).then(|| self.slot.server_id.load(Ordering::Relaxed))
    }

    /// Sets the object's id at the server of that link; `false` if it is bound on a later link.
    pub(crate) fn bind(&self, link: u32, server_id: u64) -> bool {
        let is_newer = self.slot.link.load(Ordering::Acquire) <= link;
        if is_newer {
            self.slot.server_id.store(server_id, Ordering::Relaxed);
            self.slot.link.store(link, Ordering::Release);
        }
        is_newer
    }

    /// Unbinds the object. Returns the link on which it was bound and its id there, if any.
    pub(crate) fn unbind(&self) -> Option<(u32, u64)> {
        self.slot.unbind()
    }
}

impl<T> Slot<T> {
    fn unbind(&self) -> Option<(u32, u64)> {
        let link = self.link.swap(0, Ordering::AcqRel);
        (link != 0).then(|| (link, self.server_id.load(Ordering::Relaxed)))
    }
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        let free = Mutex::new(Free { slots: Vec::new(), unused: 1 });
        Self { chunks: [const { OnceLock::new() }; CHUNKS], free }
    }
}

impl<T> Slab<T> {
    pub(crate) fn insert(&self, thing: T, link: u32, server_id: u64) -> u64 {
        let at = {
            let mut free = lock(&self.free);
            free.slots.pop().unwrap_or_else(|| {
                let at = free.unused;
                // Memory would not suffice for so many slots that the number overflows.
                free.unused = at.saturating_add(1);
                at
            })
        };
        let slot = self.made(at);
        let mut content = lock(&slot.value);
        slot.server_id.store(server_id, Ordering::Relaxed);
        slot.link.store(link, Ordering::Release);
        *content = Some(thing);
        number(at, slot.generation.load(Ordering::Acquire))
    }

    /// Returns the object's id at the server of that link.
    #[inline]
    pub(crate) fn server_id(&self, number: u64, link: u32) -> ServerId {
        let Some(slot) = self.slot(number) else { return ServerId::Gone };
        if slot.generation.load(Ordering::Acquire) != generation(number) {
            return ServerId::Gone;
        }
        if slot.link.load(Ordering::Acquire) == link {
            ServerId::Bound(slot.server_id.load(Ordering::Relaxed))
        } else {
            ServerId::Unbound
        }
    }

    /// Calls `look` with an object; `None` if it does not exist.
    pub(crate) fn with<R>(&self, number: u64, look: impl FnOnce(SlabEntry<'_, T>) -> R) -> Option<R> {
        let slot = self.slot(number)?;
        let mut content = lock(&slot.value);
        if slot.generation.load(Ordering::Acquire) != generation(number) {
            return None;
        }
        content.as_mut().map(|thing| look(SlabEntry { value: thing, slot }))
    }

    /// Removes an object. Also returns the link on which it was bound and its id there, if any.
    pub(crate) fn remove(&self, number: u64) -> Option<(T, Option<(u32, u64)>)> {
        let slot = self.slot(number)?;
        let removed = {
            let mut content = lock(&slot.value);
            if slot.generation.load(Ordering::Acquire) != generation(number) {
                return None;
            }
            let removed = (content.take()?, slot.unbind());
            slot.generation.fetch_add(1, Ordering::AcqRel);
            removed
        };
        lock(&self.free).slots.push(at(number));
        Some(removed)
    }

    pub(crate) fn numbers(&self) -> Vec<u64> {
        let unused = lock(&self.free).unused;
        let slots = (1..unused).filter_map(|at| self.at(at).map(|slot| (at, slot)));
        let taken = slots.filter(|(_, slot)| lock(&slot.value).is_some());
        taken.map(|(at, slot)| number(at, slot.generation.load(Ordering::Acquire))).collect()
    }

    #[inline]
    fn slot(&self, number: u64) -> Option<&Slot<T>> {
        self.at(at(number))
    }

    #[inline]
    fn at(&self, at: u32) -> Option<&Slot<T>> {
        let (chunk, index) = position(at);
        self.chunks.get(chunk)?.get()?.get(index)
    }

    fn made(&self, at: u32) -> &Slot<T> {
        let (chunk, index) = position(at);
        // All positions are within the array and its chunk.
        let slots = self.chunks[chunk].get_or_init(|| {
            let empty = || Slot {
                generation: AtomicU32::new(0),
                link: AtomicU32::new(0),
                server_id: AtomicU64::new(0),
                value: Mutex::new(None),
            };
            (0..FIRST_LEN << chunk).map(|_| empty()).collect()
        });
        &slots[index]
    }
}

/// Returns the chunk of a slot, and its index there.
#[inline]
fn position(at: u32) -> (usize, usize) {
    let from_first = u64::from(at) + FIRST_LEN;
    let chunk = from_first.ilog2() - FIRST_LEN.ilog2();
    (chunk as usize, (from_first - (FIRST_LEN << chunk)) as usize)
}

#[inline]
fn at(number: u64) -> u32 {
    number as u32
}

#[inline]
fn generation(number: u64) -> u32 {
    (number >> 32) as u32
}

fn number(at: u32, generation: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_that_is_given_anew_has_another_number() {
        let slab = Slab::default();
        let first = slab.insert("a", 1, 70);
        assert_eq!(first, 1);
        assert_eq!(slab.server_id(first, 1), ServerId::Bound(70));
        assert_eq!(slab.server_id(first, 2), ServerId::Unbound);
        assert_eq!(slab.remove(first), Some(("a", Some((1, 70)))));
        let second = slab.insert("b", 1, 71);
        assert_ne!(second, first);
        assert_eq!(slab.server_id(first, 1), ServerId::Gone);
        assert_eq!(slab.with(first, |_| ()), None);
        assert_eq!(slab.remove(first), None);
        assert_eq!(slab.numbers(), [second]);
        for made_up in [0, 2, u64::MAX, u64::from(u32::MAX), 1 << 33] {
            assert!(!matches!(slab.server_id(made_up, 1), ServerId::Bound(_)), "{made_up}");
            assert_eq!(slab.with(made_up, |_| ()), None);
        }
    }

    #[test]
    fn late_numbers_of_an_older_link_change_nothing() {
        let slab = Slab::default();
        let number = slab.insert((), 1, 70);
        slab.with(number, |held| held.bind(3, 90));
        slab.with(number, |held| held.bind(2, 80));
        assert_eq!(slab.server_id(number, 3), ServerId::Bound(90));
        slab.with(number, |held| held.unbind());
        assert_eq!(slab.server_id(number, 3), ServerId::Unbound);
    }

    #[test]
    fn every_slot_is_its_own() {
        let slab = Slab::default();
        let numbers: Vec<u64> = (0..5000).map(|thing| slab.insert(thing, 1, thing)).collect();
        for (thing, number) in (0..).zip(&numbers) {
            assert_eq!(slab.server_id(*number, 1), ServerId::Bound(thing));
        }
        assert_eq!(position(0), (0, 0));
        assert_eq!(position(63), (0, 63));
        assert_eq!(position(64), (1, 0));
        assert!(position(u32::MAX).0 < CHUNKS);
    }
}
