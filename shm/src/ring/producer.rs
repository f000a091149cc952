use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Relaxed, Release};

use tombolo_mem::{LinesMut, OutOfBounds};

use crate::cells::CellsMut;
use crate::link::{Epoch, Extent, SLOT_BYTES};
use crate::ring::message::Message;
use crate::ring::prefetch::Prefetch;
use crate::ring::slot_stamp::Cursor;

/// The writing side of a ring; one per ring.
#[derive(Debug)]
pub struct Producer<C = LinesMut> {
    cells: C,
    cursor: Cursor,
    /// The cursor's slot, for the prefetcher.
    next: Arc<AtomicUsize>,
}

impl Producer {
    /// Returns the ring of `slots` slots at `offset` of this side's memory, whose slots must be zero. Fails
    /// if it is not inside, not aligned to cache lines, if the number of slots is not a power of two, or if
    /// the memory is mapped read-only.
    pub fn at(own: &Extent, offset: u64, slots: u32, epoch: Epoch) -> Result<Producer, OutOfBounds> {
        let start = own.place(offset, u64::from(slots) * SLOT_BYTES)?;
        Ok(Producer::new(LinesMut::new(own.region(), start, slots as usize)?, epoch))
    }
}

impl<C: CellsMut> Producer<C> {
    /// Returns the writing side of a ring in `cells`, which must be zero.
    pub fn new(cells: C, epoch: Epoch) -> Producer<C> {
        Producer { cells, cursor: Cursor::first(epoch), next: Arc::default() }
    }

    /// Returns the prefetcher of the next slot.
    pub fn prefetch(&self) -> Prefetch<C>
    where
        C: Clone,
    {
        Prefetch::new(self.cells.clone(), self.next.clone())
    }

    /// Writes the next slot. The caller must ensure that no more messages are outstanding than there are
    /// slots, or an unread message is overwritten.
    #[inline]
    pub fn push(&mut self, message: &Message) {
        let slot = self.cursor.slot;
        for (word, value) in message.tail().into_iter().enumerate() {
            self.cells.store(slot, word + 1, value, Relaxed);
        }
        // The head is stored last, ordered after the other words.
        self.cells.store(slot, 0, message.head(self.cursor.stamp), Release);
        self.cursor.advance(self.cells.count());
        self.next.store(self.cursor.slot, Relaxed);
    }
}
