//! Receiving answers: the thread that has locked the [`Intake`] is the leader, and takes answers out of the
//! ring for all callers.
//!
//! # Which thread receives
//!
//! A caller that polls for its answer tries to become the leader. As such it takes out all available answers,
//! stores those of other callers in their completion slots, and stops when its own is among them. While
//! another thread leads, a caller polls its completion slot instead.
//!
//! Calls that no thread polls are *registered*: the completion slot contains a waker, and [`Core::waiting`]
//! counts them. For them the server has to ring. *Armed* means that the notify flag in this side's header is
//! set, and that the ring was checked once more afterwards. The receiver thread then sleeps on the server's
//! doorbell, and stays there: arming does not wake it, except for the first time after a second without
//! registered calls.
//!
//! A caller that blocks on the only outstanding call need not register. It *parks*: keeps the lead, arms, and
//! sleeps on the doorbell itself, which saves a wake-up. It does so only while the receiver thread is not on
//! the doorbell, since the server wakes one thread. Another caller that polls for its answer unparks it; it
//! then registers like others.
//!
//! Without a doorbell *armed* means that the receiver thread polls at growing intervals. A registration
//! resets them.
//!
//! # Why no wake-up is lost
//!
//! Invariant: while a call is registered and its answer is in the ring or still to arrive, there is a leader,
//! or the line is armed, or the receiver thread is about to become leader.
//!
//! 1. A leader that leaves checks `waiting`. If calls are registered it arms, and checks the ring afterwards;
//!    if it finds messages it takes them out and starts again. A message that arrived before arming is thus
//!    found, and for a later one the server rings: the server checks the notify flag after it has stored the
//!    message, with a full fence on either side (docs/decisions/shm-rings.md).
//! 2. It releases the lead, and then checks `waiting` again: a caller first registers and then tries to
//!    become leader, with a full fence in between on either side. Either the leader sees the registration, or
//!    the caller becomes leader and arms.
//! 3. A ring of the doorbell wakes once, and the next one requires arming again, with another number. The
//!    thread that sleeps on the doorbell reads the number of its rings, waits to become leader, takes out the
//!    messages, arms if calls are registered, and sleeps unless the number has changed. After each ring of
//!    the doorbell the message ring is therefore checked, and the line armed anew.
//! 4. A leader that is about to poll for a while clears the flag, to spare the server a system call. It arms
//!    when it leaves, by 1.
//!
//! Tasks are woken when the lead is released, as they may run on this thread and make calls.
//!
//! `host/links/tests/it/receiver_model.rs` models these steps, and explores their interleavings; without any
//! one of them it finds a lost wake-up.

use std::hint::spin_loop;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::fence;
use std::task::Waker;
use std::thread;
use std::time::Duration;

use tombolo_shm::doorbell::Mode;
use tombolo_shm::ring::Message;
use tombolo_sys::moment::Moment;

use super::completion_slot::{CompletionSlot, Phase};
use super::core::Core;
use super::error::LineError;
use super::leader::Intake;
use super::message::{FRAME_MAX, Frame, RawReply, Spans};
use super::wakes::Wakes;
use crate::end::{EndReason, ProtocolError};
use tombolo_host_runtime::polling::PollWindow;

/// Number of polls between two readings of the clock: most answers arrive before the first reading.
const POLLS: u32 = 64;
/// Maximum time of one call's polling, in the modes `Poll` and `Umwait`.
const POLL: Duration = Duration::from_millis(1);

/// Result of a leader's polling.
enum PollResult {
    Reply(RawReply),
    /// No reply was received within the polling time.
    Nothing,
    /// Replies to other tasks were received; those tasks must be woken first.
    Others,
    ProtocolError(ProtocolError),
}

/// Progress of polling for a call. Most calls are answered before the time is read.
#[derive(Default)]
enum PollProgress {
    #[default]
    NotStarted,
    First,
    Since(Moment),
}

impl PollProgress {
    /// Begins a round of polls. Returns the start time of the second round, or `None` in the first two.
    #[inline]
    fn advance(&mut self) -> Option<Moment> {
        match *self {
            Self::NotStarted => {
                *self = Self::First;
                None
            }
            Self::First => {
                *self = Self::Since(Moment::now());
                None
            }
            Self::Since(since) => Some(since),
        }
    }
}

