//! How long to leave the next slot alone before the first look at it.
//!
//! To look at a line that the peer is about to write is to take it away: the peer has to fetch it once more
//! before it can write, which takes as long as to hand the message over. After a send the answer cannot come
//! before the peer has read and worked; so the sender leaves the line alone for about as long as that has
//! taken lately (docs/decisions/shm-rings.md). To do without, delete this file and what the compiler misses
//! then.

use std::hint::spin_loop;

use crate::doorbell::look::looks_per_us;

/// Steps of a pause.
const PAUSE: u32 = 16;
/// A message that was not there yet: so much longer.
const LONGER: u32 = PAUSE;
/// One that was: so much shorter. A fifth of the messages comes after the first look then, which is short of
/// wasting time: both sides learn from each other, and would make each other slower and slower.
const SHORTER: u32 = PAUSE / 4;
/// If leaving the line alone for so long does not do, it is not worth while for so many messages: what takes
/// longer varies by more than there is to be gained.
const BACKOFF_MAX_NS: u32 = 600;
const CLOSED_FOR: u32 = 512;

/// How long one consumer leaves the next slot alone, as it has learnt.
#[derive(Clone, Copy, Debug)]
pub struct PollBackoff {
    steps: u32,
    max: u32,
    /// Messages until it begins anew.
    closed_for: u32,
    /// The slot that comes next was not looked at yet.
    is_fresh: bool,
}

impl Default for PollBackoff {
    fn default() -> PollBackoff {
        PollBackoff {
            steps: 0,
            max: BACKOFF_MAX_NS * looks_per_us() / 1000 * PAUSE,
            closed_for: 0,
            is_fresh: true,
        }
    }
}

impl PollBackoff {
    /// To be called before each look. Waits for less than a microsecond, if it is the first one at this slot.
    #[inline]
    pub fn rest(&self) {
        if self.is_fresh && self.closed_for == 0 {
            (0..self.steps / PAUSE).for_each(|_| spin_loop());
        }
    }

    /// To be told after each look whether a message was there, which is taken out then.
    #[inline]
    pub fn looked(&mut self, is_there: bool) {
        if self.is_fresh {
            self.learn(is_there);
        }
        self.is_fresh = is_there;
    }

    /// Messages are there before one looks for them.
    #[inline]
    pub fn is_behind(&self) -> bool {
        self.steps < PAUSE && self.closed_for == 0
    }

    #[inline]
    fn learn(&mut self, is_there: bool) {
        if self.closed_for > 0 {
            self.closed_for -= 1;
        } else if is_there {
            self.steps = self.steps.saturating_sub(SHORTER);
        } else if self.steps < self.max {
            self.steps += LONGER;
        } else {
            (self.steps, self.closed_for) = (0, CLOSED_FOR);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first look at each of so many slots, each of whose messages comes after so many pauses.
    fn messages(backoff: &mut PollBackoff, count: u32, after_pauses: u32) -> u32 {
        let first = |_| {
            let is_there = backoff.steps / PAUSE >= after_pauses;
            backoff.looked(is_there);
            if !is_there {
                backoff.looked(true);
            }
            u32::from(is_there)
        };
        (0..count).map(first).sum()
    }

    #[test]
    fn most_messages_are_found_at_the_first_look_however_long_they_take() {
        let mut backoff = PollBackoff { max: 100 * PAUSE, ..PollBackoff::default() };
        for after_pauses in [20, 5, 60, 1] {
            messages(&mut backoff, 400, after_pauses);
            assert!(messages(&mut backoff, 1000, after_pauses) >= 790, "{after_pauses} pauses");
            assert!(backoff.steps / PAUSE <= after_pauses + 1, "and not much too late");
        }
    }

    #[test]
    fn a_message_that_is_there_already_is_not_waited_for() {
        let mut backoff = PollBackoff { max: 100 * PAUSE, ..PollBackoff::default() };
        messages(&mut backoff, 100, 20);
        assert!(!backoff.is_behind());
        messages(&mut backoff, 200, 0);
        assert!(backoff.is_behind());
        assert_eq!(backoff.steps, 0);
    }

    #[test]
    fn replies_slower_than_the_longest_backoff_cost_little() {
        let mut backoff = PollBackoff { max: 50 * PAUSE, ..PollBackoff::default() };
        let rested: u32 = (0..2000)
            .map(|_| {
                let steps = if backoff.closed_for == 0 { backoff.steps } else { 0 };
                messages(&mut backoff, 1, u32::MAX);
                steps / PAUSE
            })
            .sum();
        assert!(rested / 2000 <= 50 / 10, "{rested} pauses");
    }
}
