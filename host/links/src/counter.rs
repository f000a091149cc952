//! Counters of a link.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter with one writer at a time, which needs no locked instruction.
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
