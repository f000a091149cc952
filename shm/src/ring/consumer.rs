use std::sync::atomic::Ordering::{Acquire, Relaxed};

use thiserror::Error;
use tombolo_mem::{Lines, OutOfBounds};

use crate::cells::Cells;
use crate::link::{Epoch, Extent, SLOT_BYTES};
use crate::ring::message::{Message, TAIL_WORDS};
use crate::ring::slot_stamp::{Cursor, SlotStamp};

/// The reading side of a ring; one per ring. The peer may write anything at any time, so messages are copied
/// once; the caller checks their contents.
#[derive(Debug)]
pub struct Consumer<C = Lines> {
    cells: C,
    cursor: Cursor,
}

/// An invalid stamp in the next slot, which only a faulty peer writes: of another epoch, or of a lap other
/// than the current and the previous one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("slot {slot} has stamp {found:#010x}, expected {awaited:#010x}")]
pub struct StampFault {
    /// Index of the slot in the ring.
    pub slot: usize,
    /// Stamp found in the slot.
    pub found: u32,
    /// Stamp that the next message must have.
    pub awaited: u32,
}

impl Consumer {
    /// Returns the ring of `slots` slots at `offset` of the peer's memory. Fails if it is not inside, not
    /// aligned to cache lines, or if the number of slots is not a power of two.
    pub fn at(peer: &Extent, offset: u64, slots: u32, epoch: Epoch) -> Result<Consumer, OutOfBounds> {
        let start = peer.place(offset, u64::from(slots) * SLOT_BYTES)?;
        Ok(Consumer::new(Lines::new(peer.region(), start, slots as usize)?, epoch))
    }
}

impl<C: Cells> Consumer<C> {
    /// Returns the reading side of a ring in `cells`, at the first slot of the epoch's first lap.
    pub fn new(cells: C, epoch: Epoch) -> Consumer<C> {
        Consumer { cells, cursor: Cursor::first(epoch) }
    }

    /// Returns `true` if a message has arrived.
    #[inline(always)]
    pub fn is_ready(&self) -> bool {
        SlotStamp::of(self.cells.load(self.cursor.slot, 0, Acquire)) == self.cursor.stamp
    }

    /// Removes the next message, if it has arrived.
    #[inline]
    pub fn pop(&mut self) -> Option<Message> {
        let slot = self.cursor.slot;
        let head = self.cells.load(slot, 0, Acquire);
        if SlotStamp::of(head) != self.cursor.stamp {
            return None;
        }
        let mut tail = [0; TAIL_WORDS];
        for (word, value) in tail.iter_mut().enumerate() {
            *value = self.cells.load(slot, word + 1, Relaxed);
        }
        self.cursor.advance(self.cells.count());
        Some(Message::from_words(head, tail))
    }

    /// Prefetches the next slot. This pays when a message has probably arrived already, and slows the peer
    /// down otherwise.
    #[inline(always)]
    pub fn fetch(&self) {
        self.cells.fetch(self.cursor.slot);
    }

    /// Returns the address of the next slot, if a processor can monitor it. Valid while this consumer lives.
    pub fn address(&self) -> Option<*const u8> {
        self.cells.address(self.cursor.slot)
    }

    /// Verifies that the next slot has the next message or that of the previous lap, or is empty in the first
    /// lap. The reader should call this occasionally while it receives no message, for example before a
    /// sleep: without it a peer that writes invalid stamps would seem idle.
    pub fn check(&self) -> Result<(), StampFault> {
        let found = SlotStamp::of(self.cells.load(self.cursor.slot, 0, Relaxed));
        let awaited = self.cursor.stamp;
        let empty = if self.cursor.first_lap { SlotStamp(0) } else { awaited.previous() };
        if found == awaited || found == empty {
            return Ok(());
        }
        Err(StampFault { slot: self.cursor.slot, found: found.0, awaited: awaited.0 })
    }
}
