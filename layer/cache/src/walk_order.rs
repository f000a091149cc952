//! Queue of the directories to prefetch, in the order in which a walk visits them: depth first, and the
//! subdirectories of one directory in the order of its listing.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::store::ObjectId;

/// Queue of directories to list, ordered as a walk needs them.
#[derive(Debug)]
pub(crate) struct WalkOrder<T> {
    queue: BTreeMap<Place, (ObjectId, T)>,
    /// Places of all directories added, also of those taken out, with which places of subdirectories begin.
    places: HashMap<ObjectId, Place>,
    /// Number of walks begun.
    beginnings: u32,
}

/// Position of a directory in a walk: the number of the walk, counted down so that the latest one is first,
/// then for each directory on the path from the walk's first one its index among the subdirectories added.
type Place = Arc<[u32]>;

/// Maximum length of a place; a directory at a greater depth counts as the beginning of another walk.
const DEPTH_MAX: usize = 64;

/// Maximum number of places; beyond that, those of taken directories are dropped.
const PLACES_MAX: usize = 1 << 17;

impl<T> Default for WalkOrder<T> {
    fn default() -> Self {
        Self { queue: BTreeMap::new(), places: HashMap::new(), beginnings: 0 }
    }
}

impl<T> WalkOrder<T> {
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Adds the subdirectories `below` of a directory, except those added before. If `dir` itself was not
    /// added before, they precede all others: a client has begun a walk in `dir`.
    pub(crate) fn add_below(&mut self, dir: ObjectId, below: impl Iterator<Item = (ObjectId, T)>) {
        let known = self.places.get(&dir).filter(|place| place.len() < DEPTH_MAX).cloned();
        let above = known.unwrap_or_else(|| self.beginning());
        for ((id, value), number) in below.zip(0..) {
            if let Entry::Vacant(new) = self.places.entry(id) {
                let place: Place = above.iter().copied().chain([number]).collect();
                new.insert(place.clone());
                self.queue.insert(place, (id, value));
            }
        }
        if self.places.len() > PLACES_MAX {
            self.places = self.queue.iter().map(|(place, (id, _))| (*id, place.clone())).collect();
        }
    }

    /// Adds a directory before all others, unless it was added before.
    pub(crate) fn add_first(&mut self, dir: ObjectId, value: T) {
        if !self.places.contains_key(&dir) {
            let place = self.beginning();
            self.places.insert(dir, place.clone());
            self.queue.insert(place, (dir, value));
        }
    }

    pub(crate) fn take(&mut self) -> Option<T> {
        self.queue.pop_first().map(|(_, (_, value))| value)
    }

    /// Forgets all directories, so that they can be added again.
    pub(crate) fn forget(&mut self) {
        *self = Self::default();
    }

    fn beginning(&mut self) -> Place {
        self.beginnings += 1;
        [u32::MAX - self.beginnings].into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(order: &mut WalkOrder<u64>, dir: u64, below: &[u64]) {
        order.add_below(ObjectId(dir), below.iter().map(|&below| (ObjectId(below), below)));
    }

    fn rest(mut order: WalkOrder<u64>) -> Vec<u64> {
        std::iter::from_fn(|| order.take()).collect()
    }

    #[test]
    fn directories_are_in_walk_order_regardless_of_listing_order() {
        let mut order = WalkOrder::default();
        add(&mut order, 0, &[1, 2, 3]);
        assert_eq!([order.take(), order.take(), order.take()], [Some(1), Some(2), Some(3)]);
        add(&mut order, 3, &[31, 32]);
        add(&mut order, 1, &[11, 12]);
        add(&mut order, 2, &[21]);
        assert_eq!(order.take(), Some(11));
        add(&mut order, 11, &[111, 112]);
        assert_eq!(rest(order), [111, 112, 12, 21, 31, 32]);
    }

    #[test]
    fn current_position_is_first_and_nothing_repeats() {
        let mut order = WalkOrder::default();
        add(&mut order, 0, &[1, 2]);
        add(&mut order, 50, &[51, 2, 52]);
        order.add_first(ObjectId(60), 60);
        order.add_first(ObjectId(51), 51);
        assert_eq!(rest(order), [60, 51, 52, 1, 2]);
    }

    #[test]
    fn remembered_directories_are_bounded() {
        let mut order = WalkOrder::default();
        for n in 0..PLACES_MAX as u64 {
            add(&mut order, n, &[n + 1]);
            assert_eq!(order.take(), Some(n + 1));
        }
        assert!(
            order.places.len() <= PLACES_MAX && order.places.values().all(|place| place.len() <= DEPTH_MAX)
        );
    }
}
