use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use tombolo_mem::LinesMut;

use crate::cells::CellsMut;

/// A prefetcher of the slot that a [`Producer`](crate::ring::Producer) will write next, for use while the
/// message is still being made: the consumer read that line a lap ago, and fetching it takes as long as a
/// message transfer. Usable from any thread.
///
/// Prefetching pays only while the consumer does not poll that slot yet, which is the purpose of
/// [`PollBackoff`](crate::doorbell::PollBackoff) (docs/decisions/shm-rings.md). To remove this optimisation,
/// delete the file and its uses.
#[derive(Debug)]
pub struct Prefetch<C = LinesMut> {
    cells: C,
    next: Arc<AtomicUsize>,
}

impl<C: CellsMut> Prefetch<C> {
    pub(super) fn new(cells: C, next: Arc<AtomicUsize>) -> Prefetch<C> {
        Prefetch { cells, next }
    }

    /// Fetches the next slot for writing. If another message is pushed first, or none, only time is lost.
    #[inline(always)]
    pub fn fetch(&self) {
        self.cells.claim(self.next.load(Relaxed));
    }
}
