//! Connection of a client: send queues and state.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::batch::Batch;
use super::error::Fault;
use super::wire::{Socket, SocketToken};
use tombolo_sys::Errno;

/// Initial and maximum delay between attempts to connect.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// Send queues and state of one connection, which outlive its sockets.
pub(super) struct Connection {
    pub(super) phase: Phase,
    /// Number of connections lost and of failed attempts so far; identifies the current socket.
    pub(super) generation: u64,
    pub(super) socket: Option<Arc<dyn Socket>>,
    /// Queued calls: those that are not bulk (`urgent`), which are sent first, and bulk calls.
    pub(super) urgent: VecDeque<u32>,
    pub(super) bulk: VecDeque<u32>,
    /// Calls that the socket has not accepted, or only in part; empty while a thread sends.
    pub(super) batch: Batch,
    /// `true` while a thread sends; that thread will also send calls queued meanwhile.
    pub(super) sending: bool,
    /// `true` if the socket is full; an event reports when it is writable.
    pub(super) full: bool,
    /// `true` if the socket became writable while a thread was sending; that thread then tries again.
    pub(super) again: bool,
    /// Number of unanswered calls; `bytes` is the amount that they send and request.
    pub(super) calls: usize,
    pub(super) bytes: usize,
    /// Number of unanswered calls with a receive buffer of at least `LONG_BUFFER_BYTES`: their replies are
    /// data.
    pub(super) long_buffers: usize,
    /// Time of the last sign of life: the connection was established, data were received, or the socket
    /// accepted data again after it was full.
    pub(super) alive_at: Instant,
    /// Time since when calls have been outstanding.
    pub(super) waiting_since: Instant,
    /// `true` if a call was answered over this socket, and no reply was too long: a reconnect is worth trying
    /// at once.
    pub(super) useful: bool,
    /// System error of the last failed connection or datagram, which becomes the error of a failing soft
    /// call.
    pub(super) last_error: Option<Errno>,
    /// Fault of the last socket, if other than a system error; it takes precedence over `last_error`.
    pub(super) last_fault: Option<Fault>,
    back_off: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The connection is not established; the engine connects once a call needs it.
    Idle,
    Connecting {
        since: Instant,
    },
    Up,
    /// Lost; waiting to reconnect.
    Waiting {
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
            long_buffers: 0,
            alive_at: now,
            waiting_since: now,
            useful: false,
            last_error: None,
            last_fault: None,
            back_off: BACK_OFF.0,
        }
    }

    /// Returns the token of the current socket.
    pub(super) fn token(&self, index: usize) -> SocketToken {
        SocketToken::new(index, self.generation)
    }

    /// Returns `true` if the connection is established, in progress or to be retried: the engine need not be
    /// notified of calls.
    pub(super) fn is_made(&self) -> bool {
        self.phase != Phase::Idle
    }

    /// Returns `true` if no attempt to connect was ever made.
    pub(super) fn is_new(&self) -> bool {
        self.phase == Phase::Idle && self.generation == 0
    }

    pub(super) fn is_up(&self) -> bool {
        self.phase == Phase::Up
    }

    /// Returns the queue of bulk calls, or of urgent ones.
    pub(super) fn queue(&mut self, bulk: bool) -> &mut VecDeque<u32> {
        if bulk { &mut self.bulk } else { &mut self.urgent }
    }

    /// Removes the next call to send: an urgent one, if there is any.
    pub(super) fn next(&mut self) -> Option<u32> {
        self.urgent.pop_front().or_else(|| self.bulk.pop_front())
    }

    /// Returns `true` if calls are queued, the socket is ready and no thread is sending.
    pub(super) fn wants_to_send(&self) -> bool {
        let is_empty = self.batch.is_empty() && self.urgent.is_empty() && self.bulk.is_empty();
        self.is_up() && !self.sending && !self.full && !is_empty
    }

    /// Returns the time since which outstanding calls have seen no sign of life; `None` without such calls.
    pub(super) fn silent_since(&self) -> Option<Instant> {
        (self.calls > 0).then(|| self.alive_at.max(self.waiting_since))
    }

    /// Records an answered call: if the connection is lost later, the next attempt is not delayed, unless a
    /// reply was malformed.
    pub(super) fn answered(&mut self) {
        self.useful = true;
        self.back_off = BACK_OFF.0;
    }

    /// Returns the time of the next attempt after the connection is lost: now if the last socket was useful,
    /// otherwise after an increasing delay.
    pub(super) fn next_attempt(&mut self, now: Instant) -> Instant {
        if self.useful {
            return now;
        }
        let wait = self.back_off;
        self.back_off = (wait * 2).min(BACK_OFF.1);
        now + wait
    }
}
