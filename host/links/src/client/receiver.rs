//! The thread that receives answers to calls that are not polled.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use super::core::Core;
use super::doorbell::{Doorbell, Waited};
use super::wakes::Wakes;
use crate::end::{End, ProtocolError};

/// After so long without a doorbell it checks that the memory is still there.
const LOOK_AFTER: Duration = Duration::from_secs(1);
/// Without a doorbell: the first pause between two looks, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(5));

/// Receives until the line ends.
pub(super) fn run(core: &Arc<Core>) {
    while !core.outcome.is_over() {
        // Waking a task runs it, and what it does may panic; the other tasks are not to suffer.
        let turn = catch_unwind(AssertUnwindSafe(|| match &core.doorbell {
            Some(doorbell) => core.receive_by_doorbell(doorbell),
            None => core.receive_by_looking(),
        }));
        if turn.is_err() {
            tracing::error!(link = &*core.label, "a task that was woken by an answer panicked");
        }
    }
}

impl Core {
    /// Parked until a call is registered; then sleeps on the doorbell, until it is silent for a while and no
    /// call is registered.
    fn receive_by_doorbell(&self, doorbell: &Doorbell) {
        if !self.parker.park(LOOK_AFTER) {
            if self.peer.region().is_poisoned() {
                self.end(End::ProtocolError(ProtocolError::MemoryGone));
            }
            return;
        }
        while !self.outcome.is_over() {
            // Read before the ring is looked at: a ring of the doorbell after that ends the wait.
            let rung = doorbell.rung();
            self.look_for_all();
            if self.outcome.is_over() {
                return;
            }
            self.counters.sleeps.bump();
            match doorbell.wait(rung, LOOK_AFTER) {
                Waited::Rung => {}
                Waited::TimedOut if self.is_dismissed() => return,
                Waited::TimedOut => {}
                Waited::Unavailable => {
                    self.parker.park(PAUSES.1);
                }
            }
        }
    }

    /// Whether the receiver thread may be parked.
    fn is_dismissed(&self) -> bool {
        let mut intake = self.lead();
        let is_dismissed = self.waiting.is_empty();
        if is_dismissed {
            // From now on no thread waits for the doorbell. A call that registers meanwhile is found when the
            // lead is given up.
            self.disarm(&mut intake);
            intake.has_receiver = false;
        }
        self.leave(intake, &mut Wakes::default());
        is_dismissed
    }

    /// Looks at growing intervals as long as calls are registered, and is parked otherwise.
    fn receive_by_looking(&self) {
        let (mut pause, mut answers) = (PAUSES.0, self.counters.answers());
        while !self.outcome.is_over() {
            if self.waiting.is_empty() && self.is_dismissed() {
                break;
            }
            self.look_for_all();
            // Whichever thread took them out: where answers come, more do.
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
            self.parker.park(LOOK_AFTER);
        }
    }

    /// Takes out all that is there, wakes the calls that are registered for it, and arms for the rest of
    /// them.
    fn look_for_all(&self) {
        let mut wakes = Wakes::default();
        while !self.outcome.is_over() {
            let mut intake = self.lead();
            // The doorbell was rung: it must be armed anew.
            self.disarm(&mut intake);
            let drained = match self.peer.region().is_poisoned() {
                true => Err(ProtocolError::MemoryGone),
                false => self.drain(&mut intake, None, &mut wakes),
            };
            if let Err(error) = drained {
                return self.fail(intake, error, &mut wakes);
            }
            let is_full = wakes.is_full();
            self.leave(intake, &mut wakes);
            if !is_full {
                return;
            }
        }
    }
}
