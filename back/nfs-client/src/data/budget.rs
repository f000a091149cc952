//! State shared by all files of a mount.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tombolo_host_runtime::buffer_pool::{BufferLimits, Buffers};
use tombolo_mem::Source;

use super::allowance::{Allowance, Charge};
use super::memory::Memory;

/// What is read ahead for all openings of a mount together takes no more than this.
const AHEAD_BYTES_MAX: usize = 64 << 20;
/// So much of either kind of buffer is cached while unused.
const RETAINED_BYTES: usize = 16 << 20;
/// So many files are made stable at a time because memory runs out.
const RELIEVED_MAX: usize = 16;

/// The memory of a mount: for written bytes that the server does not have for good, and for bytes that are
/// read ahead.
pub(crate) struct Budget {
    pub(super) written: Arc<Allowance>,
    pub(super) ahead: Buffers,
    copies: Buffers,
    copied_bytes: AtomicU64,
    files: Mutex<Files>,
}

/// The files that hold written bytes, in the order in which they began to.
#[derive(Default)]
struct Files {
    next: u64,
    by_number: BTreeMap<u64, Arc<dyn Relieve>>,
}

/// A file that can be rid of what it holds.
pub(super) trait Relieve: Send + Sync {
    /// Sends a COMMIT for it, unless one is under way.
    fn relieve(&self);
}

/// A file's place in the list of those that hold written bytes.
#[derive(Debug)]
pub(super) struct Registration(u64);

impl Budget {
    /// At most so many written bytes are held.
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

    /// Bytes of file data that were copied because the writer might have changed them: so far, of all files.
    pub(crate) fn copied_bytes(&self) -> u64 {
        self.copied_bytes.load(Ordering::Relaxed)
    }

    /// Written bytes that are held.
    pub(crate) fn held_bytes(&self) -> usize {
        self.written.used_bytes()
    }

    /// Copies what is to be held, with `spare_bytes` more at its end.
    pub(super) fn copy(&self, from: &Source, spare_bytes: usize, charge: Charge) -> Memory {
        self.count_copied(from.len());
        Memory::copy(from, spare_bytes, &self.copies, charge)
    }

    pub(super) fn count_copied(&self, bytes: usize) {
        self.copied_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// A file holds written bytes from now on.
    pub(super) fn register(&self, file: Arc<dyn Relieve>) -> Registration {
        let mut files = self.files();
        let number = files.next;
        files.next += 1;
        files.by_number.insert(number, file);
        Registration(number)
    }

    /// A file holds none any more.
    pub(super) fn unregister(&self, listed: &Registration) {
        let gone = self.files().by_number.remove(&listed.0);
        drop(gone);
    }

    /// If memory is scarce that only waits for a COMMIT, sends some, so that writers need not wait. To be
    /// called with no lock held.
    pub(super) fn relieve(&self) {
        if !self.written.is_scarce() {
            return;
        }
        let files: Vec<_> = self.files().by_number.values().take(RELIEVED_MAX).cloned().collect();
        for file in files {
            file.relieve();
        }
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Budget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Budget").field("written", &self.written).field("ahead", &self.ahead).finish()
    }
}
