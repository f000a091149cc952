//! One connection: what is to be sent, and its state.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::batch::Batch;
use super::error::Fault;
use super::wire::{Socket, SocketToken};
use tombolo_sys::Errno;

/// How long to wait before another attempt to connect: at first, and at most.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// One connection.
pub(super) struct Connection {
    pub(super) phase: Phase,
    /// Sockets that it has had.
    pub(super) generation: u64,
    pub(super) socket: Option<Arc<dyn Socket>>,
    /// Calls to be sent: those that never wait for bulk, and the others.
    pub(super) urgent: VecDeque<u32>,
    pub(super) bulk: VecDeque<u32>,
    /// What the socket did not take; empty while a thread sends.
    pub(super) batch: Batch,
    /// A thread sends, and will send what is queued meanwhile.
    pub(super) sending: bool,
    /// The socket was full; an event follows when it is writable.
    pub(super) full: bool,
    /// It became writable while a thread sent.
    pub(super) again: bool,
    /// Calls of this connection that are not answered, and the bytes of them and of what they ask for.
    pub(super) calls: usize,
    pub(super) bytes: usize,
    /// Those of them that ask for much data.
    pub(super) landings: usize,
    /// The last sign of life: something was received, or the peer took something after the socket was full.
    pub(super) heard_at: Instant,
    /// Since when there have been calls that are not answered.
    pub(super) waiting_since: Instant,
    /// A call was answered over this socket: it is worth connecting again at once.
    pub(super) useful: bool,
    /// What the last failure was.
    pub(super) last_error: Option<Errno>,
    /// The same in words, where it was not the system that failed.
    pub(super) last_fault: Option<Fault>,
    back_off: Duration,
}

/// How a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// There is none, and no need for one yet.
    Idle,
    /// It is being made.
    Connecting {
        /// Since then.
        since: Instant,
    },
    /// Calls go over it.
    Up,
    /// The last one failed.
    Waiting {
        /// Another attempt is made then.
        until: Instant,
    },
}

impl Connection {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            phase: Phase::Idle,
            generation: 0,
            socket: None,
            urgent: VecDeque::new(),
            bulk: VecDeque::new(),
            batch: Batch::default(),
            sending: false,
            full: false,
            again: false,
            calls: 0,
            bytes: 0,
            landings: 0,
            heard_at: now,
            waiting_since: now,
            useful: false,
            last_error: None,
            last_fault: None,
            back_off: BACK_OFF.0,
        }
    }

    /// The token of its present socket.
    pub(super) fn token(&self, index: usize) -> SocketToken {
        SocketToken::new(index, self.generation)
    }

    /// Whether it is there or on its way, so that the engine need not be told of calls.
    pub(super) fn is_made(&self) -> bool {
        self.phase != Phase::Idle
    }

    /// Whether it was never made.
    pub(super) fn is_new(&self) -> bool {
        self.phase == Phase::Idle && self.generation == 0
    }

    pub(super) fn is_up(&self) -> bool {
        self.phase == Phase::Up
    }

    /// The queue of bulk calls, or of the others.
    pub(super) fn queue(&mut self, bulk: bool) -> &mut VecDeque<u32> {
        if bulk { &mut self.bulk } else { &mut self.urgent }
    }

    /// The next call to be sent.
    pub(super) fn next(&mut self) -> Option<u32> {
        self.urgent.pop_front().or_else(|| self.bulk.pop_front())
    }

    /// Whether there is something to send and no thread sends.
    pub(super) fn wants_to_send(&self) -> bool {
        let is_empty = self.batch.is_empty() && self.urgent.is_empty() && self.bulk.is_empty();
        self.is_up() && !self.sending && !self.full && !is_empty
    }

    /// Since when nothing has been heard that was waited for; none if nothing is.
    pub(super) fn silent_since(&self) -> Option<Instant> {
        (self.calls > 0).then(|| self.heard_at.max(self.waiting_since))
    }

    /// A call was answered over it.
    pub(super) fn answered(&mut self) {
        self.useful = true;
        self.back_off = BACK_OFF.0;
    }

    /// When to connect again, the last socket being lost now. At once after one that was of use; or else
    /// later each time.
    pub(super) fn next_attempt(&mut self, now: Instant) -> Instant {
        if self.useful {
            return now;
        }
        let wait = self.back_off;
        self.back_off = (wait * 2).min(BACK_OFF.1);
        now + wait
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("phase", &self.phase)
            .field("generation", &self.generation)
            .field("calls", &self.calls)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}
