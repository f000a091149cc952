//! Pending calls, and the ways to wait for their answers.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

use tombolo_core::block_on;
use tombolo_shm::doorbell::Mode;

use super::core::Core;
use super::error::LineError;
use super::message::{FRAME_MAX, FrameWriter, RawReply, Reply, Spans, new_buffer};
use super::queued_request::{QueuedRequest, QueuedStage};

/// A pending call. Dropping it cancels a request that is still queued. The answer to a request already sent
/// is discarded, and its id and spans stay in use until the server has answered.
///
/// To await it, poll it as a future from any thread; [`now`](Self::now) polls for an immediate answer, and
/// [`wait`](Self::wait) blocks.
#[must_use = "the failure of a call that is not awaited goes unseen"]
pub struct Call {
    core: Arc<Core>,
    stage: Stage,
    spans: Spans,
}

enum Stage {
    /// Sent with this id.
    Sent(u32),
    /// Queued, as all ids are in use.
    Queued(Arc<QueuedRequest>),
    /// The request could not be sent.
    Failed(LineError),
    /// The outcome was taken.
    Done,
}

/// Outcome of a call.
pub type Outcome = Result<Reply, LineError>;

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

    /// Makes a call and polls as [`now`](Self::now) does; avoids constructing a `Call` if the answer is
    /// immediate.
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
        match core.poll(id) {
            Some(Ok(answer)) => Ok(Ok(answer.with(spans))),
            // No answer has arrived within the polling time.
            None => Err(Self { core: core.clone(), stage, spans }),
            Some(Err(error)) => Ok(Self { core: core.clone(), stage, spans }.finish(Err(error))),
        }
    }

    /// Sends a request as [`new`](Self::new) does. Returns `None` if no id is free, the arguments are too
    /// long or the link has ended.
    pub(super) fn try_new(
        core: &Arc<Core>,
        kind: u32,
        body: [u8; 48],
        spans: Spans,
        frame: impl FnOnce(&mut FrameWriter<'_>),
    ) -> Option<Self> {
        if core.outcome.is_over() {
            return None;
        }
        let id = core.ids.take()?;
        core.send(id, kind, body, frame).ok()?;
        Some(Self { core: core.clone(), stage: Stage::Sent(id), spans })
    }

    /// Returns kind and body of the answer if it was received, without taking it or polling for it. An answer
    /// for which no thread polls is received when another call is polled, by the receiver thread if that is
    /// active, or by [`Line::receive`](super::Line::receive).
    #[must_use]
    pub fn received(&self) -> Option<(u32, [u8; 48])> {
        self.core.received(self.id()?)
    }

    /// Polls for the answer without sleeping, and returns `None` if it does not arrive within a bounded time:
    /// in [`Mode::Adaptive`] the time within which recent answers arrived, at most 50 µs (500 µs with a
    /// bell); in [`Mode::Event`] none; in the other modes 1 ms.
    ///
    /// Meanwhile this thread may receive answers to other calls, and run the tasks that wait for them: the
    /// caller must hold no lock needed by such a task. The answer is returned only once.
    #[inline]
    pub fn now(&mut self) -> Option<Outcome> {
        match self.stage {
            Stage::Sent(id) => {
                let outcome = self.core.poll(id)?;
                Some(self.finish(outcome))
            }
            _ => self.poll_unsent(None),
        }
    }

    /// Returns the id of the request, for reference in another request. Returns `None` for a queued request
    /// until a poll finds that it was sent, after the answer was taken, and if the request could not be sent.
    #[must_use]
    pub fn id(&self) -> Option<u32> {
        match self.stage {
            Stage::Sent(id) => Some(id),
            _ => None,
        }
    }

    /// Blocks until the answer arrives or the link ends. Polls as [`now`](Self::now) does, under the same
    /// conditions, then sleeps; in the modes `Poll` and `Umwait` only polls.
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

    /// Sleeps until the answer is received; if the call was queued, until it is sent, and returns `None`.
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
                // The queued request was sent meanwhile.
                Stage::Sent(_) => self.poll_with(waker),
                _ => Poll::Pending,
            },
        }
    }

    /// Polls a call that was not sent when it was polled last. Returns its failure, or `None` while it is
    /// queued and once it was sent. A queued call wakes `waker` when it is sent or the link ends.
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
        // A received answer may free an id.
        core.poll_once();
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

/// Sends a request if an id is free, and queues it otherwise.
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

/// Queues a call for which no id is free.
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
    // An id has become free meanwhile.
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
