use std::sync::atomic::Ordering;

use tombolo_core::fs::Version;
use tombolo_mem::{Lines, LinesMut, WORDS_PER_LINE};

use super::SLOTS;
use crate::cells::{Cells, CellsMut};

/// Number of the header's line whose first word is the window's epoch.
const EPOCH_LINE: usize = 2;

/// Increment of a slot while a change is in progress: the lower 16 bits count the changes in progress, of
/// which each thread has a few at most.
const UNDER_WAY: u64 = 1;
/// Increment of a slot for a completed change: the upper 48 bits count these, and wrap after nine years at a
/// million changes per second.
const DONE: u64 = 1 << 16;

/// Change counters of a window, in the byte order of the processor that both sides share. Slot numbers wrap.
#[derive(Clone, Debug)]
pub struct Counts<L> {
    head: L,
    slots: L,
}

impl<L: Cells> Counts<L> {
    /// Returns the counts whose epoch is in the lines `head`, and whose slots are the words of `slots`.
    pub fn of(head: L, slots: L) -> Self {
        Self { head, slots }
    }

    /// Returns a slot's version, to be taken before a request; `None` while a change is in progress.
    pub fn version(&self, slot: u32) -> Option<Version> {
        let (epoch, count) = (self.epoch(), self.load(slot));
        count.is_multiple_of(DONE).then_some(Version { epoch, count, slot })
    }

    /// Returns `true` if nothing has changed since the version was taken: results of requests made after it
    /// was taken are current.
    #[inline(always)]
    pub fn holds(&self, version: &Version) -> bool {
        // The slot is loaded before the epoch. The other way round, the epoch could change in between, and a
        // count of the new epoch would be accepted with the former one.
        self.load(version.slot) == version.count && self.epoch() == version.epoch
    }

    #[inline(always)]
    fn load(&self, slot: u32) -> u64 {
        let (line, word) = place(slot);
        self.slots.load(line, word, Ordering::Acquire)
    }

    #[inline(always)]
    fn epoch(&self) -> u64 {
        self.head.load(EPOCH_LINE, 0, Ordering::Acquire)
    }
}

impl<L: CellsMut> Counts<L> {
    /// Initialises the counts with `epoch`. The slots must be zero, unless `copy` follows.
    pub fn begin(head: L, slots: L, epoch: u64) -> Self {
        head.store(EPOCH_LINE, 0, epoch, Ordering::Release);
        Self { head, slots }
    }

    /// Begins a change: no version of the slot holds from now on, and none is available until it has
    /// [ended](Self::ended).
    #[inline]
    pub fn begun(&self, slot: u32) {
        self.add(slot, UNDER_WAY);
    }

    /// Ends a change that has [begun](Self::begun).
    #[inline]
    pub fn ended(&self, slot: u32) {
        self.add(slot, DONE - UNDER_WAY);
    }

    /// Ends a change that has [begun](Self::begun) but had no effect: earlier versions hold again.
    #[inline]
    pub fn unchanged(&self, slot: u32) {
        self.add(slot, UNDER_WAY.wrapping_neg());
    }

    /// Counts a change that ends without a call of [`begun`](Self::begun): earlier versions of the slot no
    /// longer hold.
    pub fn changed(&self, slot: u32) {
        self.add(slot, DONE);
    }

    /// Invalidates all versions taken before, of all slots, by a new epoch.
    pub fn everything(&self) {
        self.head.add(EPOCH_LINE, 0, 1, Ordering::SeqCst);
    }

    #[inline]
    fn add(&self, slot: u32, n: u64) {
        let (line, word) = place(slot);
        self.slots.add(line, word, n, Ordering::SeqCst);
    }
}

#[inline(always)]
fn place(slot: u32) -> (usize, usize) {
    (slot as usize / WORDS_PER_LINE, slot as usize % WORDS_PER_LINE)
}

impl Counts<LinesMut> {
    /// Returns the same counts, restricted to reading.
    pub(super) fn as_readable(&self) -> Counts<Lines> {
        Counts::of(self.head.as_lines(), self.slots.as_lines())
    }

    /// Sets epoch and slots to those of `source`.
    pub(super) fn copy(&self, source: &Counts<Lines>) {
        for slot in 0..SLOTS {
            let (line, word) = place(slot);
            self.slots.store(line, word, source.load(slot), Ordering::Relaxed);
        }
        self.head.store(EPOCH_LINE, 0, source.epoch(), Ordering::SeqCst);
    }
}
