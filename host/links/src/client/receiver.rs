//! Thread that receives answers to calls that are not polled.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;
use std::time::Duration;

use tombolo_shm::cells::{DoorbellWord, SleepOutcome};
use tombolo_shm::doorbell::PeerDoorbell;

use super::core::Core;
use super::wakes::Wakes;
use crate::end::{EndReason, ProtocolError};

/// Interval of checks for truncated memory, for which no doorbell rings.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Shortest and longest polling interval without a doorbell.
const PAUSES: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(5));

/// Receives until the line ends.
pub(super) fn run(core: &Arc<Core>) {
    while !core.outcome.is_over() {
        // Waking a task may run the task on this thread; its panic must not affect other tasks.
        let turn = catch_unwind(AssertUnwindSafe(|| match &core.doorbell {
            Some(doorbell) => core.receive_by_doorbell(doorbell),
            None => core.receive_by_polling(),
        }));
        if turn.is_err() {
            tracing::error!(link = &*core.label, "task panicked on its answer");
        }
    }
}

impl Core {
    /// Parks until a call is registered, at most for [`CHECK_INTERVAL`]. Then sleeps on the doorbell, until
    /// that has not rung for [`CHECK_INTERVAL`] and no call is registered.
    fn receive_by_doorbell(&self, doorbell: &PeerDoorbell) {
        if !self.parker.park(CHECK_INTERVAL) {
            if self.peer.region().is_poisoned() {
                self.end(EndReason::ProtocolError(ProtocolError::MemoryGone));
            }
            return;
        }
        let mut answers_before = None;
        while !self.outcome.is_over() {
            // The number of rings is read before the message ring is checked: a later ring of the doorbell
            // ends the wait.
            let rung = doorbell.load(Acquire);
            self.drain_all();
            // The doorbell learns whether the last sleep, if there was one, has brought answers.
            let answers = self.counters.answers();
            answers_before.replace(answers).into_iter().for_each(|before| doorbell.slept(before != answers));
            if self.outcome.is_over() {
                return;
            }
            self.counters.sleeps.bump();
            match doorbell.wait(rung, Some(CHECK_INTERVAL)) {
                SleepOutcome::Woken => {}
                SleepOutcome::TimedOut if self.may_park() => return,
                SleepOutcome::TimedOut => {}
                SleepOutcome::Unsupported => {
                    self.parker.park(PAUSES.1);
                }
            }
        }
    }

    /// Disarms the line if no call is registered, and returns `true`: the receiver thread may park.
    fn may_park(&self) -> bool {
        let mut intake = self.lead();
        let may_park = self.waiting.is_empty();
        if may_park {
            // From now on no thread waits for the doorbell. A call that registers meanwhile is found when the
            // lead is released.
            self.disarm(&mut intake);
            intake.is_receiving = false;
        }
        self.release_lead(intake, &mut Wakes::default());
        may_park
    }

    /// Polls at growing intervals while calls are registered, and parks otherwise.
    fn receive_by_polling(&self) {
        let (mut pause, mut answers) = (PAUSES.0, self.counters.answers());
        while !self.outcome.is_over() {
            if self.waiting.is_empty() && self.may_park() {
                break;
            }
            self.drain_all();
            // Answers that other threads took out count as well: more are likely to follow.
            let before = std::mem::replace(&mut answers, self.counters.answers());
            if answers != before {
                pause = PAUSES.0;
            }
            if self.parker.park(pause) {
                pause = PAUSES.0;
            } else {
                pause = (pause * 2).min(PAUSES.1);
            }
        }
        if !self.outcome.is_over() {
            self.counters.sleeps.bump();
            self.parker.park(CHECK_INTERVAL);
        }
    }

    /// Takes out all messages, wakes the calls registered for them, and arms the doorbell for the remaining
    /// calls.
    fn drain_all(&self) {
        let mut wakes = Wakes::default();
        while !self.outcome.is_over() {
            let mut intake = self.lead();
            // If the doorbell has rung, it must be armed anew.
            self.disarm(&mut intake);
            let drained = match self.peer.region().is_poisoned() {
                true => Err(ProtocolError::MemoryGone),
                false => self.drain(&mut intake, None, &mut wakes),
            };
            if let Err(error) = drained {
                return self.fail(intake, error, &mut wakes);
            }
            let is_full = wakes.is_full();
            self.release_lead(intake, &mut wakes);
            if !is_full {
                return;
            }
        }
    }
}
