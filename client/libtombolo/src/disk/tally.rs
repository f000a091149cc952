//! How far a walk over a disk is, for those that show it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What was done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Bytes of the disk that are done, what was found done included.
    pub done_bytes: u64,
    /// Of those that were done now, bytes that were written, or read and compared.
    pub data_bytes: u64,
    /// Of those that were done now, bytes that are zero, in holes or in data.
    pub zero_bytes: u64,
}

/// A tally that others watch.
#[derive(Clone, Debug, Default)]
pub struct Watched(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    done_bytes: AtomicU64,
    data_bytes: AtomicU64,
    zero_bytes: AtomicU64,
}

impl Watched {
    /// As it is now.
    pub fn tally(&self) -> Tally {
        Tally {
            done_bytes: self.0.done_bytes.load(Ordering::Relaxed),
            data_bytes: self.0.data_bytes.load(Ordering::Relaxed),
            zero_bytes: self.0.zero_bytes.load(Ordering::Relaxed),
        }
    }

    pub(super) fn found_done(&self, bytes: u64) {
        self.0.done_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn data(&self, bytes: u64) {
        self.0.data_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.0.done_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn zeroes(&self, bytes: u64) {
        self.0.zero_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.0.done_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}
