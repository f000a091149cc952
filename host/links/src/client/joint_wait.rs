//! Receiving on a thread that waits for a descriptor of its own, too, in the receiver thread's place
//! ([`tombolo_host_runtime::joint_wait`]).
//!
//! The thread has the place from one wait to the next, and counts as being on the doorbell all that time:
//! arming wakes no thread, because the one in the place reads the doorbell's count and checks the ring before
//! it sleeps. The receiver thread is parked meanwhile. Once a second it checks that the thread in its place
//! is asleep; otherwise that thread may be blocked, and the receiver thread takes out the answers.

use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, Weak};
use std::thread::{self, ThreadId};
use std::time::Duration;

use tombolo_core::lock;
use tombolo_host_runtime::joint_wait::{self, Receiving};
use tombolo_shm::cells::{DoorbellWord, SleepOutcome};
use tombolo_shm::doorbell::PeerDoorbell;
use tombolo_sys::moment::Moment;

use super::core::Core;
use super::leader::{Parker, Receiver};
use super::receiver::CHECK_INTERVAL;
use super::wakes::Wakes;
use crate::end::{EndReason, ProtocolError};

/// Maximum wait of each attempt for the receiver thread to leave its place.
const HAND_OVER: Duration = Duration::from_millis(100);

/// State of a thread in the receiver thread's place.
#[derive(Debug, Default)]
pub(super) struct JointWait {
    /// `true` while a thread waits for the receiver thread's place; changed by the leader.
    is_wanted: AtomicBool,
    handed_over: Parker,
    /// The thread in the place.
    holder: Mutex<Option<ThreadId>>,
    /// `true` while that thread sleeps.
    is_asleep: AtomicBool,
    /// Number of answers at the last ring.
    answers: AtomicU64,
}

impl Core {
    /// Offers the receiver thread's place to other threads, if the line's doorbell is a descriptor.
    pub(super) fn offer_place(self: &Arc<Core>) {
        if self.doorbell.as_ref().is_some_and(PeerDoorbell::is_bell) {
            let core: Weak<dyn Receiving> = Arc::<Core>::downgrade(self);
            joint_wait::offer(core);
        }
    }

    /// Passes the receiver thread's place to the thread that waits for it, and returns `true`, if there is
    /// one. Called by the receiver thread before it sleeps.
    pub(super) fn hand_over(&self) -> bool {
        if !self.joint.is_wanted.load(SeqCst) {
            return false;
        }
        let mut intake = self.lead();
        let is_handed_over = self.joint.is_wanted.swap(false, SeqCst);
        if is_handed_over {
            intake.receiver = Receiver::Joint;
            self.joint.handed_over.unpark();
        }
        self.release_lead(intake, &mut Wakes::default());
        is_handed_over
    }

    /// Takes out answers if the thread in the receiver thread's place may be blocked. Called by the receiver
    /// thread once a second while it is parked.
    pub(super) fn stand_in(&self) {
        let Some(intake) = self.try_lead() else { return };
        let is_joint = intake.receiver == Receiver::Joint;
        // A call that registers meanwhile is found when the lead is released.
        self.release_lead(intake, &mut Wakes::default());
        if is_joint && !self.joint.is_asleep.load(SeqCst) && !self.waiting.is_empty() {
            self.drain_all();
        }
    }

    /// Gives the place back if this thread has it, before it blocks in [`Call::wait`](super::Call::wait).
    pub(super) fn leave_place_to_block(&self) {
        self.leave_place();
    }

