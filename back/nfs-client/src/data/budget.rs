//! Memory for data, shared by all files of a mount: its limits, and the files that use it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tombolo_core::lock;
use tombolo_host_runtime::buffer_pool::{BufferLimits, Buffers};
use tombolo_mem::Source;

use super::allowance::{Allowance, Charge};
use super::memory::Memory;

/// Limit of the read-ahead memory of all openings of a mount.
const AHEAD_BYTES_MAX: usize = 64 << 20;
/// Limit of unused memory cached in each buffer pool.
const RETAINED_BYTES: usize = 16 << 20;
/// Maximum number of files that one [`Budget::relieve`] commits.
const RELIEVED_MAX: usize = 16;

/// Memory of a mount: for retained written bytes and for read-ahead.
pub(crate) struct Budget {
    pub(super) written: Arc<Allowance>,
    /// Buffers for read-ahead.
    pub(super) ahead: Buffers,
    /// Buffers for copies of written bytes; unlimited, because `written` limits those.
    copies: Buffers,
    copied_bytes: AtomicU64,
    files: Mutex<Files>,
}

/// Files with retained written bytes, in the order of registration.
#[derive(Default)]
struct Files {
    next: u64,
    by_number: BTreeMap<u64, Arc<dyn Relieve>>,
}

/// A file that can release its retained bytes.
pub(super) trait Relieve: Send + Sync {
    /// Sends a COMMIT, unless one is pending, writes are paused, or no written bytes await one.
    fn relieve(&self);
}

/// Entry of a file in the list of files with retained written bytes.
#[derive(Debug)]
pub(super) struct Registration(u64);

impl Budget {
    /// Creates a budget for at most `dirty_bytes_max` written bytes.
    pub(crate) fn new(dirty_bytes_max: usize) -> Arc<Self> {
        let unlimited = usize::MAX / 2;
        let copies =
            BufferLimits { total_bytes: unlimited, share_bytes: unlimited, retained_bytes: RETAINED_BYTES };
        let ahead = BufferLimits {
            total_bytes: AHEAD_BYTES_MAX,
            share_bytes: AHEAD_BYTES_MAX,
            retained_bytes: RETAINED_BYTES,
        };
        Arc::new(Self {
            written: Allowance::new(dirty_bytes_max),
            ahead: Buffers::new(ahead),
            copies: Buffers::new(copies),
            copied_bytes: AtomicU64::new(0),
            files: Mutex::default(),
        })
    }

    /// Returns the number of bytes copied so far because the writer might have changed them.
    pub(crate) fn copied_bytes(&self) -> u64 {
        self.copied_bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of written bytes retained for all files, including the overhead of their pieces.
    pub(crate) fn held_bytes(&self) -> usize {
        self.written.used_bytes()
    }

    /// Copies data to be retained, with `spare_bytes` more at the end.
    pub(super) fn copy(&self, from: &Source, spare_bytes: usize, charge: Charge) -> Memory {
        self.count_copied(from.len());
        Memory::copy(from, spare_bytes, &self.copies, charge)
    }

    pub(super) fn count_copied(&self, bytes: usize) {
        self.copied_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn register(&self, file: Arc<dyn Relieve>) -> Registration {
        let mut files = lock(&self.files);
        let number = files.next;
        files.next += 1;
        files.by_number.insert(number, file);
        Registration(number)
    }

    /// Unregisters a file that has no retained bytes any more.
    pub(super) fn unregister(&self, listed: &Registration) {
        let gone = lock(&self.files).by_number.remove(&listed.0);
        drop(gone);
    }

    /// Sends COMMITs if memory is scarce, so that writers need not wait. Call it without a lock.
    pub(super) fn relieve(&self) {
        if !self.written.is_scarce() {
            return;
        }
        let files: Vec<_> = lock(&self.files).by_number.values().take(RELIEVED_MAX).cloned().collect();
        for file in files {
            file.relieve();
        }
    }
}

impl std::fmt::Debug for Budget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Budget").field("written", &self.written).field("ahead", &self.ahead).finish()
    }
}
