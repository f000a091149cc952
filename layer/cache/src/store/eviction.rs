//! Eviction by S3-FIFO (Yang et al., SOSP 2023), over whole data files.
//!
//! New files enter a small queue and are evicted from it soon unless they are used again, so a walk over
//! everything does not evict the files in use. Existing crates do not fit: they assume constant weights, but
//! a file grows while it is fetched.
//!
//! Held files, which others read through descriptors of their own, are skipped unless too much is held.

use std::collections::{HashMap, HashSet, VecDeque};

use super::ObjectId;

/// Stored data files, and the queues of S3-FIFO.
#[derive(Debug, Default)]
pub(super) struct Eviction {
    files: HashMap<ObjectId, Kept>,
    small: VecDeque<ObjectId>,
    main: VecDeque<ObjectId>,
    /// Objects recently evicted from the small queue: if fetched again, they enter the main queue.
    ghosts: VecDeque<ObjectId>,
    is_ghost: HashSet<ObjectId>,
    bytes: u64,
    small_bytes: u64,
    held_bytes: u64,
}

/// A stored data file. `is_main`: it is in the main queue. `holds`: number of holds, which spare it.
#[derive(Debug)]
struct Kept {
    /// Generation of the object's data.
    generation: u64,
    bytes: u64,
    /// Count of uses, up to 3, reduced each time that the file is at the head of its queue and spared.
    uses: u8,
    is_main: bool,
    holds: u32,
}

/// Divisor of the stored bytes that gives the size from which the small queue is evicted from first.
const SMALL_PART: u64 = 10;

impl Eviction {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn len(&self) -> usize {
        self.files.len()
    }

    pub(super) fn generation(&self, id: ObjectId) -> Option<u64> {
        self.files.get(&id).map(|kept| kept.generation)
    }

    /// Records that a file has grown by `bytes`. A new file replaces the object's file of an earlier
    /// generation; a file of an earlier generation than the stored one is ignored.
    pub(super) fn add(&mut self, id: ObjectId, generation: u64, bytes: u64) {
        match self.generation(id) {
            Some(kept) if kept > generation => return,
            Some(kept) if kept < generation => self.remove(id, kept),
            _ => {}
        }
        self.bytes += bytes;
        if let Some(kept) = self.files.get_mut(&id) {
            kept.bytes += bytes;
            self.small_bytes += if kept.is_main { 0 } else { bytes };
            self.held_bytes += if kept.holds > 0 { bytes } else { 0 };
            return;
        }
        let is_main = self.is_ghost.remove(&id);
        self.files.insert(id, Kept { generation, bytes, uses: 0, is_main, holds: 0 });
        if is_main {
            self.main.push_back(id);
        } else {
            self.small.push_back(id);
            self.small_bytes += bytes;
        }
    }

    pub(super) fn touch(&mut self, id: ObjectId) {
        if let Some(kept) = self.files.get_mut(&id) {
            kept.uses = (kept.uses + 1).min(3);
        }
    }

    pub(super) fn remove(&mut self, id: ObjectId, generation: u64) {
        if self.generation(id) == Some(generation)
            && let Some(kept) = self.files.remove(&id)
        {
            self.bytes -= kept.bytes;
            self.small_bytes -= if kept.is_main { 0 } else { kept.bytes };
            self.held_bytes -= if kept.holds > 0 { kept.bytes } else { 0 };
        }
    }

    /// Records that `bytes` of a file's data were dropped.
    pub(super) fn shrink(&mut self, id: ObjectId, generation: u64, bytes: u64) {
        if let Some(kept) = self.files.get_mut(&id).filter(|kept| kept.generation == generation) {
            let bytes = bytes.min(kept.bytes);
            kept.bytes -= bytes;
            self.bytes -= bytes;
            self.small_bytes -= if kept.is_main { 0 } else { bytes };
            self.held_bytes -= if kept.holds > 0 { bytes } else { 0 };
        }
    }

    /// Holds these data until they are released as often as they were held. Returns `false` if they are not
    /// stored, or more than `most_bytes` would be held.
    pub(super) fn hold(&mut self, id: ObjectId, generation: u64, most_bytes: u64) -> bool {
        let Some(kept) = self.files.get_mut(&id).filter(|kept| kept.generation == generation) else {
            return false;
        };
        if kept.holds == 0 {
            if self.held_bytes.saturating_add(kept.bytes) > most_bytes {
                return false;
            }
            self.held_bytes += kept.bytes;
        }
        kept.holds += 1;
        true
    }

    pub(super) fn is_held(&self, id: ObjectId) -> bool {
        self.files.get(&id).is_some_and(|kept| kept.holds > 0)
    }

    /// Ends one hold, if the data are still stored.
    pub(super) fn release(&mut self, id: ObjectId, generation: u64) {
        if let Some(kept) = self.files.get_mut(&id).filter(|kept| kept.generation == generation) {
            kept.holds = kept.holds.saturating_sub(1);
            self.held_bytes -= if kept.holds == 0 { kept.bytes } else { 0 };
        }
    }

