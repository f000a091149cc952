//! What is under way for some key, and the event that all of it has ended.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex};

use tombolo_core::{Interrupt, Raised};

use crate::lock;

/// Counts what is under way, by key.
#[derive(Debug)]
pub struct Pending<K>(Arc<Mutex<HashMap<K, (usize, Interrupt)>>>);

/// Held while something is under way.
#[derive(Debug)]
pub struct PendingHold<K: Copy + Eq + Hash> {
    all: Pending<K>,
    key: K,
}

impl<K> Default for Pending<K> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K: Copy + Eq + Hash> Pending<K> {
    /// Something begins. It ends when the answer is dropped.
    pub fn begin(&self, key: K) -> PendingHold<K> {
        lock(&self.0).entry(key).or_insert_with(|| (0, Interrupt::new())).0 += 1;
        PendingHold { all: Self(self.0.clone()), key }
    }

    /// The end of all that is under way for a key, if anything is.
    pub fn end(&self, key: K) -> Option<Raised> {
        lock(&self.0).get(&key).map(|(_, over)| over.raised())
    }
}

impl<K: Copy + Eq + Hash> Drop for PendingHold<K> {
    fn drop(&mut self) {
        let mut all = lock(&self.all.0);
        let Some((count, _)) = all.get_mut(&self.key) else { return };
        *count -= 1;
        let over = if *count == 0 { all.remove(&self.key) } else { None };
        drop(all);
        // Outside of the lock: those that wait may go on here.
        over.iter().for_each(|(_, over)| over.raise());
    }
}
