//! Counters of a copy.

use std::sync::atomic::{AtomicU64, Ordering};

/// Progress of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Regular files that were copied, hard links among them.
    pub files: u64,
    /// Directories that were created or entered.
    pub directories: u64,
    /// Symbolic links, pipes, sockets and devices that were created.
    pub others: u64,
    /// Files that were skipped because they exist already.
    pub skipped: u64,
    /// Number of failures.
    pub failed: u64,
    /// Parts that were left for a later copy.
    pub parts_kept: u64,
    /// Bytes of file data that are done: copied, or known to be zero or present already.
    pub size_bytes: u64,
    /// The part of `size_bytes` that was written.
    pub written_bytes: u64,
    /// Bytes of all regular files found so far.
    pub met_bytes: u64,
    /// Number of all files and links found so far.
    pub met_files: u64,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub files: AtomicU64,
    pub directories: AtomicU64,
    pub others: AtomicU64,
    pub skipped: AtomicU64,
    pub failed: AtomicU64,
    pub parts_kept: AtomicU64,
    pub size_bytes: AtomicU64,
    pub written_bytes: AtomicU64,
    pub met_bytes: AtomicU64,
    pub met_files: AtomicU64,
}

impl Counters {
    pub fn tally(&self) -> Tally {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Tally {
            files: of(&self.files),
            directories: of(&self.directories),
            others: of(&self.others),
            skipped: of(&self.skipped),
            failed: of(&self.failed),
            parts_kept: of(&self.parts_kept),
            size_bytes: of(&self.size_bytes),
            written_bytes: of(&self.written_bytes),
            met_bytes: of(&self.met_bytes),
            met_files: of(&self.met_files),
        }
    }

    /// Counts data that were written.
    pub fn wrote(&self, count: usize) {
        self.written_bytes.fetch_add(count as u64, Ordering::Relaxed);
        self.size_bytes.fetch_add(count as u64, Ordering::Relaxed);
    }

    /// Counts data that needed no write.
    pub fn passed(&self, count: u64) {
        self.size_bytes.fetch_add(count, Ordering::Relaxed);
    }
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