    /// Takes the place of a receiver thread that is parked, or requests that of one that is not: returns
    /// `None` in the second case, and `Some(false)` if another thread leads, has the place or waits for it.
    fn try_take_place(&self) -> Option<bool> {
        // A leader that sleeps on the doorbell has the lead for long.
        let Some(mut intake) = self.try_lead() else { return Some(false) };
        let taken = match intake.receiver {
            Receiver::Joint => Some(false),
            // One thread at a time waits for the hand-over.
            Receiver::Thread if self.joint.is_wanted.load(SeqCst) => Some(false),
            Receiver::None => {
                intake.receiver = Receiver::Joint;
                Some(true)
            }
            Receiver::Thread => {
                self.joint.is_wanted.store(true, SeqCst);
                None
            }
        };
        self.release_lead(intake, &mut Wakes::default());
        taken
    }

    /// Ends the wait for the receiver thread to leave. Returns `true` if it has left meanwhile.
    fn withdraw(&self) -> bool {
        let intake = self.lead();
        let is_handed_over = !self.joint.is_wanted.swap(false, SeqCst);
        if is_handed_over {
            self.joint.handed_over.park(Duration::ZERO);
        }
        self.release_lead(intake, &mut Wakes::default());
        is_handed_over
    }

    fn has_place(&self) -> bool {
        *lock(&self.joint.holder) == Some(thread::current().id())
    }

    fn receive_beside(&self, doorbell: &PeerDoorbell, own: BorrowedFd<'_>) -> Option<Duration> {
        let (mut asleep, mut is_rung) = (Duration::ZERO, false);
        while !self.outcome.is_over() && self.has_place() {
            // The number of rings is read before the message ring is checked: a later ring of the doorbell
            // ends the wait.
            let rung = doorbell.load(Acquire);
            self.drain_all();
            if is_rung {
                // Answers are counted from ring to ring, because those of this ring may have been taken out
                // before the sleep that it ended.
                let answers = self.counters.answers();
                doorbell.slept(self.joint.answers.swap(answers, Relaxed) != answers);
            }
            if self.outcome.is_over() {
                break;
            }
            self.counters.sleeps.bump();
            self.joint.is_asleep.store(true, Relaxed);
            let since = Moment::now();
            let (outcome, is_own) = doorbell.wait_beside(rung, own, CHECK_INTERVAL);
            asleep += since.elapsed();
            self.joint.is_asleep.store(false, Relaxed);
            match outcome {
                SleepOutcome::Unsupported => return None,
                _ if is_own => return Some(asleep),
                SleepOutcome::Woken => is_rung = true,
                SleepOutcome::TimedOut if self.peer.region().is_poisoned() => {
                    self.end(EndReason::ProtocolError(ProtocolError::MemoryGone));
                }
                SleepOutcome::TimedOut => is_rung = false,
            }
        }
        None
    }
}

impl Receiving for Core {
    fn take_place(&self) -> bool {
        if self.outcome.is_over() {
            return false;
        }
        let is_taken = self.try_take_place().unwrap_or_else(|| {
            self.doorbell.iter().for_each(DoorbellWord::wake);
            self.joint.handed_over.park(HAND_OVER) || self.withdraw()
        });
        if is_taken {
            *lock(&self.joint.holder) = Some(thread::current().id());
        }
        is_taken
    }

    fn wait_beside(&self, own: BorrowedFd<'_>) -> Option<Duration> {
        let doorbell = self.doorbell.as_ref()?;
        loop {
            // Waking a task may run it on this thread; its panic must not affect the thread's own work.
            match catch_unwind(AssertUnwindSafe(|| self.receive_beside(doorbell, own))) {
                Ok(asleep) => return asleep,
                Err(_) => tracing::error!(link = &*self.label, "task panicked on its answer"),
            }
        }
    }

    fn leave_place(&self) {
        // Another thread may have the place by now.
        if lock(&self.joint.holder).take_if(|holder| *holder == thread::current().id()).is_none() {
            return;
        }
        let mut intake = self.lead();
        if self.waiting.is_empty() {
            self.disarm(&mut intake);
            intake.receiver = Receiver::None;
        } else {
            intake.receiver = Receiver::Thread;
            self.parker.unpark();
        }
        self.release_lead(intake, &mut Wakes::default());
    }
}
