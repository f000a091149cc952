//! Progress of a walk over a disk.

use std::sync::Arc;

tombolo_core::counters! {
    pub(super) struct Counts;

    /// Progress of a walk over a disk so far.
    pub struct Tally {
        /// Bytes of the disk that are done, including those of earlier runs.
        done_bytes,
        /// Bytes written or read, in this run, other than zeroes.
        data_bytes,
        /// Bytes found to be zero, in this run.
        zero_bytes,
    }
}

/// A tally that the walk updates and other threads can read.
#[derive(Clone, Debug, Default)]
pub struct Watched(Arc<Counts>);

impl Watched {
    /// Returns the present tally.
    pub fn tally(&self) -> Tally {
        self.0.read()
    }

    pub(super) fn found_done(&self, bytes: u64) {
        self.0.done_bytes.add(bytes);
    }

    pub(super) fn data(&self, bytes: u64) {
        self.0.data_bytes.add(bytes);
        self.found_done(bytes);
    }

    pub(super) fn zeroes(&self, bytes: u64) {
        self.0.zero_bytes.add(bytes);
        self.found_done(bytes);
    }
}
