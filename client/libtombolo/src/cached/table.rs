//! A concurrent table of bounded size.

use std::hash::{BuildHasher, Hash, Hasher, RandomState};

use quick_cache::sync::Cache;
use quick_cache::{Equivalent, Lifecycle, OptionsBuilder, Weighter};

/// Values with a number and a byte string as key, evicted by recency. An evicted value is dropped outside all
/// locks, as dropping it may send a request.
pub(super) struct Table<V: Weighed>(Cache<Key, V, ByWeight, Seed, DroppedLater>);

/// A value with a size in memory.
pub(super) trait Weighed: Clone {
    /// Returns the weight of the value without its key, in the unit of the table.
    fn weight(&self) -> u64;
}

impl<V: Weighed> Table<V> {
    /// Creates a table of at most `weight_max` that accepts values of a weight up to `largest`; `items` is
    /// their expected number.
    pub fn new(weight_max: u64, largest: u64, items: usize) -> Self {
        // Each shard must have space for the largest value, and still have a choice of values to evict.
        let parts = (weight_max / largest.max(1) / 4).clamp(1, PARTS_MAX) as usize;
        let options = OptionsBuilder::new()
            .estimated_items_capacity(items.max(1))
            .weight_capacity(weight_max.max(1))
            .shards(1 << parts.ilog2())
            .build();
        let options = options.expect("both capacities are set");
        Self(Cache::with_options(options, ByWeight, Seed::new(), DroppedLater))
    }

    /// Returns the value of a key, without allocating.
    #[inline]
    pub fn get(&self, of: u64, bytes: &[u8]) -> Option<V> {
        self.0.get(&KeyRef { of, bytes })
    }

    /// Inserts a value, replacing that of the same key.
    pub fn insert(&self, of: u64, bytes: &[u8], value: V) {
        self.0.insert(Key { of, bytes: bytes.into() }, value);
    }

    pub fn clear(&self) {
        self.0.drain().for_each(drop);
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn weight(&self) -> u64 {
        self.0.weight()
    }
}

/// Maximum number of shards, each with its own lock.
const PARTS_MAX: u64 = 32;

#[derive(PartialEq, Eq, Hash)]
struct Key {
    of: u64,
    bytes: Box<[u8]>,
}

#[derive(Hash)]
struct KeyRef<'a> {
    of: u64,
    bytes: &'a [u8],
}

impl Equivalent<Key> for KeyRef<'_> {
    #[inline]
    fn equivalent(&self, key: &Key) -> bool {
        self.of == key.of && self.bytes == &*key.bytes
    }
}

#[derive(Clone)]
struct ByWeight;

/// Number of bytes of a key that add one unit of weight; a remainder adds none, so an ordinary name is free.
const KEY_BYTES_FREE: u64 = 256;

impl<V: Weighed> Weighter<Key, V> for ByWeight {
    fn weight(&self, key: &Key, value: &V) -> u64 {
        value.weight() + key.bytes.len() as u64 / KEY_BYTES_FREE
    }
}

/// Collects the evicted values of one call, which are dropped after the locks are released.
#[derive(Clone)]
struct DroppedLater;

impl<V> Lifecycle<Key, V> for DroppedLater {
    type RequestState = Vec<(Key, V)>;

    #[inline]
    fn begin_request(&self) -> Self::RequestState {
        Vec::new()
    }

    #[inline]
    fn on_evict(&self, dropped: &mut Self::RequestState, key: Key, value: V) {
        dropped.push((key, value));
    }
}

/// Initial value of hashes, different in each table so that outsiders cannot predict collisions.
#[derive(Clone)]
struct Seed(u64);

impl Seed {
    fn new() -> Self {
        Self(RandomState::new().hash_one(0))
    }
}

impl BuildHasher for Seed {
    type Hasher = Folded;

    #[inline]
    fn build_hasher(&self) -> Folded {
        Folded(self.0)
    }
}

/// A hash that multiplies eight bytes at a time into its state and folds the product.
struct Folded(u64);

/// The fractional digits of the golden ratio in base 2: an odd number without a regular pattern of bits.
const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;

impl Folded {
    #[inline]
    fn add(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word) * u128::from(FACTOR);
        self.0 = (product as u64 ^ (product >> 64) as u64).wrapping_add(FACTOR);
    }
}

impl Hasher for Folded {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| self.add(u64::from_le_bytes(*word)));
        if !rest.is_empty() {
            // The last eight bytes are hashed, if there are so many, although they overlap the words before:
            // they are a single load.
            let last = match bytes.last_chunk::<8>() {
                Some(last) => u64::from_le_bytes(*last),
                None => rest.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)),
            };
            self.add(last);
        }
    }

    #[inline]
    fn write_u8(&mut self, value: u8) {
        self.add(value.into());
    }

    #[inline]
    fn write_u64(&mut self, value: u64) {
        self.add(value);
    }

    #[inline]
    fn write_usize(&mut self, value: usize) {
        self.add(value as u64);
    }

    #[inline]
    fn finish(&self) -> u64 {
        let mut last = Self(self.0);
        last.add(self.0.rotate_left(32));
        last.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_spreads_names_and_covers_every_byte() {
        let seed = Seed::new();
        let hash = |of: u64, bytes: &[u8]| seed.hash_one(KeyRef { of, bytes });
        let mut low = vec![0; 256];
        let mut high = vec![0; 256];
        for number in 0..65_536 {
            let hash = hash(1, format!("some/directory/file-{number}.rs").as_bytes());
            low[hash as usize % 256] += 1;
            high[(hash >> 56) as usize] += 1;
        }
        // Mean 256 per bucket, standard deviation 16.
        for count in low.into_iter().chain(high) {
            assert!((150..400).contains(&count), "{count} in one of 256");
        }
        for len in 0..40 {
            let bytes = vec![b'a'; len];
            for at in 0..len {
                let mut other = bytes.clone();
                other[at] = b'b';
                assert_ne!(hash(1, &bytes), hash(1, &other), "byte {at} of {len}");
            }
            assert_ne!(hash(1, &bytes), hash(2, &bytes));
            assert_ne!(hash(1, &bytes), hash(1, &vec![b'a'; len + 1]));
        }
    }
}
