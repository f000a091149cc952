//! Counter for the statistics of a link, on both its sides.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter with one writer at a time: `bump` needs no locked instruction, but is no atomic increment.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    #[inline]
    pub(super) fn bump(&self) {
        self.0.store(self.get() + 1, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
