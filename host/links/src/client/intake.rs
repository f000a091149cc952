//! Receiving answers: whoever holds the [`Intake`] is the leader, and takes them out of the ring for everybody.
//!
//! # Who receives
//!
//! A caller that looks for its answer tries to become the leader. As such it takes out whatever is there, leaves others' answers on
//! their desks, and stops when its own is among them. If another leads, it looks at its desk instead.
//!
//! Calls that nobody looks for are *registered*: a waker lies on the desk, and [`Core::waiting`] counts them. For them the server
//! has to ring. *Armed* means that the word `asleep` in our header says so, and that the ring was looked at once more since it does.
//! The receiver thread then sleeps on the server's doorbell, and stays there: whoever arms need not wake it, but for the first time after
//! a second in which nobody was registered.
//!
//! A caller that blocks while its call is the only one need not register. It *dozes*: keeps the lead, arms, and sleeps on the doorbell
//! itself, so that one wake-up is spared. It does so only while the receiver thread is not there, for the server wakes one. Another
//! caller that looks for its answer then drives it away; it registers like others after that.
//!
//! Without a doorbell *armed* means that the receiver thread looks now and then, at growing intervals. Who registers has it begin with short
//! ones again.
//!
//! # Why no wake-up is lost
//!
//! The rule: while a call is registered and its answer is in the ring or still to come, there is a leader, or the line is armed, or
//! the receiver thread is about to become leader.
//!
//! 1. A leader that leaves looks at `waiting`. If anybody is registered it arms, and looks at the ring after that; what it finds it
//!    takes out and starts again. So a message that came before the line was armed is found, and for one that comes after it the
//!    server rings: the server looks at `asleep` after it has stored the message, with a full fence on either side (docs/decisions/shm-rings.md).
//! 2. It gives the lead up, and then looks at `waiting` again: who registers does so first and then tries to become leader, with a full
//!    fence in between on either side. So either the leader sees who has registered, or they become leader and arm themselves.
//! 3. A ring is heard once, and the next one needs arming anew, with another number. Who sleeps on the doorbell reads its count, becomes
//!    leader (the thread waits for that), takes out what is there, arms if anybody is registered, and sleeps unless the count has changed
//!    since. So after each ring there is a look at the ring, and arming anew.
//! 4. A leader that means to look for a while takes the word back, so that it costs the server no system call. It arms when it
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

use super::core::{Core, Waiting};
use super::ear::Ear;
use super::entry::{Desk, Entry, Phase};
use super::frame::{FRAME_MAX, Frame};
use super::reply::Answer;
use super::wakes::Wakes;
use crate::end::{End, Lie};
use tombolo_host_runtime::lock;
use tombolo_host_runtime::polling::PollWindow;

/// What the leader has.
#[derive(Debug)]
pub(super) struct Intake {
    pub(super) consumer: Consumer,
    pub(super) ear: Ear,
    /// Whether the receiver thread sleeps on the doorbell, or looks now and then if there is none, or is about to. It rests elsewhere while
    /// nobody needs it.
    pub(super) is_manned: bool,
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
            ear: Ear::new(ends)?,
            is_manned: false,
            window: PollWindow::default(),
            backoff: PollBackoff::default(),
        })
    }
}

