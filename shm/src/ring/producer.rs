use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Relaxed, Release};

use tombolo_mem::{LinesMut, OutOfBounds};

use crate::cells::CellsMut;
use crate::link::{Epoch, Extent, SLOT_BYTES};
use crate::ring::message::Message;
use crate::ring::prefetch::Prefetch;
use crate::ring::slot_stamp::Cursor;

/// The writing side of a ring, of which there is one.
#[derive(Debug)]
pub struct Producer<C = LinesMut> {
    cells: C,
    cursor: Cursor,
    /// The slot of `cursor`, for the prefetcher.
    next: Arc<AtomicUsize>,
}

impl Producer {
    /// The ring of `slots` slots at `offset` of our own end, all of them zero. Fails if it does not lie there
    /// on cache lines, if the number of slots is not a power of two, or if the end is read-only.
    pub fn at(own: &Extent, offset: u64, slots: u32, epoch: Epoch) -> Result<Producer, OutOfBounds> {
        let start = own.place(offset, u64::from(slots) * SLOT_BYTES)?;
        Ok(Producer::new(LinesMut::new(own.region(), start, slots as usize)?, epoch))
    }
}

impl<C: CellsMut> Producer<C> {
    /// The ring in those cells, all of them zero.
    pub fn new(cells: C, epoch: Epoch) -> Producer<C> {
        Producer { cells, cursor: Cursor::first(epoch), next: Arc::default() }
    }

    /// What fetches the next slot before it is written.
    pub fn prefetch(&self) -> Prefetch<C>
    where
        C: Clone,
    {
        Prefetch::new(self.cells.clone(), self.next.clone())
    }

    /// Writes the next slot. There must be no more messages under way than slots, or one is lost that the
    /// peer has not read; that is for the caller to count, since the ring does not know.
    #[inline]
    pub fn push(&mut self, message: &Message) {
        let slot = self.cursor.slot;
        for (word, value) in message.tail().into_iter().enumerate() {
            self.cells.store(slot, word + 1, value, Relaxed);
        }
        // Last, and not before the rest is there.
        self.cells.store(slot, 0, message.head(self.cursor.stamp), Release);
        self.cursor.advance(self.cells.count());
        self.next.store(self.cursor.slot, Relaxed);
    }
}
