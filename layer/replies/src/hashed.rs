//! Keys with a precomputed hash, for look-ups in several maps. The hash is keyed, so that clients cannot
//! cause collisions.

use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher};

/// A key and its hash, computed once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hashed<K> {
    pub key: K,
    pub hash: u64,
}

impl<K: Hash> Hashed<K> {
    pub fn new(key: K, hasher: &impl BuildHasher) -> Self {
        let hash = hasher.hash_one(&key);
        Self { key, hash }
    }
}

impl<K> Hash for Hashed<K> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// Builder of [`PrecomputedHasher`]s, for maps with [`Hashed`] keys.
pub(super) type BuildPrecomputed = BuildHasherDefault<PrecomputedHasher>;

/// Hasher that returns the precomputed hash of a key unchanged.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PrecomputedHasher(u64);

impl Hasher for PrecomputedHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        // Never called for a `Hashed`; other keys get some hash.
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}
