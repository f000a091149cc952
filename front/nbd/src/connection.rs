//! The receiving half of a connection, which only the connection's thread uses: it receives, and waits for
//! the socket. `replies` has the sending half.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use thiserror::Error as ThisError;
use tombolo_host_runtime::buffer_pool::Buffers;
use tombolo_host_runtime::receive_buffer::ReceiveBuffer;
use tombolo_mem::Sink;
use tombolo_sys::Errno;
use tombolo_sys::epoll::{Epoll, Event, Interest};
use tombolo_wire_nbd::Malformed;

use crate::memory::Memory;
use crate::replies::Replies;
use crate::server::Options;

/// Polling interval for buffer memory, whose release is not signalled.
const MEMORY_RETRY: Duration = Duration::from_millis(5);

/// Time for sending the remaining replies when the connection ends.
const GRACE: Duration = Duration::from_secs(5);

/// Reason for the end of a connection.
#[derive(Debug, ThisError)]
pub(crate) enum ConnectionEnd {
    /// The client closed without NBD_CMD_DISC, the connection broke, or the TLS handshake failed.
    #[error("the client disconnected")]
    Gone,
    /// The client sent NBD_CMD_DISC or NBD_OPT_ABORT.
    #[error("the client ended the session")]
    Leave,
    /// This server is stopping.
    #[error("the server is stopping")]
    Stop,
    #[error("the client is too slow in completing a message or receiving replies")]
    Slow,
    #[error(transparent)]
    Malformed(#[from] Malformed),
    #[error("{0}")]
    Refused(&'static str),
    #[error("{0}")]
    System(#[from] Errno),
}

/// A connection, for `handshake` and then `transmission`.
pub(crate) struct Connection {
    pub(crate) replies: Arc<Replies>,
    pub(crate) buffers: Buffers,
    epoll: Epoll,
    events: Vec<Event>,
    /// Receive buffer; `None` while data is being received into it.
    received: Option<ReceiveBuffer>,
    /// [`Options::stuck_after`].
    stuck_after: Duration,
    /// Time at which the handshake, or the sending of the last replies, fails as too slow.
    pub(crate) deadline: Option<Instant>,
    is_stopping: Arc<AtomicBool>,
}

impl Connection {
    pub(crate) fn new(
        replies: Arc<Replies>,
        buffers: Buffers,
        options: &Options,
        is_stopping: Arc<AtomicBool>,
    ) -> tombolo_sys::Result<Self> {
        let epoll = Epoll::new()?;
        epoll.add(replies.stream.socket(), 0, Interest::Changes)?;
        epoll.add(&replies.wake, 1, Interest::Readable)?;
        Ok(Self {
            replies,
            buffers,
            epoll,
            events: Vec::new(),
            received: Some(ReceiveBuffer::default()),
            stuck_after: options.stuck_after,
            deadline: Some(Instant::now() + options.handshake_within),
            is_stopping,
        })
    }

    /// Returns the number of bytes received but not taken yet.
    pub(crate) fn buffered(&self) -> usize {
        self.received.as_ref().map_or(0, ReceiveBuffer::len)
    }

    /// Waits for the next `len` bytes, at most 64 KiB, and returns them.
    pub(crate) fn take(&mut self, len: usize) -> Result<&[u8], ConnectionEnd> {
        let mut received = self.received.take().ok_or(ConnectionEnd::Gone)?;
        let filled = received.fill(len, |into, is_within| self.receive(into, is_within));
        let received = self.received.insert(received);
        filled.map(|()| received.take(len))
    }

    /// Waits for the next bytes, and fills the sink with them.
    pub(crate) fn take_into(&mut self, into: Sink) -> Result<(), ConnectionEnd> {
        let mut received = self.received.take().ok_or(ConnectionEnd::Gone)?;
        let taken = received.take_into(into, |into| self.receive(into, true));
        self.received = Some(received);
        taken
    }

    /// Receives and discards the next `len` bytes.
    pub(crate) fn skip(&mut self, mut len: u64) -> Result<(), ConnectionEnd> {
        while len > 0 {
            let part = len.min(4096);
            self.take(part as usize)?;
            len -= part;
        }
        Ok(())
    }

    /// Waits for memory for a request's data, within the client's share; replies are sent meanwhile.
    pub(crate) fn memory(&mut self, len_bytes: usize) -> Result<Memory, ConnectionEnd> {
        loop {
            if let Some(memory) = Memory::take(&self.buffers, len_bytes) {
                return Ok(memory);
            }
            self.replies.flush();
            self.wait(Some(Instant::now() + MEMORY_RETRY))?;
        }
    }

    /// Waits until fewer than `limit` requests are under way.
    pub(crate) fn wait_until_below(&mut self, limit: usize) -> Result<(), ConnectionEnd> {
        while self.replies.under_way() >= limit {
            self.replies.flush();
            self.replies.await_one();
            if self.replies.under_way() >= limit {
                self.wait(None)?;
            }
        }
        Ok(())
    }

    /// Closes the connection. If the client or the server ends the session, or the server refuses it, the
    /// remaining replies are sent first, within [`GRACE`].
    pub(crate) fn finish(&mut self, why: &ConnectionEnd) {
        let is_polite = matches!(why, ConnectionEnd::Leave | ConnectionEnd::Stop | ConnectionEnd::Refused(_));
        let until = Instant::now() + GRACE;
        self.deadline = Some(until);
        self.is_stopping = Arc::default();
        self.replies.flush();
        while is_polite && self.replies.under_way() > 0 && Instant::now() < until {
            self.replies.await_one();
            if self.replies.under_way() > 0 && self.wait(Some(until)).is_err() {
                break;
            }
        }
        self.replies.kill();
    }

    fn receive(&mut self, into: &Sink, is_within_message: bool) -> Result<usize, ConnectionEnd> {
        let until = is_within_message.then(|| Instant::now() + self.stuck_after);
        loop {
            match self.replies.stream.receive(into) {
                Ok(0) => return Err(ConnectionEnd::Gone),
                Ok(received) => return Ok(received),
                Err(Errno::AGAIN) if until.is_some_and(|until| Instant::now() >= until) => {
                    return Err(ConnectionEnd::Slow);
                }
                Err(Errno::AGAIN) if self.is_stopping() && !is_within_message => {
                    return Err(ConnectionEnd::Stop);
                }
                Err(Errno::AGAIN) => self.wait(until)?,
                Err(error) => {
                    tracing::debug!(%error, "receive failed");
                    return Err(ConnectionEnd::Gone);
                }
            }
        }
    }

    /// Waits for an event of the socket or for an awaited reply, at most until `until`.
    pub(crate) fn wait(&mut self, until: Option<Instant>) -> Result<(), ConnectionEnd> {
        let now = Instant::now();
        let blocked_for = self.replies.blocked_for();
        if self.deadline.is_some_and(|deadline| now >= deadline) || blocked_for >= self.stuck_after {
            return Err(ConnectionEnd::Slow);
        }
        let send_deadline = (!blocked_for.is_zero()).then(|| now + (self.stuck_after - blocked_for));
        let until = [until, self.deadline, send_deadline].into_iter().flatten().min();
        let timeout = until.map(|until| until.saturating_duration_since(now).max(Duration::from_millis(1)));
        self.epoll.wait(&mut self.events, timeout)?;
        for event in &self.events {
            if event.token == 1 {
                self.replies.wake.clear();
            } else if event.writable {
                self.replies.writable();
            }
        }
        if self.replies.is_dead() { Err(ConnectionEnd::Gone) } else { Ok(()) }
    }

    fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::SeqCst)
    }
}
