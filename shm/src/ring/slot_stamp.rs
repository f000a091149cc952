use crate::link::Epoch;

/// The stamp of a slot, in the low half of its first word, for one lap of one epoch: the epoch's low 16 bits
/// above those of the lap.
///
/// A lap is one pass over all slots. Laps count from 1, so an empty slot of a fresh link, all zeroes, never
/// matches. A slot of another epoch does not match unless the low 16 bits of both epochs are equal; the rings
/// are cleared before a link begins, so that no such slot remains. An unread slot is at most one lap old, so
/// its stamp differs although the lap wraps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SlotStamp(pub(super) u32);

impl SlotStamp {
    /// Returns the stamp of an epoch's first lap.
    pub(super) fn first(epoch: Epoch) -> SlotStamp {
        SlotStamp(epoch.number() << 16 | 1)
    }

    /// Extracts the stamp from a slot's first word.
    #[inline(always)]
    pub(super) fn of(head: u64) -> SlotStamp {
        SlotStamp(u64::from_le(head) as u32)
    }

    /// Returns the stamp of the next lap.
    pub(super) fn next(self) -> SlotStamp {
        self.lap(1)
    }

    /// Returns the stamp of the previous lap.
    pub(super) fn previous(self) -> SlotStamp {
        self.lap(u16::MAX)
    }

    fn lap(self, add: u16) -> SlotStamp {
        let lap = (self.0 as u16).wrapping_add(add);
        SlotStamp(self.0 & 0xFFFF_0000 | u32::from(lap))
    }
}

/// Position of producer or consumer in a ring: the next slot, and the stamp of its next message.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cursor {
    pub(super) slot: usize,
    pub(super) stamp: SlotStamp,
    /// `true` until the position wraps for the first time: empty slots are then zero, not of an earlier lap.
    pub(super) first_lap: bool,
}

impl Cursor {
    /// Returns the position at the begin of an epoch.
    pub(super) fn first(epoch: Epoch) -> Cursor {
        Cursor { slot: 0, stamp: SlotStamp::first(epoch), first_lap: true }
    }

    /// Advances by one slot in a ring of `slots`.
    #[inline(always)]
    pub(super) fn advance(&mut self, slots: usize) {
        self.slot += 1;
        if self.slot == slots {
            self.slot = 0;
            self.stamp = self.stamp.next();
            self.first_lap = false;
        }
    }
}
