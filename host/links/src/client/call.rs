//! A call, and the ways to wait for its answer.

use std::future::{Future, poll_fn};
use std::hint::spin_loop;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use tombolo_core::block_on;
use tombolo_shm::doorbell::Mode;

use super::completion_slot::{CompletionSlot, Phase};
use super::core::Core;
use super::error::LineError;
use super::frame::{FRAME_MAX, FrameWriter, new_buffer};
use super::intake::Intake;
use super::queued_request::{QueuedRequest, Stage as QueuedStage};
use super::reply::{RawReply, Reply};
use super::spans::Spans;
use super::wakes::Wakes;
use crate::end::ProtocolError;
use tombolo_host_runtime::lock;

/// A call that was made. Dropping it gives up the answer, not the request: its id stays out, and its spans in use, until the server
/// has answered.
///
/// To await it, poll it as a future, from any thread; [`now`](Self::now) looks whether the answer comes at once, and
/// [`wait`](Self::wait) blocks.
#[must_use = "the failure of a call that is not awaited goes unseen"]
pub struct Call {
    core: Arc<Core>,
    stage: Stage,
    spans: Spans,
}

enum Stage {
    /// It was sent with that id.
    Sent(u32),
    /// All ids are out.
    Queued(Arc<QueuedRequest>),
    /// It was never sent.
    Failed(LineError),
    /// The answer was taken.
    Done,
}

/// What comes of a call.
pub type Outcome = Result<Reply, LineError>;

/// So often a caller looks before it asks the clock: most answers come sooner.
const LOOKS: u32 = 64;
/// So long a caller looks in mode `poll`, before it yields.
const POLL: Duration = Duration::from_millis(1);

