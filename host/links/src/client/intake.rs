//! Receiving answers: the thread that holds the [`Intake`] is the leader, and takes them out of the ring for all callers.
//!
//! # Which thread receives
//!
//! A caller that looks for its answer tries to become the leader. As such it takes out whatever is there, leaves other callers' answers in
//! their completion slots, and stops when its own is among them. While another thread leads, a caller looks at its completion slot instead.
//!
//! Calls that no thread polls are *registered*: a waker lies in the completion slot, and [`Core::waiting`] counts them. For them the server
//! has to ring. *Armed* means that the notify flag in our header is set, and that the ring was looked at once more after that.
//! The receiver thread then sleeps on the server's doorbell, and stays there: arming need not wake it, but for the first time after
//! a second without registered calls.
//!
//! A caller that blocks while its call is the only one need not register. It *parks*: keeps the lead, arms, and sleeps on the doorbell
//! itself, so that one wake-up is spared. It does so only while the receiver thread is not there, for the server wakes one. Another
//! caller that looks for its answer then unparks it; it registers like others after that.
//!
//! Without a doorbell *armed* means that the receiver thread looks now and then, at growing intervals. A registration makes it begin with short
//! ones again.
//!
//! # Why no wake-up is lost
//!
//! The rule: while a call is registered and its answer is in the ring or still to come, there is a leader, or the line is armed, or
//! the receiver thread is about to become leader.
//!
//! 1. A leader that leaves looks at `waiting`. If calls are registered it arms, and looks at the ring after that; what it finds it
//!    takes out and starts again. So a message that came before the line was armed is found, and for one that comes after it the
//!    server rings: the server looks at the notify flag after it has stored the message, with a full fence on either side (docs/decisions/shm-rings.md).
//! 2. It gives the lead up, and then looks at `waiting` again: a caller first registers and then tries to become leader, with a full
//!    fence in between on either side. So either the leader sees the registration, or the caller becomes leader and arms.
//! 3. A doorbell ring wakes once, and the next one needs arming anew, with another number. The thread that sleeps on the doorbell reads its
//!    count, becomes leader (it waits for that), takes out what is there, arms if calls are registered, and sleeps unless the count has
//!    changed since. So after each ring of the doorbell the ring is looked at, and armed anew.
//! 4. A leader that is about to look for a while clears the flag, so that it costs the server no system call. It arms when it
//!    leaves, by 1.
//!
//! Tasks are woken when the lead is given up, for they may go on right there, and call.
//!
//! `host/links/tests/it/receiver_model.rs` has the same steps as a model, whose interleavings are tried; without any of them it finds a lost
//! wake-up.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::fence;
use std::sync::{MutexGuard, PoisonError, TryLockError};

use tombolo_mem::OutOfBounds;
use tombolo_shm::doorbell::PollBackoff;
use tombolo_shm::link::Ends;
use tombolo_shm::ring::{Consumer, Message};

use super::completion_slot::{Completion, CompletionSlot, Phase};
use super::core::{Core, Waiting};
use super::doorbell::NotifyFlag;
use super::frame::{FRAME_MAX, Frame};
use super::reply::RawReply;
use super::wakes::Wakes;
use crate::end::{End, ProtocolError};
use tombolo_host_runtime::lock;
use tombolo_host_runtime::polling::PollWindow;

/// What the leader has.
#[derive(Debug)]
pub(super) struct Intake {
    pub(super) consumer: Consumer,
    pub(super) notify_flag: NotifyFlag,
    /// Whether the receiver thread sleeps on the doorbell, or looks now and then if there is none, or is about to. It is parked while no call is
    /// registered.
    pub(super) has_receiver: bool,
    /// How long callers look, as they have learnt.
    pub(super) window: PollWindow,
    /// How long they leave the next slot alone first.
    pub(super) backoff: PollBackoff,
}

impl Intake {
    pub(super) fn new(ends: &Ends) -> Result<Self, OutOfBounds> {
        let layout = ends.layout;
        let consumer = Consumer::at(&ends.peer, layout.ring_offset(), layout.slots(), ends.epoch)?;
        Ok(Self {
            consumer,
            notify_flag: NotifyFlag::new(ends)?,
            has_receiver: false,
            window: PollWindow::default(),
            backoff: PollBackoff::default(),
        })
    }
}

impl Waiting {
    /// One more is registered. What this thread does afterwards comes after it for all threads.
    #[inline]
    pub(super) fn enter(&self) {
        self.0.fetch_add(1, SeqCst);
    }

    #[inline]
    pub(super) fn leave(&self) {
        self.0.fetch_sub(1, SeqCst);
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.load(SeqCst) == 0
    }
}

impl Core {
    /// Becomes the leader, unless another thread is.
    #[inline]
    pub(super) fn try_lead(&self) -> Option<MutexGuard<'_, Intake>> {
        match self.intake.try_lock() {
            Ok(intake) => Some(intake),
            // What a leader does is done message by message.
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Becomes the leader once no other thread is.
    pub(super) fn lead(&self) -> MutexGuard<'_, Intake> {
        self.intake.lock().unwrap_or_else(PoisonError::into_inner)
    }

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

    /// Parks a reply that its caller has not taken yet, and frees its id.
    #[cold]
    pub(super) fn park_reply(
        &self,
        slot: &CompletionSlot,
        mut completion: MutexGuard<'_, Completion>,
        wakes: &mut Wakes,
    ) {
        let (id, phase) = slot.look();
        if phase != Phase::Answered {
            return;
        }
        if let Some(answer) = completion.answer.take() {
            lock(&self.parked_replies).insert(id, answer);
        }
        slot.clear(id);
        drop(completion);
        self.free(id, wakes);
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

    /// Gives the lead up, wakes the calls whose answers came, and makes sure that the registered ones will be woken.
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
}