    /// Removes and returns the next data to evict, if there are any. Held data stay, unless all held data
    /// together exceed `most_bytes`, having grown since.
    pub(super) fn next(&mut self, most_bytes: u64) -> Option<(ObjectId, u64)> {
        // Maximum number of times that held files are skipped, which bounds the loop: a file may be met again
        // while the uses of others are counted down.
        let mut held_left = 4 * (self.small.len() + self.main.len());
        loop {
            let from_small = self.small_bytes * SMALL_PART >= self.bytes || self.main.is_empty();
            let queue = if from_small { &mut self.small } else { &mut self.main };
            let Some(id) = queue.pop_front() else {
                if self.small.is_empty() && self.main.is_empty() {
                    return None;
                }
                self.small_bytes = if from_small { 0 } else { self.small_bytes };
                continue;
            };
            let Some(kept) = self.files.get_mut(&id).filter(|kept| kept.is_main != from_small) else {
                continue;
            };
            let is_held = kept.holds > 0 && self.held_bytes <= most_bytes;
            if kept.uses > 0 || is_held {
                kept.uses = if from_small { 0 } else { kept.uses.saturating_sub(1) };
                if from_small {
                    kept.is_main = true;
                    self.small_bytes -= kept.bytes;
                }
                self.main.push_back(id);
                if is_held {
                    held_left = held_left.checked_sub(1)?;
                }
                continue;
            }
            let generation = kept.generation;
            if from_small {
                self.remember(id);
            }
            self.remove(id, generation);
            return Some((id, generation));
        }
    }

    fn remember(&mut self, id: ObjectId) {
        self.ghosts.push_back(id);
        self.is_ghost.insert(id);
        while self.ghosts.len() > self.files.len().max(16) {
            if let Some(oldest) = self.ghosts.pop_front() {
                self.is_ghost.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64) -> ObjectId {
        ObjectId(number)
    }

    #[test]
    fn a_walk_over_everything_leaves_what_is_used() {
        let mut eviction = Eviction::default();
        (0..100).for_each(|n| eviction.add(id(n), 1, 10));
        (0..100).for_each(|n| eviction.touch(id(n)));
        let mut gone = Vec::new();
        for n in 1000..3000 {
            eviction.add(id(n), 1, 10);
            while eviction.bytes() > 1200 {
                gone.push(eviction.next(40).expect("something").0);
            }
            // The working set stays in use.
            eviction.touch(id(n % 100));
        }
        let lost = gone.iter().filter(|gone| gone.0 < 100).count();
        assert!(lost < 10, "{lost} of the working set");
    }

    #[test]
    fn refetched_data_stay_longer() {
        let mut eviction = Eviction::default();
        (0..20).for_each(|n| eviction.add(id(n), 1, 10));
        let (first, _) = eviction.next(40).expect("one");
        eviction.add(first, 1, 10);
        (100..118).for_each(|n| eviction.add(id(n), 1, 10));
        let next: Vec<_> = std::iter::from_fn(|| eviction.next(40)).map(|(id, _)| id).take(20).collect();
        assert!(!next[..10].contains(&first), "{next:?}");
    }

    #[test]
    fn held_data_stay_until_released() {
        let mut eviction = Eviction::default();
        (0..10).for_each(|n| eviction.add(id(n), 1, 10));
        assert!(eviction.hold(id(3), 1, 40) && eviction.hold(id(3), 1, 40) && eviction.hold(id(7), 1, 40));
        eviction.add(id(7), 1, 20);
        assert!(!eviction.hold(id(5), 1, 40), "too many bytes are held");
        assert!(!eviction.hold(id(7), 2, 99) && !eviction.hold(id(11), 1, 99), "they are not here");
        (0..10).for_each(|n| eviction.touch(id(n)));
        let gone: Vec<_> = std::iter::from_fn(|| eviction.next(40)).map(|(id, _)| id.0).collect();
        assert!(gone.len() == 8 && !gone.contains(&3) && !gone.contains(&7), "{gone:?}");
        eviction.release(id(3), 1);
        assert_eq!(eviction.next(40), None, "it is held once more");
        eviction.release(id(3), 1);
        assert_eq!(eviction.next(40), Some((id(3), 1)));
        eviction.add(id(7), 2, 5);
        eviction.release(id(7), 1);
        assert_eq!((eviction.next(40), eviction.bytes(), eviction.held_bytes), (Some((id(7), 2)), 0, 0));
    }

    #[test]
    fn growing_held_data_do_not_fill_the_cache() {
        let mut eviction = Eviction::default();
        (0..4).for_each(|n| eviction.add(id(n), 1, 10));
        assert!(eviction.hold(id(1), 1, 40) && eviction.hold(id(2), 1, 40));
        eviction.add(id(1), 1, 30);
        let gone: Vec<_> = std::iter::from_fn(|| eviction.next(40)).map(|(id, _)| id.0).collect();
        assert_eq!((gone, eviction.held_bytes), (vec![0, 1, 3], 10));
        eviction.release(id(1), 1);
        assert_eq!((eviction.next(40), eviction.held_bytes), (None, 10), "its hold is over, and no other");
    }

    #[test]
    fn all_can_go_and_bytes_are_counted() {
        let mut eviction = Eviction::default();
        (0..50).for_each(|n| eviction.add(id(n), 1, n));
        (0..50).for_each(|n| eviction.add(id(n), 1, 1));
        (0..25).for_each(|n| eviction.touch(id(n)));
        eviction.remove(id(7), 1);
        assert_eq!(eviction.bytes(), (0..50).sum::<u64>() + 50 - 8);
        let gone: HashSet<_> = std::iter::from_fn(|| eviction.next(40)).collect();
        assert_eq!((gone.len(), eviction.bytes(), eviction.small_bytes, eviction.len()), (49, 0, 0, 0));
    }
}