impl Call {
    #[inline]
    pub(super) fn new(
        core: Arc<Core>,
        kind: u32,
        body: [u8; 48],
        spans: Spans,
        frame: impl FnOnce(&mut FrameWriter<'_>),
    ) -> Self {
        let stage = begin(&core, kind, body, frame);
        Self { core, stage, spans }
    }

    /// As `new` and [`now`](Self::now); a call is only made if it is needed.
    #[inline]
    pub(super) fn ask(
        core: &Arc<Core>,
        kind: u32,
        body: [u8; 48],
        spans: Spans,
        frame: impl FnOnce(&mut FrameWriter<'_>),
    ) -> Result<Outcome, Self> {
        let stage = begin(core, kind, body, frame);
        let Stage::Sent(id) = stage else {
            let mut call = Self { core: core.clone(), stage, spans };
            return call.now().ok_or(call);
        };
        match core.look(id) {
            Some(Ok(answer)) => Ok(Ok(answer.with(spans))),
            // It has looked as long as that pays.
            None => Err(Self { core: core.clone(), stage, spans }),
            Some(Err(error)) => Ok(Self { core: core.clone(), stage, spans }.finish(Err(error))),
        }
    }

    /// The answer, if it comes within a bounded time without sleeping: the time that has paid lately, 50 µs at most, or none
    /// ([`Mode::Event`]).
    ///
    /// The caller may receive answers to other calls meanwhile, and wakes their tasks, on this thread: it must hold no lock
    /// that a task needs which waits for a call. After it has given the answer it gives none any more.
    #[inline]
    pub fn now(&mut self) -> Option<Outcome> {
        match self.stage {
            Stage::Sent(id) => {
                let outcome = self.core.look(id)?;
                Some(self.finish(outcome))
            }
            _ => self.poll_unsent(None),
        }
    }

    /// The id that it was sent with, to name it in another request; none while it waits for one, and once the answer was taken.
    #[must_use]
    pub fn id(&self) -> Option<u32> {
        match self.stage {
            Stage::Sent(id) => Some(id),
            _ => None,
        }
    }

    /// Waits for the answer; this thread looks for it first as [`now`](Self::now) does, which see, and sleeps then.
    pub fn wait(mut self) -> Outcome {
        loop {
            if let Some(outcome) = self.now() {
                return outcome;
            }
            if self.core.mode == Mode::Poll || self.core.mode == Mode::Umwait {
                continue;
            }
            if let Stage::Sent(id) = self.stage
                && let Some(outcome) = self.core.park(id)
            {
                return self.finish(outcome);
            }
            if let Some(outcome) = self.sleep() {
                return outcome;
            }
        }
    }

    /// Sleeps until there is an answer, or, if it had to wait for an id, until it was sent.
    fn sleep(&mut self) -> Option<Outcome> {
        let was_queued = matches!(self.stage, Stage::Queued(_));
        block_on(poll_fn(|context| match self.poll_with(context.waker()) {
            Poll::Ready(outcome) => Poll::Ready(Some(outcome)),
            Poll::Pending if was_queued && matches!(self.stage, Stage::Sent(_)) => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }))
    }

    fn poll_with(&mut self, waker: &Waker) -> Poll<Outcome> {
        if let Stage::Sent(id) = self.stage {
            return match self.core.register(id, waker) {
                Some(outcome) => Poll::Ready(self.finish(outcome)),
                None => Poll::Pending,
            };
        }
        match self.poll_unsent(Some(waker)) {
            Some(outcome) => Poll::Ready(outcome),
            None => match self.stage {
                // It was sent meanwhile.
                Stage::Sent(_) => self.poll_with(waker),
                _ => Poll::Pending,
            },
        }
    }

    /// What to do where it is not sent.
    #[cold]
    fn poll_unsent(&mut self, waker: Option<&Waker>) -> Option<Outcome> {
        let core = self.core.clone();
        let queued = match &self.stage {
            Stage::Queued(queued) => queued,
            Stage::Failed(error) => {
                let error = error.clone();
                self.stage = Stage::Done;
                return Some(Err(error));
            }
            Stage::Done | Stage::Sent(_) => return None,
        };
        // An answer that lies there may free an id.
        core.look_once();
        let stage = {
            let mut state = queued.lock();
            if let (Some(waker), QueuedStage::Waiting) = (waker, state.stage)
                && state.waker.replace(waker.clone()).is_none()
            {
                core.waiting.enter();
            }
            state.stage
        };
        if let QueuedStage::Sent(id) = stage {
            self.stage = Stage::Sent(id);
            return None;
        }
        if core.outcome.is_over() {
            return Some(self.finish(Err(core.lost())));
        }
        if waker.is_some() {
            core.ensure_wakeup();
        }
        None
    }

    #[inline]
    fn finish(&mut self, outcome: Result<RawReply, LineError>) -> Outcome {
        if outcome.is_ok() {
            self.stage = Stage::Done;
        } else {
            self.give_up();
        }
        outcome.map(|answer| answer.with(std::mem::take(&mut self.spans)))
    }

    #[cold]
    fn give_up(&mut self) {
        match std::mem::replace(&mut self.stage, Stage::Done) {
            Stage::Sent(id) => self.core.abandon(id, std::mem::take(&mut self.spans)),
            Stage::Queued(queued) => {
                let sent = {
                    let mut state = queued.lock();
                    let before = std::mem::replace(&mut state.stage, QueuedStage::GivenUp);
                    if state.waker.take().is_some() {
                        self.core.waiting.leave();
                    }
                    state.frame.take().into_iter().for_each(|frame| self.core.spare.give_back(frame));
                    before
                };
                if let QueuedStage::Sent(id) = sent {
                    self.core.abandon(id, std::mem::take(&mut self.spans));
                }
            }
            Stage::Failed(_) | Stage::Done => {}
        }
    }
}

impl Future for Call {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        self.poll_with(context.waker())
    }
}

impl Drop for Call {
    #[inline]
    fn drop(&mut self) {
        if !matches!(self.stage, Stage::Done) {
            self.give_up();
        }
    }
}

impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.stage {
            Stage::Sent(id) => write!(f, "Call({id:#x})"),
            Stage::Queued(_) => f.write_str("Call(waits for an id)"),
            Stage::Failed(error) => write!(f, "Call({error})"),
            Stage::Done => f.write_str("Call(answered)"),
        }
    }
}

