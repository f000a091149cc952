//! Parking of a caller on the doorbell while its call is the only one.

use std::sync::atomic::Ordering::Acquire;
use std::time::Duration;

use tombolo_shm::cells::{DoorbellWord, SleepOutcome};
use tombolo_shm::doorbell::PeerDoorbell;
use tombolo_sys::moment::Moment;

use super::completion_slot::Phase;
use super::core::Core;
use super::error::LineError;
use super::leader::Intake;
use super::message::RawReply;
use super::wakes::Wakes;
use crate::end::ProtocolError;

/// Interval of checks for truncated memory, for which no doorbell rings.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

impl Core {
    /// Sleeps on the doorbell until the answer is received, if no other call is outstanding. Returns `None`
    /// if the caller must wait in another way.
    pub(super) fn park(&self, id: u32) -> Option<Result<RawReply, LineError>> {
        let doorbell = self.doorbell.as_ref()?;
        // If another request is sent meanwhile, this thread receives its answer too, or is unparked by its
        // caller.
        if self.counters.in_flight() != 1 || self.ids.is_wanted() {
            return None;
        }
        let mut intake = self.try_lead()?;
        let mut wakes = Wakes::default();
        // The answer may have been received before this thread took the lead; from now on no other thread
        // takes answers out.
        let is_answered = self.slot(id).phase(id) == Phase::Answered;
        if is_answered || intake.is_receiving || !self.waiting.is_empty() {
            self.release_lead(intake, &mut wakes);
            return None;
        }
        self.leader_park.begin();
        let since = Moment::now();
        let found = self.park_as_leader(&mut intake, doorbell, id, &mut wakes);
        self.leader_park.end();
        self.disarm(&mut intake);
        match found {
            Ok(answer) => {
                intake.window.slept(since.elapsed());
                self.release_lead(intake, &mut wakes);
                answer.map(Ok)
            }
            Err(error) => {
                self.fail(intake, error, &mut wakes);
                Some(Err(self.lost()))
            }
        }
    }

    fn park_as_leader(
        &self,
        intake: &mut Intake,
        doorbell: &PeerDoorbell,
        id: u32,
        wakes: &mut Wakes,
    ) -> Result<Option<RawReply>, ProtocolError> {
        let mut answers_before = None;
        loop {
            // The number of rings is read before the message ring is checked: a later ring of the doorbell
            // ends the wait.
            let rung = doorbell.load(Acquire);
            intake.notify_flag.arm();
            let found = self.drain(intake, Some(id), wakes)?;
            // The doorbell learns whether the last sleep, if there was one, has brought answers.
            let answers = self.counters.answers();
            answers_before.replace(answers).into_iter().for_each(|before| doorbell.slept(before != answers));
            let is_over = self.outcome.is_over() || self.leader_park.is_unpark_requested();
            if found.is_some() || is_over || !wakes.is_empty() {
                return Ok(found);
            }
            if self.peer.region().is_poisoned() {
                return Err(ProtocolError::MemoryGone);
            }
            intake.consumer.check()?;
            self.counters.intake.parks.bump();
            if doorbell.wait(rung, Some(CHECK_INTERVAL)) == SleepOutcome::Unsupported {
                return Ok(None);
            }
        }
    }
}
