//! Thread of one link, which takes requests out of the ring and passes them to the session.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tombolo_shm::doorbell::{Mode, PollBackoff, Sleeper, WakeReason};
use tombolo_shm::link::FRAME_BYTES;
use tombolo_shm::ring::{Consumer, Message};

use super::link::Link;
use super::link_cache;
use super::responder::Responder;
use super::service::Request;
use crate::end::{EndReason, ProtocolError};

/// Interval of checks for truncated memory, for which no doorbell rings.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// State of the thread of one link.
pub(super) struct Worker {
    pub(super) link: Arc<Link>,
    pub(super) consumer: Consumer,
    pub(super) sleeper: Sleeper,
    pub(super) backoff: PollBackoff,
    /// Private copy of the variable arguments.
    pub(super) frame: Box<[u8; FRAME_BYTES as usize]>,
}

impl Worker {
    /// Serves requests until the link ends.
    pub(super) fn run(mut self) {
        link_cache::belongs_to(&self.link);
        let outcome = catch_unwind(AssertUnwindSafe(|| self.serve()));
        link_cache::leave();
        let end = match outcome {
            Ok(Ok(())) => return,
            Ok(Err(error)) => EndReason::ProtocolError(error),
            Err(_) => EndReason::Failed("session panicked".into()),
        };
        self.link.end(end);
    }

    fn serve(&mut self) -> Result<(), ProtocolError> {
        while !self.link.outcome.is_over() {
            match self.next() {
                Some(message) => self.request(&message)?,
                None => self.wait()?,
            }
        }
        Ok(())
    }

    /// Takes the next request out of the ring, if there is one.
    #[inline]
    fn next(&mut self) -> Option<Message> {
        if self.sleeper.mode() == Mode::Event {
            return self.consumer.pop();
        }
        self.backoff.rest();
        let message = self.consumer.pop();
        self.backoff.looked(message.is_some());
        if let Some(message) = &message {
            // Most requests are answered at once, so the answer's memory is needed soon.
            self.link.fetch_ahead(message.id);
            if self.backoff.is_behind() {
                self.consumer.fetch();
            }
        }
        message
    }

    /// Passes a request to the session, after copying all parts that the peer could still change and
    /// checking the copy.
    #[inline]
    fn request(&mut self, message: &Message) -> Result<(), ProtocolError> {
        let Message { id, frame_len, kind, body } = *message;
        let link = &self.link;
        let frame = match self.frame.get_mut(..frame_len as usize) {
            Some(frame) => frame,
            None => return Err(ProtocolError::FrameTooLong { id, len_bytes: frame_len }),
        };
        link.take(id)?;
        if !frame.is_empty() {
            let at = link.layout.buffer_offset(link.index(id)).unwrap_or(u64::MAX);
            link.peer.read_at(at, frame).map_err(|_| ProtocolError::MemoryGone)?;
        }
        if link.peer.region().is_poisoned() {
            return Err(ProtocolError::MemoryGone);
        }
        link.counters.intake.requests.bump();
        link.session.serve(Request { kind, body, frame }, Responder::new(link_cache::take(link), id));
        if link.is_outstanding(id) {
            link.counters.intake.later.bump();
        }
        Ok(())
    }

    #[cold]
    fn wait(&mut self) -> Result<(), ProtocolError> {
        let outcome = self.sleeper.wait(Some(CHECK_INTERVAL), &self.consumer);
        self.link.counters.intake.sleeps.store(self.sleeper.counts().sleeps, Ordering::Relaxed);
        if self.link.peer.region().is_poisoned() {
            return Err(ProtocolError::MemoryGone);
        }
        if outcome != WakeReason::Ready {
            self.consumer.check()?;
        }
        Ok(())
    }
}
