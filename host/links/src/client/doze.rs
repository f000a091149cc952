//! A caller that sleeps on the doorbell itself, as its call is the only one.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use super::core::Core;
use super::ear::{Doorbell, Heard};
use super::entry::Phase;
use super::error::LineError;
use super::intake::Intake;
use super::reply::Answer;
use super::wakes::Wakes;
use crate::end::Lie;
use tombolo_host_runtime::lock;

/// After so long it looks whether the memory is still there, though nobody rings.
const LOOK_AFTER: Duration = Duration::from_secs(1);

/// Whether the leader sleeps on the doorbell, and whether it is to stop.
#[derive(Debug, Default)]
pub(super) struct Doze {
    is_dozing: AtomicBool,
    is_unwelcome: AtomicBool,
    /// Who does, or did last.
    dozer: Mutex<Option<ThreadId>>,
}

impl Doze {
    fn begin(&self) {
        *lock(&self.dozer) = Some(thread::current().id());
        self.is_unwelcome.store(false, Ordering::Relaxed);
        self.is_dozing.store(true, Ordering::SeqCst);
    }

    fn end(&self) {
        self.is_dozing.store(false, Ordering::SeqCst);
    }

    /// Whether another thread than this one dozes.
    fn is_anothers(&self) -> bool {
        self.is_dozing.load(Ordering::SeqCst) && *lock(&self.dozer) != Some(thread::current().id())
    }
}

impl Core {
    /// Sleeps on the doorbell until the answer comes, if that is the only one that is awaited. None if it is to be awaited in
    /// another way.
    pub(super) fn doze(&self, id: u32) -> Option<Result<Answer, LineError>> {
        let doorbell = self.doorbell.as_ref()?;
        // Whoever asks meanwhile drives us away.
        if self.counters.in_flight() != 1 || self.ids.is_wanted() {
            return None;
        }
        let mut intake = self.try_lead()?;
        let mut wakes = Wakes::default();
        // It may have been answered before we had the lead; nobody else takes answers out from now on.
        let is_answered = self.entry(id).phase(id) == Phase::Answered;
        if is_answered || intake.is_manned || !self.waiting.is_empty() {
            self.leave(intake, &mut wakes);
            return None;
        }
        self.doze.begin();
        let since = Instant::now();
        let found = self.doze_as_leader(&mut intake, doorbell, id, &mut wakes);
        self.doze.end();
        self.disarm(&mut intake);
        match found {
            Ok(answer) => {
                intake.window.slept(since.elapsed());
                self.leave(intake, &mut wakes);
                answer.map(Ok)
            }
            Err(lie) => {
                self.caught(intake, lie, &mut wakes);
                Some(Err(self.lost()))
            }
        }
    }

    fn doze_as_leader(
        &self,
        intake: &mut Intake,
        doorbell: &Doorbell,
        id: u32,
        wakes: &mut Wakes,
    ) -> Result<Option<Answer>, Lie> {
        loop {
            // Before the look: who rings after it is heard.
            let rung = doorbell.rung();
            intake.ear.arm();
            let found = self.drain(intake, Some(id), wakes)?;
            let is_over = self.fate.is_over() || self.doze.is_unwelcome.load(Ordering::SeqCst);
            if found.is_some() || is_over || !wakes.is_empty() {
                return Ok(found);
            }
            if self.peer.region().is_poisoned() {
                return Err(Lie::MemoryGone);
            }
            intake.consumer.check()?;
            self.counters.intake.dozes.bump();
            if doorbell.wait(rung, LOOK_AFTER) == Heard::Nowhere {
                return Ok(None);
            }
        }
    }

    /// Another caller looks for its answer: who dozes is to give the lead up. To be repeated, for it may not sleep yet.
    #[inline]
    pub(super) fn drive_away(&self) {
        if self.doze.is_dozing.load(Ordering::Relaxed) {
            self.doze.is_unwelcome.store(true, Ordering::SeqCst);
            self.doorbell.iter().for_each(Doorbell::nudge);
        }
    }

    /// The link has ended. Who dozes may find that itself, as it sends what has waited for an id: it stops at its next step.
    pub(super) fn drive_away_for_good(&self) {
        while self.doze.is_anothers() {
            self.drive_away();
            thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_dozes_need_not_drive_itself_away() {
        let doze = Doze::default();
        assert!(!doze.is_anothers());
        doze.begin();
        assert!(!doze.is_anothers());
        thread::scope(|scope| scope.spawn(|| assert!(doze.is_anothers())).join()).expect("seen");
        doze.end();
        thread::scope(|scope| scope.spawn(|| assert!(!doze.is_anothers())).join()).expect("gone");
    }
}
