//! The thread that hears of answers nobody looks for.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use super::core::Core;
use super::ear::{Doorbell, Heard};
use super::wakes::Wakes;
use crate::end::{End, Lie};
use tombolo_host_runtime::lock;

/// After so long it looks whether the memory is still there, though nobody rings.
const LOOK_AFTER: Duration = Duration::from_secs(1);
/// Without a doorbell: the first pause between two looks, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(5));

/// Where the thread rests when there is no doorbell and nobody is registered.
#[derive(Debug, Default)]
pub(super) struct Rest {
    is_called: Mutex<bool>,
    called: Condvar,
}

impl Rest {
    /// There is something to do.
    pub(super) fn call(&self) {
        let mut is_called = lock(&self.is_called);
        if !*is_called {
            *is_called = true;
            self.called.notify_one();
        }
    }

    /// Until there is something to do, or the time is up. Whether there is.
    fn rest(&self, at_most: Duration) -> bool {
        let is_called = lock(&self.is_called);
        let outcome = self.called.wait_timeout_while(is_called, at_most, |is_called| !*is_called);
        let mut is_called = match outcome {
            Ok((is_called, _)) => is_called,
            Err(poisoned) => poisoned.into_inner().0,
        };
        std::mem::take(&mut *is_called)
    }
}

/// Receives until the line ends.
pub(super) fn run(core: &Arc<Core>) {
    while !core.fate.is_over() {
        // Waking a task runs it, and what it does may panic; the others have done nothing.
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
    /// Rests until somebody is registered; then sleeps on the doorbell, until it is silent for a while and nobody is.
    fn receive_by_doorbell(&self, doorbell: &Doorbell) {
        if !self.rest.rest(LOOK_AFTER) {
            if self.peer.region().is_poisoned() {
                self.end(End::Lie(Lie::MemoryGone));
            }
            return;
        }
        while !self.fate.is_over() {
            // Before the look: who rings after it is heard.
            let rung = doorbell.rung();
            self.look_for_all();
            if self.fate.is_over() {
                return;
            }
            self.counters.sleeps.bump();
            match doorbell.wait(rung, LOOK_AFTER) {
                Heard::Something => {}
                Heard::Nothing if self.is_dismissed() => return,
                Heard::Nothing => {}
                Heard::Nowhere => {
                    self.rest.rest(PAUSES.1);
                }
            }
        }
    }

    /// Whether the receiver thread may go and rest.
    fn is_dismissed(&self) -> bool {
        let mut intake = self.lead();
        let is_dismissed = self.waiting.is_empty();
        if is_dismissed {
            // Nobody hears it from now on. Who registers meanwhile is seen to when the lead is given up.
            self.disarm(&mut intake);
            intake.is_manned = false;
        }
        self.leave(intake, &mut Wakes::default());
        is_dismissed
    }

    /// Looks at growing intervals as long as anybody is registered, and rests otherwise.
    fn receive_by_looking(&self) {
        let (mut pause, mut answers) = (PAUSES.0, self.counters.answers());
        while !self.fate.is_over() {
            if self.waiting.is_empty() && self.is_dismissed() {
                break;
            }
            self.look_for_all();
            // Whoever took them out: where answers come, more do.
            let before = std::mem::replace(&mut answers, self.counters.answers());
            if answers != before {
                pause = PAUSES.0;
            }
            if self.rest.rest(pause) {
                pause = PAUSES.0;
            } else {
                pause = (pause * 2).min(PAUSES.1);
            }
        }
        if !self.fate.is_over() {
            self.counters.sleeps.bump();
            self.rest.rest(LOOK_AFTER);
        }
    }

    /// Takes out all that is there, wakes those who are registered for it, and arms for the rest of them.
    fn look_for_all(&self) {
        let mut wakes = Wakes::default();
        while !self.fate.is_over() {
            let mut intake = self.lead();
            // The doorbell was heard: the next one must be asked for anew.
            self.disarm(&mut intake);
            let drained = match self.peer.region().is_poisoned() {
                true => Err(Lie::MemoryGone),
                false => self.drain(&mut intake, None, &mut wakes),
            };
            if let Err(lie) = drained {
                return self.caught(intake, lie, &mut wakes);
            }
            let is_full = wakes.is_full();
            self.leave(intake, &mut wakes);
            if !is_full {
                return;
            }
        }
    }
}