/// Sends a request, if there is an id for it.
#[inline]
fn begin(core: &Core, kind: u32, body: [u8; 48], frame: impl FnOnce(&mut FrameWriter<'_>)) -> Stage {
    core.prefetch.fetch();
    if core.outcome.is_over() {
        return Stage::Failed(core.lost());
    }
    match core.ids.take() {
        None => queue(core, kind, body, frame),
        Some(id) => match core.send(id, kind, body, frame) {
            Ok(()) => Stage::Sent(id),
            Err(error) => Stage::Failed(error),
        },
    }
}

/// A call for which there is no id.
#[cold]
fn queue(core: &Core, kind: u32, body: [u8; 48], frame: impl FnOnce(&mut FrameWriter<'_>)) -> Stage {
    let mut buffer = core.spare.take().unwrap_or_else(new_buffer);
    let mut writer = FrameWriter::private(&mut buffer);
    frame(&mut writer);
    let len_bytes = writer.len();
    if len_bytes > FRAME_MAX {
        core.spare.give_back(buffer);
        return Stage::Failed(LineError::TooLong { len_bytes });
    }
    let queued = Arc::new(QueuedRequest::new(kind, body, Some(buffer), len_bytes));
    let Some(id) = core.ids.take_or_wait(&queued) else {
        core.park_all_replies();
        core.counters.queued_total.fetch_add(1, Ordering::Relaxed);
        return Stage::Queued(queued);
    };
    // One has become free meanwhile.
    let frame = queued.lock().frame.take();
    let sent = core.send(id, kind, body, |writer| {
        writer.put(frame.as_ref().map_or(&[], |frame| &frame[..len_bytes]));
    });
    frame.into_iter().for_each(|frame| core.spare.give_back(frame));
    match sent {
        Ok(()) => Stage::Sent(id),
        Err(error) => Stage::Failed(error),
    }
}

/// What a leader found.
enum Found {
    Reply(RawReply),
    /// The time is up.
    Nothing,
    /// Other tasks must be woken before it goes on.
    Others,
    ProtocolError(ProtocolError),
}

/// How long a call has been polled. Most are answered before the clock is read, which is a system call in some guests.
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
    /// Looks for an answer as long as that pays.
    #[inline]
    fn look(&self, id: u32) -> Option<Result<RawReply, LineError>> {
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

    /// Looks at the completion slot for a moment while another thread leads. False if it is time to do something else.
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
    fn look_once(&self) {
        let mut wakes = Wakes::default();
        let Some(mut intake) = self.try_lead() else { return };
        match self.drain(&mut intake, None, &mut wakes) {
            Ok(_) => self.leave(intake, &mut wakes),
            Err(error) => self.fail(intake, error, &mut wakes),
        }
    }

    /// Registers the waker, unless the answer is there.
    fn register(&self, id: u32, waker: &Waker) -> Option<Result<RawReply, LineError>> {
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

    /// Takes the answer from the completion slot, and frees the id.
    fn take(&self, slot: &CompletionSlot, id: u32) -> Option<RawReply> {
        let answer = {
            let mut completion = slot.completion();
            if slot.look().0 != id {
                return lock(&self.parked_replies).remove(&id);
            }
            let answer = completion.answer.take()?;
            slot.set(id, Phase::Free);
            answer
        };
        let mut wakes = Wakes::default();
        self.free(id, &mut wakes);
        wakes.wake_all();
        Some(answer)
    }

    /// The call was dropped. Its id and its bulk memory stay out until the answer comes.
    fn abandon(&self, id: u32, spans: Spans) {
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