impl Core {
    /// Takes messages out of the ring until it is empty or `wakes` is full, or up to the answer to `own`, the
    /// call of this thread, which is returned.
    #[inline]
    pub(super) fn drain(
        &self,
        intake: &mut Intake,
        own: Option<u32>,
        wakes: &mut Wakes,
    ) -> Result<Option<RawReply>, ProtocolError> {
        while !wakes.is_full() {
            let Some(message) = intake.consumer.pop() else { break };
            if Some(message.id) == own {
                if intake.backoff.is_behind() {
                    intake.consumer.fetch();
                }
                return self.accept_own(&message, wakes).map(Some);
            }
            self.accept(&message, &mut intake.window, wakes)?;
        }
        Ok(None)
    }

    /// Accepts the answer to the call of this thread.
    #[inline]
    fn accept_own(&self, message: &Message, wakes: &mut Wakes) -> Result<RawReply, ProtocolError> {
        let id = message.id;
        let slot = self.slot(id);
        match slot.load() {
            (issued, Phase::Sent) if issued == id => {}
            (issued, Phase::Awaited) if issued == id => {
                // The call was polled as a future before, and is polled by this thread now.
                let waker = slot.completion().waker.take();
                drop(waker);
                self.waiting.leave();
            }
            _ => return Err(ProtocolError::AnsweredTwice { id }),
        }
        let answer = self.copy(message)?;
        slot.set(id, Phase::Free);
        self.counters.intake.own.bump();
        self.free(id, wakes);
        Ok(answer)
    }

    /// Accepts an answer to a call of another thread, or to a dropped call.
    fn accept(
        &self,
        message: &Message,
        window: &mut PollWindow,
        wakes: &mut Wakes,
    ) -> Result<(), ProtocolError> {
        let id = message.id;
        let slot = self.slot(id);
        let mut completion = slot.completion();
        match slot.load() {
            (issued, _) if issued != id => return Err(ProtocolError::NeverIssued { id }),
            (_, Phase::Free | Phase::Answered) => return Err(ProtocolError::AnsweredTwice { id }),
            (_, Phase::Sent) => completion.answer = Some(self.copy(message)?),
            (_, Phase::Awaited) => {
                completion.answer = Some(self.copy(message)?);
                self.waiting.leave();
                wakes.push(completion.waker.take());
                if let Some(since) = completion.since.take() {
                    window.slept(since.elapsed());
                }
            }
            (_, Phase::Abandoned) => {
                let spans = std::mem::take(&mut completion.spans);
                self.copy(message)?;
                slot.set(id, Phase::Free);
                drop(completion);
                drop(spans);
                self.free(id, wakes);
                return Ok(());
            }
        }
        slot.set(id, Phase::Answered);
        // The caller that is to take this answer may itself be queued for an id, so this one is freed.
        if self.ids.is_wanted() {
            self.park_reply(slot, completion, wakes);
        }
        Ok(())
    }

    /// Copies everything that the server could change, and checks it.
    #[inline]
    fn copy(&self, message: &Message) -> Result<RawReply, ProtocolError> {
        let Message { id, frame_len, kind, body } = *message;
        if frame_len as usize > FRAME_MAX {
            return Err(ProtocolError::FrameTooLong { id, len_bytes: frame_len });
        }
        let frame = Frame::copy(&self.spare, &self.peer, self.buffer(id), frame_len as usize);
        if self.peer.region().is_poisoned() {
            return Err(ProtocolError::MemoryGone);
        }
        self.counters.intake.answers.bump();
        Ok(RawReply { kind, body, frame })
    }

    /// Clears the notify flag if it is set, so that the server does not ring while this thread polls.
    #[inline]
    pub(super) fn disarm(&self, intake: &mut Intake) {
        if intake.notify_flag.is_armed() {
            intake.notify_flag.disarm();
            self.is_armed.store(false, Relaxed);
        }
    }

