//! Work in progress by key, and notification of its end.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex};

use tombolo_core::{Interrupt, Raised};

use crate::lock;

/// Number of operations in progress, by key.
#[derive(Debug)]
pub struct Pending<K>(Arc<Mutex<HashMap<K, (usize, Interrupt)>>>);

/// A guard that counts one operation.
#[derive(Debug)]
pub struct PendingGuard<K: Copy + Eq + Hash> {
    all: Pending<K>,
    key: K,
}

impl<K> Default for Pending<K> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K: Copy + Eq + Hash> Pending<K> {
    /// Counts an operation until the guard is dropped.
    pub fn begin(&self, key: K) -> PendingGuard<K> {
        lock(&self.0).entry(key).or_insert_with(|| (0, Interrupt::new())).0 += 1;
        PendingGuard { all: Self(self.0.clone()), key }
    }

    /// Returns a future for the end of all operations on a key, if there are any.
    pub fn end(&self, key: K) -> Option<Raised> {
        lock(&self.0).get(&key).map(|(_, over)| over.raised())
    }
}

impl<K: Copy + Eq + Hash> Drop for PendingGuard<K> {
    fn drop(&mut self) {
        let mut all = lock(&self.all.0);
        let Some((count, _)) = all.get_mut(&self.key) else { return };
        *count -= 1;
        let over = if *count == 0 { all.remove(&self.key) } else { None };
        drop(all);
        // Interrupts are raised outside of the lock, because waiters may run on this thread.
        over.iter().for_each(|(_, over)| over.raise());
    }
}
