use std::sync::atomic::Ordering::{Acquire, Relaxed};

use thiserror::Error;
use tombolo_mem::{Lines, OutOfBounds};

use crate::cells::Cells;
use crate::link::{Epoch, Extent, SLOT_BYTES};
use crate::ring::message::{Message, TAIL_WORDS};
use crate::ring::slot_stamp::{Cursor, SlotStamp};

/// The reading side of a ring, of which there is one. The peer may write anything at any time: what comes out
/// is whatever was there, copied once.
#[derive(Debug)]
pub struct Consumer<C = Lines> {
    cells: C,
    cursor: Cursor,
}

/// The slot that comes next holds what no honest peer writes there: a lap that is long over, one that has not
/// come, more messages than slots, or another life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("slot {slot} has stamp {found:#010x} where {awaited:#010x} comes next")]
pub struct StampFault {
    /// The slot.
    pub slot: usize,
    /// What it holds.
    pub found: u32,
    /// What the next message will bring.
    pub awaited: u32,
}

impl Consumer {
    /// The ring of `slots` slots at `offset` of the peer's end. Fails if it does not lie there on cache
    /// lines, or if the number of slots is not a power of two.
    pub fn at(peer: &Extent, offset: u64, slots: u32, epoch: Epoch) -> Result<Consumer, OutOfBounds> {
        let start = peer.place(offset, u64::from(slots) * SLOT_BYTES)?;
        Ok(Consumer::new(Lines::new(peer.region(), start, slots as usize)?, epoch))
    }
}

impl<C: Cells> Consumer<C> {
    /// The ring in those cells.
    pub fn new(cells: C, epoch: Epoch) -> Consumer<C> {
        Consumer { cells, cursor: Cursor::first(epoch) }
    }

    /// Whether a message is there.
    #[inline(always)]
    pub fn is_ready(&self) -> bool {
        SlotStamp::of(self.cells.load(self.cursor.slot, 0, Acquire)) == self.cursor.stamp
    }

    /// The next message, if it is there.
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

    /// Begins to fetch the slot that comes next: for when a message is likely to be there already.
    #[inline(always)]
    pub fn fetch(&self) {
        self.cells.fetch(self.cursor.slot);
    }

    /// The address of the slot that comes next, if a processor can watch it. Valid while this consumer lives.
    pub fn address(&self) -> Option<*const u8> {
        self.cells.address(self.cursor.slot)
    }

    /// Whether the slot that comes next is as an honest peer leaves it: empty, or with this message. To be
    /// asked now and then when nothing comes, such as before a sleep; a peer that writes nonsense looks idle
    /// otherwise.
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
