use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use tombolo_mem::LinesMut;

use crate::cells::CellsMut;

/// Fetches the slot that a [`Producer`](crate::ring::Producer) will write next, while its message is still
/// being made: the consumer read that line a lap ago, and to take it back takes as long as to hand it over.
/// Any thread may.
///
/// It helps while the consumer does not look at that slot yet, for which
/// [`PollBackoff`](crate::doorbell::PollBackoff) is (docs/decisions/shm-rings.md). To do without, delete this
/// file and what the compiler misses then.
#[derive(Debug)]
pub struct Prefetch<C = LinesMut> {
    cells: C,
    next: Arc<AtomicUsize>,
}

impl<C: CellsMut> Prefetch<C> {
    pub(super) fn new(cells: C, next: Arc<AtomicUsize>) -> Prefetch<C> {
        Prefetch { cells, next }
    }

    /// A message will be pushed soon. A hint: if another one is pushed first, or none, nothing is lost but
    /// time.
    #[inline(always)]
    pub fn fetch(&self) {
        self.cells.claim(self.next.load(Relaxed));
    }
}
