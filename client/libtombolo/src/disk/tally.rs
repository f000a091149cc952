//! Progress of a walk over a disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Progress of a copy or comparison of disks so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Bytes of the disk that are done, including those of earlier runs.
    pub done_bytes: u64,
    /// Bytes written, or read and compared, in this run.
    pub data_bytes: u64,
    /// Bytes that are zero, in holes or in data, in this run.
    pub zero_bytes: u64,
}

/// A tally that others can watch.
#[derive(Clone, Debug, Default)]
pub struct Watched(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    done_bytes: AtomicU64,
    data_bytes: AtomicU64,
    zero_bytes: AtomicU64,
}

impl Watched {
    /// Returns the present tally.
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