    /// Releases the lead, wakes the calls that were answered, and ensures that answers to registered calls
    /// will wake a thread.
    #[inline]
    pub(super) fn release_lead<'a>(&'a self, mut intake: MutexGuard<'a, Intake>, wakes: &mut Wakes) {
        loop {
            if wakes.is_empty() && !self.waiting.is_empty() && !intake.notify_flag.is_armed() {
                match self.arm(&mut intake, wakes) {
                    Ok(true) => continue,
                    Ok(false) => {}
                    Err(error) => return self.fail(intake, error, wakes),
                }
            }
            drop(intake);
            wakes.wake_all();
            fence(SeqCst);
            if self.is_settled() {
                return;
            }
            match self.try_lead() {
                Some(lead) => intake = lead,
                None => return,
            }
        }
    }

    /// Releases the lead for good after a protocol violation by the server.
    #[cold]
    pub(super) fn fail(&self, intake: MutexGuard<'_, Intake>, error: ProtocolError, wakes: &mut Wakes) {
        drop(intake);
        self.end(EndReason::ProtocolError(error));
        wakes.wake_all();
    }

    /// Requests a ring of the doorbell, and checks for messages once more. Returns `true` if it has found
    /// messages; the line is then not armed.
    #[cold]
    fn arm(&self, intake: &mut Intake, wakes: &mut Wakes) -> Result<bool, ProtocolError> {
        intake.notify_flag.arm();
        if !intake.consumer.is_ready() {
            intake.consumer.check()?;
            self.is_armed.store(true, SeqCst);
            if !intake.is_receiving {
                intake.is_receiving = true;
                self.parker.unpark();
            }
            return Ok(false);
        }
        intake.notify_flag.disarm();
        self.drain(intake, None, wakes)?;
        Ok(true)
    }

    /// Returns `true` if the line need not be armed: no call is registered, it is armed already, or it has
    /// ended.
    #[inline]
    fn is_settled(&self) -> bool {
        self.waiting.is_empty() || self.is_armed.load(SeqCst) || self.outcome.is_over()
    }

    /// Ensures that the next answer wakes a thread, for a newly registered call.
    pub(super) fn ensure_wakeup(&self) {
        if self.doorbell.is_none() {
            self.parker.unpark();
        }
        fence(SeqCst);
        if self.is_settled() {
            return;
        }
        if let Some(intake) = self.try_lead() {
            self.release_lead(intake, &mut Wakes::default());
        }
    }

    /// Polls for an answer, for as long as the mode permits. Returns `None` if none has arrived by then.
    #[inline]
    pub(super) fn poll(&self, id: u32) -> Option<Result<RawReply, LineError>> {
        let slot = self.slot(id);
        let mut wakes = Wakes::default();
        let mut progress = PollProgress::default();
        loop {
            if slot.phase(id) == Phase::Answered {
                return Some(Ok(self.take(slot, id)?));
            }
            if self.outcome.is_over() {
                return Some(Err(self.lost()));
            }
            let Some(mut intake) = self.try_lead() else {
                if !self.poll_slot(slot, id, &mut progress) {
                    return None;
                }
                continue;
            };
            // The call may have been answered before this thread became the leader.
            if slot.phase(id) == Phase::Answered {
                self.release_lead(intake, &mut wakes);
                continue;
            }
            let found = self.poll_as_leader(&mut intake, id, &mut wakes, &mut progress);
            if let PollResult::ProtocolError(error) = found {
                self.fail(intake, error, &mut wakes);
                continue;
            }
            self.release_lead(intake, &mut wakes);
            match found {
                PollResult::Reply(answer) => return Some(Ok(answer)),
                // Messages found while leaving may include the answer.
                PollResult::Nothing if slot.phase(id) == Phase::Answered => {}
                PollResult::Nothing => return None,
                PollResult::Others | PollResult::ProtocolError(_) => {}
            }
        }
    }

    #[inline]
    fn poll_as_leader(
        &self,
        intake: &mut Intake,
        id: u32,
        wakes: &mut Wakes,
        progress: &mut PollProgress,
    ) -> PollResult {
        loop {
            if self.may_back_off(intake) {
                intake.backoff.rest();
            }
            let found = self.drain(intake, Some(id), wakes);
            intake.backoff.looked(matches!(found, Ok(Some(_))));
            match found {
                Ok(Some(answer)) => return PollResult::Reply(answer),
                Ok(None) if wakes.is_empty() => {}
                Ok(None) => return PollResult::Others,
                Err(error) => return PollResult::ProtocolError(error),
            }
            if self.outcome.is_over() || !self.may_poll(intake, progress) {
                return PollResult::Nothing;
            }
            self.disarm(intake);
            for _ in 0..POLLS {
                if intake.consumer.is_ready() {
                    break;
                }
                spin_loop();
            }
        }
    }

    /// Returns `true` if the first poll of the next slot should be delayed, so that it does not take the
    /// cache line from the server.
    #[inline]
    fn may_back_off(&self, intake: &Intake) -> bool {
        match self.mode {
            Mode::Event => false,
            Mode::Adaptive => intake.window.is_open(),
            Mode::Poll | Mode::Umwait => true,
        }
    }

    /// Returns `true` if a leader should continue to poll.
    #[inline]
    fn may_poll(&self, intake: &mut Intake, progress: &mut PollProgress) -> bool {
        if self.mode == Mode::Event || self.mode == Mode::Adaptive && !intake.window.is_open() {
            return false;
        }
        match (progress.advance(), self.mode) {
            (None, _) => true,
            (Some(since), Mode::Adaptive) => intake.window.pause(since),
            (Some(since), _) => pause(since, POLL),
        }
    }

    /// Polls the completion slot briefly while another thread leads, and unparks a leader that sleeps.
    /// Returns `false` if the caller should stop polling.
    fn poll_slot(&self, slot: &CompletionSlot, id: u32, progress: &mut PollProgress) -> bool {
        if self.mode == Mode::Event {
            return false;
        }
        self.unpark_leader();
        for _ in 0..POLLS {
            if slot.phase(id) == Phase::Answered {
                return true;
            }
            spin_loop();
        }
        let limit = if self.mode == Mode::Adaptive { FOLLOW } else { POLL };
        progress.advance().is_none_or(|since| pause(since, limit))
    }

    /// Takes out available messages, as many as one `drain` does, unless another thread leads.
    pub(super) fn poll_once(&self) {
        if let Some(intake) = self.try_lead() {
            self.drain_once(intake);
        }
    }

    /// Takes out all available messages, even after the end of the link. Before the end, does nothing while
    /// another thread leads; afterwards waits for the lead, which no parked thread has any more.
    pub(super) fn receive(&self) {
        loop {
            let intake = if self.outcome.is_over() { Some(self.lead()) } else { self.try_lead() };
            if !intake.is_some_and(|intake| self.drain_once(intake)) {
                return;
            }
        }
    }

    /// Takes out available messages and releases the lead. Returns `true` if messages may be left.
    fn drain_once<'a>(&'a self, mut intake: MutexGuard<'a, Intake>) -> bool {
        let mut wakes = Wakes::default();
        match self.drain(&mut intake, None, &mut wakes) {
            Ok(_) => {
                let is_full = wakes.is_full();
                self.release_lead(intake, &mut wakes);
                is_full
            }
            Err(error) => {
                self.fail(intake, error, &mut wakes);
                false
            }
        }
    }

    /// Registers a call's waker, or returns the outcome if the call is answered or the line has ended.
    pub(super) fn register(&self, id: u32, waker: &Waker) -> Option<Result<RawReply, LineError>> {
        let slot = self.slot(id);
        let before = {
            let mut completion = slot.completion();
            match slot.phase(id) {
                Phase::Answered => None,
                Phase::Awaited if completion.waker.as_ref().is_some_and(|before| before.will_wake(waker)) => {
                    None
                }
                Phase::Awaited => completion.waker.replace(waker.clone()),
                _ => {
                    completion.since = (self.mode == Mode::Adaptive).then(Moment::now);
                    self.waiting.enter();
                    slot.set(id, Phase::Awaited);
                    completion.waker.replace(waker.clone())
                }
            }
        };
        // The waker is dropped outside of the lock, because it may own a task and all that the task owns.
        drop(before);
        if slot.phase(id) != Phase::Answered {
            // The end of the line wakes only wakers already registered.
            if self.outcome.is_over() {
                return Some(Err(self.lost()));
            }
            self.ensure_wakeup();
            if slot.phase(id) != Phase::Answered {
                return None;
            }
        }
        self.take(slot, id).map(Ok)
    }

    /// Abandons a call. Its id and bulk memory stay in use until it is answered.
    pub(super) fn abandon(&self, id: u32, spans: Spans) {
        let slot = self.slot(id);
        let mut completion = slot.completion();
        match slot.phase(id) {
            Phase::Answered => {
                drop(completion);
                drop((self.take(slot, id), spans));
                return;
            }
            Phase::Awaited => self.waiting.leave(),
            _ => {}
        }
        let waker = completion.waker.take();
        if !self.outcome.is_over() {
            completion.spans = spans;
            slot.set(id, Phase::Abandoned);
        }
        drop(completion);
        drop(waker);
    }
}

/// Maximum time that a caller polls its completion slot while another thread leads, in mode `Adaptive`.
const FOLLOW: Duration = Duration::from_micros(50);
/// Polling time after which [`pause`] yields the processor.
const EAGER: Duration = Duration::from_micros(2);

/// Pauses between two polls. Returns `false` once the limit is reached.
fn pause(since: Moment, limit: Duration) -> bool {
    let waited = since.elapsed();
    if waited > EAGER {
        thread::yield_now();
    }
    waited < limit
}
