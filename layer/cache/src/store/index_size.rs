//! Size of the index, and its bound.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::commit::OBJECTS_MAX;
use super::{Shared, Store, part_of};

/// Divisors of the capacity that give the normal and the highest bound of the index. If clients hold rows,
/// the bound rises to the size of the held rows plus a quarter of the normal bound.
const INDEX_PART: u64 = 4;
const INDEX_HELD_PART: u64 = 2;

/// Divisor of the index's free space that gives the space for the names of one directory.
const NAMES_PART: u64 = 2;

/// Divisor of the bound that gives the free space at which trimming begins; and the fraction of the bound to
/// which the index is trimmed.
const INDEX_MARGIN: u64 = 8;
const INDEX_TRIMMED: (u64, u64) = (3, 4);

/// Approximate size of a name in the index, with its object and handle.
const NAME_BYTES: u64 = 320;

/// Approximate size of the rows of a full queue and of a full batch being written, in bytes.
const QUEUE_BYTES_MAX: u64 = 2 * OBJECTS_MAX as u64 * NAME_BYTES;

/// Bounds of the maximum number of cached names of a directory, which are in memory while in use.
const NAMES: (usize, usize) = (4096, 1 << 20);

impl Store {
    /// Returns `true` if the index has reached its bound.
    pub(crate) fn is_index_full(&self) -> bool {
        self.shared.is_index_full()
    }

    /// Returns `true` if the index should be trimmed. No directory is listed ahead then.
    pub(crate) fn is_index_nearly_full(&self) -> bool {
        self.shared.index_used_soon() >= self.shared.index_max() - self.shared.index_part() / INDEX_MARGIN
    }

    /// Returns `true` if the index is small enough for trimming to end.
    pub(crate) fn is_index_trimmed(&self) -> bool {
        self.shared.index_used() <= part_of(self.shared.index_part(), INDEX_TRIMMED)
    }

    pub(crate) fn index_pause(&self) -> Duration {
        self.shared.options.index_pause
    }

    /// Records, at the end of trimming, the size of the index if clients hold too many rows; otherwise 0.
    pub(crate) fn set_index_held(&self) {
        let held = if self.is_index_trimmed() { 0 } else { self.shared.index_used() };
        self.shared.index_held_bytes.store(held, Ordering::Relaxed);
    }

    pub(crate) fn keeps_rows(&self) -> bool {
        self.shared.keeps_rows.load(Ordering::Relaxed)
    }

    /// Retains all rows from now on, also after restarts: a client is about to get a handle that works only
    /// with its row. Waits for the commit.
    pub(crate) fn keep_rows(&self) {
        if !self.keeps_rows() {
            self.shared.queue.keep_rows();
            self.flush();
            self.shared.keeps_rows.store(true, Ordering::Relaxed);
        }
    }

    /// Returns the maximum number of cached names of a directory, which leaves space for others. Zero if the
    /// index is full.
    pub(crate) fn names_max(&self) -> usize {
        if self.is_index_full() {
            return 0;
        }
        let free = self.shared.index_max().saturating_sub(self.shared.index_used());
        usize::try_from(free / NAMES_PART / NAME_BYTES).unwrap_or(usize::MAX).clamp(NAMES.0, NAMES.1)
    }
}

impl Shared {
    fn index_part(&self) -> u64 {
        self.options.capacity_bytes / INDEX_PART
    }

    fn index_max(&self) -> u64 {
        let (part, most) = (self.index_part(), self.options.capacity_bytes / INDEX_HELD_PART);
        part.max((self.index_held_bytes.load(Ordering::Relaxed) + part / 4).min(most))
    }

    fn index_used(&self) -> u64 {
        self.index_used_bytes.load(Ordering::Relaxed)
    }

    /// Returns the size of the index with the rows queued or being written. These are not counted while even
    /// a full queue would not fill the index.
    fn index_used_soon(&self) -> u64 {
        let used = self.index_used();
        let counts_queue = used + QUEUE_BYTES_MAX > self.index_max();
        used + if counts_queue { self.queue.len() as u64 * NAME_BYTES } else { 0 }
    }

    fn is_index_full(&self) -> bool {
        self.index_used_soon() >= self.index_max()
    }
}
