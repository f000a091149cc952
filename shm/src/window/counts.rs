use std::sync::atomic::Ordering;

use tombolo_core::fs::Version;
use tombolo_mem::WORDS_PER_LINE;

use crate::cells::{Cells, CellsMut};

/// The line of the header that holds the epoch, in its first word.
const EPOCH_LINE: usize = 2;

/// One change under way: the lower 16 bits of a slot. There are fewer threads than that.
const UNDER_WAY: u64 = 1;
/// One change done: the upper 48 bits, which last for years at a million changes a second.
const DONE: u64 = 1 << 16;

/// The counts of a window, in the byte order of the one kernel that both sides have. Slot numbers wrap.
#[derive(Clone, Debug)]
pub struct Counts<L> {
    head: L,
    slots: L,
}

impl<L: Cells> Counts<L> {
    /// Those that lie there.
    pub fn of(head: L, slots: L) -> Self {
        Self { head, slots }
    }

    /// What is to be remembered of a slot before one asks; none while a change is under way.
    pub fn version(&self, slot: u32) -> Option<Version> {
        let (epoch, count) = (self.epoch(), self.load(slot));
        count.is_multiple_of(DONE).then_some(Version { epoch, count, slot })
    }

    /// Whether nothing has changed since: what was asked after the version was taken is what one would be
    /// told now.
    #[inline(always)]
    pub fn holds(&self, version: &Version) -> bool {
        // The slot first: all slots change their epoch at once, before anything else follows.
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
    /// New ones, of that epoch.
    pub fn begin(head: L, slots: L, epoch: u64) -> Self {
        head.store(EPOCH_LINE, 0, epoch, Ordering::Release);
        Self { head, slots }
    }

    /// A change begins: from now on no version of the slot holds, and none can be had until it has
    /// [ended](Self::ended).
    #[inline]
    pub fn begun(&self, slot: u32) {
        self.add(slot, UNDER_WAY);
    }

    /// A change that had [begun](Self::begun) has ended.
    #[inline]
    pub fn ended(&self, slot: u32) {
        self.add(slot, DONE - UNDER_WAY);
    }

    /// What had [begun](Self::begun) has ended, and was no change: versions from before it hold again.
    #[inline]
    pub fn unchanged(&self, slot: u32) {
        self.add(slot, UNDER_WAY.wrapping_neg());
    }

    /// A change has begun and ended, unseen.
    pub fn changed(&self, slot: u32) {
        self.add(slot, DONE);
    }

    /// Anything may have changed: no version that was taken before holds.
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
