//! Adaptive delay of a consumer before its first poll of a ring's slot.
//!
//! Polling a line that the peer is about to write steals it: the peer must fetch it once more before it can
//! write, which takes as long as a message transfer. After a send the answer cannot arrive before the peer
//! has read the request and worked; so the sender does not touch the line for about as long as recent answers
//! took (docs/decisions/shm-rings.md). To remove this optimisation, delete the file and its uses.

use std::hint::spin_loop;

use crate::doorbell::polling::polls_per_us;

/// Steps per pause (one spin-loop hint): the delay is adapted in finer steps than it is executed.
const PAUSE: u32 = 16;
/// Increment of the delay, in steps, after a message that the first poll did not find.
const LONGER: u32 = PAUSE;
/// Decrement of the delay, in steps, after a message that the first poll found. In equilibrium a fifth of
/// the messages arrives after the first poll: with fewer, both sides would adapt to each other and become
/// slower and slower.
const SHORTER: u32 = PAUSE / 4;
/// Maximum delay, in nanoseconds. If it does not suffice, back-off is disabled for [`CLOSED_FOR`] messages:
/// the time of longer replies varies by more than back-off could gain.
const BACKOFF_MAX_NS: u32 = 600;
const CLOSED_FOR: u32 = 512;

/// One consumer's learnt delay before polling the next slot.
#[derive(Clone, Copy, Debug)]
pub struct PollBackoff {
    /// Delay before the first poll, in steps of a [`PAUSE`]th of a spin-loop hint.
    steps: u32,
    /// Maximum of `steps`, calibrated from [`BACKOFF_MAX_NS`].
    max: u32,
    /// Number of messages until back-off is enabled again.
    closed_for: u32,
    /// `true` if the next slot has not been polled yet.
    is_fresh: bool,
}

impl Default for PollBackoff {
    fn default() -> PollBackoff {
        PollBackoff {
            steps: 0,
            max: BACKOFF_MAX_NS * polls_per_us() / 1000 * PAUSE,
            closed_for: 0,
            is_fresh: true,
        }
    }
}

impl PollBackoff {
    /// Delays the first poll of a slot, by less than a microsecond. The consumer calls this before each poll;
    /// before later polls of the same slot it returns at once.
    #[inline]
    pub fn rest(&self) {
        if self.is_fresh && self.closed_for == 0 {
            (0..self.steps / PAUSE).for_each(|_| spin_loop());
        }
    }

    /// Records the result of a poll. If a message was found, the caller must remove it, so that the next poll
    /// is the first one of another slot.
    #[inline]
    pub fn looked(&mut self, is_there: bool) {
        if self.is_fresh {
            self.learn(is_there);
        }
        self.is_fresh = is_there;
    }

    /// Returns `true` if messages arrive before they are polled for, so that prefetching the next slot pays.
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

    /// Simulates the first poll of `count` slots, each of whose messages arrives after `after_pauses` pauses.
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
    fn backoff_adapts_so_most_first_polls_succeed() {
        let mut backoff = PollBackoff { max: 100 * PAUSE, ..PollBackoff::default() };
        for after_pauses in [20, 5, 60, 1] {
            messages(&mut backoff, 400, after_pauses);
            assert!(messages(&mut backoff, 1000, after_pauses) >= 790, "{after_pauses} pauses");
            assert!(backoff.steps / PAUSE <= after_pauses + 1, "and not much too late");
        }
    }

    #[test]
    fn present_messages_are_polled_without_delay() {
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
