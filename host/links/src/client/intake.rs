//! Receiving answers: the thread that holds the [`Intake`] is the leader, and takes them out of the ring for
//! all callers.
//!
//! # Which thread receives
//!
//! A caller that looks for its answer tries to become the leader. As such it takes out whatever is there,
//! leaves other callers' answers in their completion slots, and stops when its own is among them. While
//! another thread leads, a caller looks at its completion slot instead.
//!
//! Calls that no thread polls are *registered*: a waker lies in the completion slot, and [`Core::waiting`]
//! counts them. For them the server has to ring. *Armed* means that the notify flag in our header is set, and
//! that the ring was looked at once more after that. The receiver thread then sleeps on the server's
//! doorbell, and stays there: arming need not wake it, but for the first time after a second without
//! registered calls.
//!
//! A caller that blocks while its call is the only one need not register. It *parks*: keeps the lead, arms,
//! and sleeps on the doorbell itself, so that one wake-up is spared. It does so only while the receiver
//! thread is not there, for the server wakes one. Another caller that looks for its answer then unparks it;
//! it registers like others after that.
//!
//! Without a doorbell *armed* means that the receiver thread looks now and then, at growing intervals. A
//! registration makes it begin with short ones again.
//!
//! # Why no wake-up is lost
//!
//! The rule: while a call is registered and its answer is in the ring or still to come, there is a leader, or
//! the line is armed, or the receiver thread is about to become leader.
//!
//! 1. A leader that leaves looks at `waiting`. If calls are registered it arms, and looks at the ring after
//!    that; what it finds it takes out and starts again. So a message that came before the line was armed is
//!    found, and for one that comes after it the server rings: the server looks at the notify flag after it
//!    has stored the message, with a full fence on either side (docs/decisions/shm-rings.md).
//! 2. It gives the lead up, and then looks at `waiting` again: a caller first registers and then tries to
//!    become leader, with a full fence in between on either side. So either the leader sees the registration,
//!    or the caller becomes leader and arms.
//! 3. A doorbell ring wakes once, and the next one needs arming anew, with another number. The thread that
//!    sleeps on the doorbell reads its count, becomes leader (it waits for that), takes out what is there,
//!    arms if calls are registered, and sleeps unless the count has changed since. So after each ring of the
//!    doorbell the ring is looked at, and armed anew.
//! 4. A leader that is about to look for a while clears the flag, so that it costs the server no system call.
//!    It arms when it leaves, by 1.
//!
//! Tasks are woken when the lead is given up, for they may go on right there, and call.
//!
//! `host/links/tests/it/receiver_model.rs` has the same steps as a model, whose interleavings are tried;
//! without any of them it finds a lost wake-up.

use std::hint::spin_loop;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::fence;
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use tombolo_shm::doorbell::Mode;
use tombolo_shm::ring::Message;

use super::completion_slot::{CompletionSlot, Phase};
use super::core::Core;
use super::error::LineError;
use super::leader::Intake;
use super::message::{FRAME_MAX, Frame, RawReply, Spans};
use super::wakes::Wakes;
use crate::end::{End, ProtocolError};
use tombolo_host_runtime::polling::PollWindow;

/// So often a caller looks before it asks the clock: most answers come sooner.
const LOOKS: u32 = 64;
/// So long a caller looks in mode `poll`, before it yields.
const POLL: Duration = Duration::from_millis(1);

/// What a leader found.
enum Found {
    Reply(RawReply),
    /// The time is up.
    Nothing,
    /// Other tasks must be woken before it goes on.
    Others,
    ProtocolError(ProtocolError),
}

/// How long a call has been polled. Most are answered before the clock is read, which is a system call in
/// some guests.
#[derive(Default)]
enum Looked {
    #[default]
    NotYet,
    ForAMoment,
    Since(Instant),
}

impl Looked {
    /// Looks once more: since when, but for the first few looks.
    #[inline]
    fn go_on(&mut self) -> Option<Instant> {
        match *self {
            Self::NotYet => {
                *self = Self::ForAMoment;
                None
            }
            Self::ForAMoment => {
                *self = Self::Since(Instant::now());
                None
            }
            Self::Since(since) => Some(since),
        }
    }
}

