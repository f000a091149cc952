use crate::link::Epoch;

/// What the first word of a slot holds for one lap of one life: the epoch's low half above the lap's.
///
/// Laps count from 1, so an empty slot of a fresh link, all zeroes, never fits; a slot of an earlier life
/// does not fit before 65,536 lives; one of an earlier lap is at most one lap old.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SlotStamp(pub(super) u32);

impl SlotStamp {
    /// The first lap of that life.
    pub(super) fn first(epoch: Epoch) -> SlotStamp {
        SlotStamp(epoch.number() << 16 | 1)
    }

    /// The stamp that a slot's first word holds.
    #[inline(always)]
    pub(super) fn of(head: u64) -> SlotStamp {
        SlotStamp(u64::from_le(head) as u32)
    }

    /// The same lap's number, one lap on.
    pub(super) fn next(self) -> SlotStamp {
        self.lap(1)
    }

    /// One lap back.
    pub(super) fn previous(self) -> SlotStamp {
        self.lap(u16::MAX)
    }

    fn lap(self, add: u16) -> SlotStamp {
        let lap = (self.0 as u16).wrapping_add(add);
        SlotStamp(self.0 & 0xFFFF_0000 | u32::from(lap))
    }
}

/// How far one side is: the next slot, and the stamp that belongs there.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cursor {
    pub(super) slot: usize,
    pub(super) stamp: SlotStamp,
    /// No slot has been written twice yet.
    pub(super) first_lap: bool,
}

impl Cursor {
    pub(super) fn first(epoch: Epoch) -> Cursor {
        Cursor { slot: 0, stamp: SlotStamp::first(epoch), first_lap: true }
    }

    /// One slot on in a ring of so many.
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