impl Waiting {
    /// One more is registered. What it does after this comes after it for everybody.
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
    /// Becomes the leader, unless somebody is.
    #[inline]
    pub(super) fn try_lead(&self) -> Option<MutexGuard<'_, Intake>> {
        match self.intake.try_lock() {
            Ok(intake) => Some(intake),
            // What a leader does is done message by message.
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Becomes the leader once nobody else is.
    pub(super) fn lead(&self) -> MutexGuard<'_, Intake> {
        self.intake.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes out what is there, until the answer to `own` is among it, whose caller is this very thread.
    #[inline]
    pub(super) fn drain(
        &self,
        intake: &mut Intake,
        own: Option<u32>,
        wakes: &mut Wakes,
    ) -> Result<Option<Answer>, Lie> {
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
    fn accept_own(&self, message: &Message, wakes: &mut Wakes) -> Result<Answer, Lie> {
        let id = message.id;
        let entry = self.entry(id);
        match entry.look() {
            (issued, Phase::Sent) if issued == id => {}
            (issued, Phase::Awaited) if issued == id => {
                // It was polled, and is waited for in another way now.
                let waker = entry.desk().waker.take();
                drop(waker);
                self.waiting.leave();
            }
            _ => return Err(Lie::AnsweredTwice { id }),
        }
        let answer = self.copy(message)?;
        entry.set(id, Phase::Free);
        self.counters.intake.own.bump();
        self.free(id, wakes);
        Ok(answer)
    }

    /// An answer that others wait for, or nobody.
    fn accept(&self, message: &Message, window: &mut PollWindow, wakes: &mut Wakes) -> Result<(), Lie> {
        let id = message.id;
        let entry = self.entry(id);
        let mut desk = entry.desk();
        match entry.look() {
            (issued, _) if issued != id => return Err(Lie::NeverIssued { id }),
            (_, Phase::Free | Phase::Answered) => return Err(Lie::AnsweredTwice { id }),
            (_, Phase::Sent) => desk.answer = Some(self.copy(message)?),
            (_, Phase::Awaited) => {
                desk.answer = Some(self.copy(message)?);
                self.waiting.leave();
                wakes.push(desk.waker.take());
                if let Some(since) = desk.since.take() {
                    window.slept(since.elapsed());
                }
            }
            (_, Phase::Abandoned) => {
                let spans = std::mem::take(&mut desk.spans);
                self.copy(message)?;
                entry.set(id, Phase::Free);
                drop(desk);
                drop(spans);
                self.free(id, wakes);
                return Ok(());
            }
        }
        entry.set(id, Phase::Answered);
        // Who is to take the answer may be the one who waits for an id.
        if self.ids.is_wanted() {
            self.put_aside(entry, desk, wakes);
        }
        Ok(())
    }

    /// Keeps an answer that nobody has taken yet elsewhere, and frees its id.
    #[cold]
    pub(super) fn put_aside(&self, entry: &Entry, mut desk: MutexGuard<'_, Desk>, wakes: &mut Wakes) {
        let (id, phase) = entry.look();
        if phase != Phase::Answered {
            return;
        }
        if let Some(answer) = desk.answer.take() {
            lock(&self.aside).insert(id, answer);
        }
        entry.clear(id);
        drop(desk);
        self.free(id, wakes);
    }

    /// Copies what the server could change, and checks it.
    #[inline]
    fn copy(&self, message: &Message) -> Result<Answer, Lie> {
        let Message { id, frame_len, kind, body } = *message;
        if frame_len as usize > FRAME_MAX {
            return Err(Lie::FrameTooLong { id, len_bytes: frame_len });
        }
        let frame = Frame::copy(&self.spare, &self.peer, self.buffer(id), frame_len as usize);
        if self.peer.region().is_poisoned() {
            return Err(Lie::MemoryGone);
        }
        self.counters.intake.answers.bump();
        Ok(Answer { kind, body, frame })
    }

    /// Means to look for a while: the server need not ring meanwhile.
    #[inline]
    pub(super) fn disarm(&self, intake: &mut Intake) {
        if intake.ear.is_armed() {
            intake.ear.disarm();
            self.is_armed.store(false, Relaxed);
        }
    }

    /// Gives the lead up, wakes those whose answers came, and sees to it that those who are registered are not forgotten.
    #[inline]
    pub(super) fn leave<'a>(&'a self, mut intake: MutexGuard<'a, Intake>, wakes: &mut Wakes) {
        loop {
            if wakes.is_empty() && !self.waiting.is_empty() && !intake.ear.is_armed() {
                match self.arm(&mut intake, wakes) {
                    Ok(true) => continue,
                    Ok(false) => {}
                    Err(lie) => return self.caught(intake, lie, wakes),
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

    /// Gives the lead up for good: the server lied.
    #[cold]
    pub(super) fn caught(&self, intake: MutexGuard<'_, Intake>, lie: Lie, wakes: &mut Wakes) {
        drop(intake);
        self.end(End::Lie(lie));
        wakes.wake_all();
    }

    /// Asks the server to ring, and looks once more. Whether something was there: then the line is not armed.
    #[cold]
    fn arm(&self, intake: &mut Intake, wakes: &mut Wakes) -> Result<bool, Lie> {
        intake.ear.arm();
        if !intake.consumer.is_ready() {
            intake.consumer.check()?;
            self.is_armed.store(true, SeqCst);
            if !intake.is_manned {
                intake.is_manned = true;
                self.rest.call();
            }
            return Ok(false);
        }
        intake.ear.disarm();
        self.drain(intake, None, wakes)?;
        Ok(true)
    }

    /// Whether nobody is registered, or the server rings for those who are.
    #[inline]
    fn is_settled(&self) -> bool {
        self.waiting.is_empty() || self.is_armed.load(SeqCst) || self.fate.is_over()
    }

    /// Sees to it that somebody hears of the next answer, for a call that has just registered.
    pub(super) fn see_to_it(&self) {
        if self.doorbell.is_none() {
            self.rest.call();
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