impl Core {
    /// Takes out what is there, until the answer to `own` is among it: the call of this very thread.
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

    /// The answer to the call of this very thread.
    #[inline]
    fn accept_own(&self, message: &Message, wakes: &mut Wakes) -> Result<RawReply, ProtocolError> {
        let id = message.id;
        let slot = self.slot(id);
        match slot.look() {
            (issued, Phase::Sent) if issued == id => {}
            (issued, Phase::Awaited) if issued == id => {
                // It was polled, and is waited for in another way now.
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

    /// An answer to a call of another thread, or to a dropped one.
    fn accept(
        &self,
        message: &Message,
        window: &mut PollWindow,
        wakes: &mut Wakes,
    ) -> Result<(), ProtocolError> {
        let id = message.id;
        let slot = self.slot(id);
        let mut completion = slot.completion();
        match slot.look() {
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
        // The caller that is to take this answer may be waiting for an id.
        if self.ids.is_wanted() {
            self.park_reply(slot, completion, wakes);
        }
        Ok(())
    }

    /// Copies what the server could change, and checks it.
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

    /// Means to look for a while: the server need not ring meanwhile.
    #[inline]
    pub(super) fn disarm(&self, intake: &mut Intake) {
        if intake.notify_flag.is_armed() {
            intake.notify_flag.disarm();
            self.is_armed.store(false, Relaxed);
        }
    }

    /// Gives the lead up, wakes the calls whose answers came, and makes sure that the registered ones will be
    /// woken.
    #[inline]
    pub(super) fn leave<'a>(&'a self, mut intake: MutexGuard<'a, Intake>, wakes: &mut Wakes) {
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

    /// Gives the lead up for good: protocol violation by the server.
    #[cold]
    pub(super) fn fail(&self, intake: MutexGuard<'_, Intake>, error: ProtocolError, wakes: &mut Wakes) {
        drop(intake);
        self.end(End::ProtocolError(error));
        wakes.wake_all();
    }

    /// Asks the server to ring, and looks once more. Whether something was there: then the line is not armed.
    #[cold]
    fn arm(&self, intake: &mut Intake, wakes: &mut Wakes) -> Result<bool, ProtocolError> {
        intake.notify_flag.arm();
        if !intake.consumer.is_ready() {
            intake.consumer.check()?;
            self.is_armed.store(true, SeqCst);
            if !intake.has_receiver {
                intake.has_receiver = true;
                self.parker.unpark();
            }
            return Ok(false);
        }
        intake.notify_flag.disarm();
        self.drain(intake, None, wakes)?;
        Ok(true)
    }

    /// Whether no call is registered, or the server rings for those that are.
    #[inline]
    fn is_settled(&self) -> bool {
        self.waiting.is_empty() || self.is_armed.load(SeqCst) || self.outcome.is_over()
    }

    /// Makes sure that the next answer wakes a thread, for a call that has just registered.
    pub(super) fn ensure_wakeup(&self) {
        if self.doorbell.is_none() {
            self.parker.unpark();
        }
        fence(SeqCst);
        if self.is_settled() {
            return;
        }
        if let Some(intake) = self.try_lead() {
            self.leave(intake, &mut Wakes::default());
        }
    }
    /// Looks for an answer as long as that pays.
    #[inline]
    pub(super) fn look(&self, id: u32) -> Option<Result<RawReply, LineError>> {
        let slot = self.slot(id);
        let mut wakes = Wakes::default();
        let mut looked = Looked::default();
        loop {
            if slot.phase(id) == Phase::Answered {
                return Some(Ok(self.take(slot, id)?));
            }
            if self.outcome.is_over() {
                return Some(Err(self.lost()));
            }
            let Some(mut intake) = self.try_lead() else {
                if !self.look_at_slot(slot, id, &mut looked) {
                    return None;
                }
                continue;
            };
            // It may have been answered after the look and before the lead.
            if slot.phase(id) == Phase::Answered {
                self.leave(intake, &mut wakes);
                continue;
            }
            let found = self.look_as_leader(&mut intake, id, &mut wakes, &mut looked);
            if let Found::ProtocolError(error) = found {
                self.fail(intake, error, &mut wakes);
                continue;
            }
            self.leave(intake, &mut wakes);
            match found {
                Found::Reply(answer) => return Some(Ok(answer)),
                // What was found while leaving may be ours.
                Found::Nothing if slot.phase(id) == Phase::Answered => {}
                Found::Nothing => return None,
                Found::Others | Found::ProtocolError(_) => {}
            }
        }
    }

    #[inline]
    fn look_as_leader(&self, intake: &mut Intake, id: u32, wakes: &mut Wakes, looked: &mut Looked) -> Found {
        loop {
            if self.may_rest(intake) {
                intake.backoff.rest();
            }
            let found = self.drain(intake, Some(id), wakes);
            intake.backoff.looked(matches!(found, Ok(Some(_))));
            match found {
                Ok(Some(answer)) => return Found::Reply(answer),
                Ok(None) if wakes.is_empty() => {}
                Ok(None) => return Found::Others,
                Err(error) => return Found::ProtocolError(error),
            }
            if self.outcome.is_over() || !self.may_look(intake, looked) {
                return Found::Nothing;
            }
            self.disarm(intake);
            for _ in 0..LOOKS {
                if intake.consumer.is_ready() {
                    break;
                }
                spin_loop();
            }
        }
    }

    /// Whether to leave the next slot alone for a moment before the first look at it.
    #[inline]
    fn may_rest(&self, intake: &Intake) -> bool {
        match self.mode {
            Mode::Event => false,
            Mode::Adaptive => intake.window.is_open(),
            Mode::Poll | Mode::Umwait => true,
        }
    }

    /// Whether to go on looking, as a leader.
    #[inline]
    fn may_look(&self, intake: &mut Intake, looked: &mut Looked) -> bool {
        if self.mode == Mode::Event || self.mode == Mode::Adaptive && !intake.window.is_open() {
            return false;
        }
        match (looked.go_on(), self.mode) {
            (None, _) => true,
            (Some(since), Mode::Adaptive) => intake.window.pause(since),
            (Some(since), _) => pause(since, POLL),
        }
    }

    /// Looks at the completion slot for a moment while another thread leads. False if it is time to do
    /// something else.
    fn look_at_slot(&self, slot: &CompletionSlot, id: u32, looked: &mut Looked) -> bool {
        if self.mode == Mode::Event {
            return false;
        }
        self.unpark_leader();
        for _ in 0..LOOKS {
            if slot.phase(id) == Phase::Answered {
                return true;
            }
            spin_loop();
        }
        let limit = if self.mode == Mode::Adaptive { FOLLOW } else { POLL };
        looked.go_on().is_none_or(|since| pause(since, limit))
    }

    /// Looks once whether something is there.
    pub(super) fn look_once(&self) {
        let mut wakes = Wakes::default();
        let Some(mut intake) = self.try_lead() else { return };
        match self.drain(&mut intake, None, &mut wakes) {
            Ok(_) => self.leave(intake, &mut wakes),
            Err(error) => self.fail(intake, error, &mut wakes),
        }
    }

    /// Registers the waker, unless the answer is there.
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
                    completion.since = (self.mode == Mode::Adaptive).then(Instant::now);
                    self.waiting.enter();
                    slot.set(id, Phase::Awaited);
                    completion.waker.replace(waker.clone())
                }
            }
        };
        // Not under the lock: dropping a waker may drop a task, and what that holds.
        drop(before);
        if slot.phase(id) != Phase::Answered {
            // The end of the line wakes the wakers that it finds registered, and no others.
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

    /// The call was dropped. Its id and its bulk memory stay out until the answer comes.
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

/// For so long a caller that looks at its completion slot waits for a leader.
const FOLLOW: Duration = Duration::from_micros(50);
/// For so long it does so without yielding.
const EAGER: Duration = Duration::from_micros(2);

/// Waits a moment between two looks. False once the time is up.
fn pause(since: Instant, limit: Duration) -> bool {
    let looked = since.elapsed();
    if looked > EAGER {
        thread::yield_now();
    }
    looked < limit
}
