//! What is known of one call.

use std::sync::Arc;
use std::time::Instant;

use super::batch::Message;
use super::call::ReceiveBuffer;
use super::pending::{Cell, Outcome};
use tombolo_core::Interrupt;

/// Data from so many bytes on are worth receiving straight into their place.
const LONG_BUFFER_BYTES: usize = 8 << 10;

/// A call that moves so much keeps its connection busy: 13 ms at 80 Mbit/s.
const MUCH_BYTES: usize = 128 << 10;

/// A new call.
pub(super) struct NewCall {
    pub(super) procedure: u32,
    pub(super) message: Message,
    pub(super) receive_buffer: Option<ReceiveBuffer>,
    pub(super) bulk: bool,
    pub(super) interrupt: Interrupt,
}

/// What is known of one call.
pub(super) struct CallEntry {
    /// Its number among all calls: they are sent again in this order.
    pub(super) serial: u64,
    pub(super) procedure: u32,
    /// Where its outcome is told.
    pub(super) cell: Option<Arc<Cell>>,
    /// None while it is in a batch.
    pub(super) message: Option<Message>,
    pub(super) receive_buffer: Option<ReceiveBuffer>,
    pub(super) has_long_buffer: bool,
    pub(super) bulk: bool,
    pub(super) interrupt: Interrupt,
    pub(super) state: CallState,
    /// The connection, once it does not wait for the limit.
    pub(super) connection: usize,
    /// Some of it was sent over the present socket.
    pub(super) out: bool,
    /// Bytes of the call, and with those that it asks for.
    pub(super) call_bytes: usize,
    pub(super) bytes: usize,
    /// When it no longer waited for the limit.
    pub(super) begun_at: Instant,
    /// When it was sent last.
    pub(super) sent_at: Instant,
    pub(super) transmissions: u32,
    /// Attempts to connect that failed meanwhile.
    pub(super) failures: u32,
    /// The silence of the server in which its interrupt was watched last.
    pub(super) watched_in: u64,
    /// Its interrupt is watched for good: it is old itself.
    pub(super) is_watched: bool,
    /// Its outcome, delivered when the sending thread is done with its memory.
    pub(super) decided: Option<Outcome>,
}

/// Where a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallState {
    /// It waits for the in-flight limit.
    Waiting,
    /// It is in a queue of its connection.
    Queued,
    /// It is in the batch of its connection.
    Sending,
    /// It is out.
    Sent,
}

impl CallEntry {
    pub(super) fn new(call: NewCall, cell: Arc<Cell>, serial: u64, now: Instant) -> Self {
        let NewCall { procedure, message, receive_buffer, bulk, interrupt } = call;
        let buffer_bytes = receive_buffer.as_ref().map_or(0, |receive_buffer| receive_buffer.sink.len());
        let call_bytes = message.len();
        Self {
            serial,
            procedure,
            cell: Some(cell),
            message: Some(message),
            receive_buffer,
            has_long_buffer: buffer_bytes >= LONG_BUFFER_BYTES,
            bulk,
            interrupt,
            state: CallState::Waiting,
            connection: 0,
            out: false,
            call_bytes,
            bytes: call_bytes.saturating_add(buffer_bytes),
            begun_at: now,
            sent_at: now,
            transmissions: 0,
            failures: 0,
            watched_in: 0,
            is_watched: false,
            decided: None,
        }
    }

    /// Whether it keeps a connection busy for long.
    pub(super) fn moves_much(&self) -> bool {
        self.bytes >= MUCH_BYTES
    }

    /// Whether a reply over this connection can be its answer. Not of one whose end is decided while it is
    /// being sent: its memory goes back to its owner as soon as that is done.
    pub(super) fn can_be_answered(&self, connection: usize) -> bool {
        self.out && self.decided.is_none() && self.connection == connection
    }

    /// Gives up what belongs to others.
    pub(super) fn let_go(&mut self) {
        self.message = None;
        self.receive_buffer = None;
        self.decided = None;
        self.interrupt = Interrupt::default();
    }
}
