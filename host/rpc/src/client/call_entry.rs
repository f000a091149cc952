//! Entries of the table of outstanding calls.

use std::sync::Arc;
use std::time::Instant;

use super::batch::Message;
use super::call::ReceiveBuffer;
use super::pending::{Cell, Outcome};
use tombolo_core::Interrupt;

/// Minimum length of a receive buffer for which little is received into the staging buffer at a time, so
/// that most of the data go straight to their destination.
const LONG_BUFFER_BYTES: usize = 8 << 10;

/// Amount of data from which a call occupies its connection for a long time: 13 ms at 80 Mbit/s.
const MUCH_BYTES: usize = 128 << 10;

/// A call before it has a transaction id.
pub(super) struct NewCall {
    pub(super) procedure: u32,
    pub(super) message: Message,
    pub(super) receive_buffer: Option<ReceiveBuffer>,
    pub(super) bulk: bool,
    pub(super) interrupt: Interrupt,
}

/// Entry of a call in the table, from its beginning until its outcome is delivered; then retained for
/// reuse.
pub(super) struct CallEntry {
    /// Sequence number among all calls: retransmissions keep this order.
    pub(super) serial: u64,
    pub(super) procedure: u32,
    /// Destination of the outcome; `None` only in an entry being reused.
    pub(super) cell: Option<Arc<Cell>>,
    /// `None` while the call is in a batch.
    pub(super) message: Option<Message>,
    pub(super) receive_buffer: Option<ReceiveBuffer>,
    pub(super) has_long_buffer: bool,
    pub(super) bulk: bool,
    pub(super) interrupt: Interrupt,
    pub(super) state: CallState,
    /// Index of the connection, once the call does not wait for the limit.
    pub(super) connection: usize,
    /// `true` once the call was put in a batch for the current socket: a reply may match it.
    pub(super) out: bool,
    /// Length of the call; `bytes` adds the data that it requests.
    pub(super) call_bytes: usize,
    pub(super) bytes: usize,
    /// Time at which the call stopped waiting for the in-flight limit.
    pub(super) begun_at: Instant,
    /// Time of the last transmission.
    pub(super) sent_at: Instant,
    pub(super) transmissions: u32,
    /// Number of the call's connections that failed before any call was answered over them.
    pub(super) failures: u32,
    /// Number of the server's silence (`ClientState::silences`) for which the interrupt was last watched; 0
    /// if never.
    pub(super) watched_in: u64,
    /// `true` if the call's interrupt is watched permanently, because the call is overdue.
    pub(super) is_watched: bool,
    /// Outcome to be delivered once the sending thread no longer uses the call's memory.
    pub(super) decided: Option<Outcome>,
}

/// Progress of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallState {
    /// The call waits for the in-flight limit.
    Waiting,
    /// The call is in a queue of its connection.
    Queued,
    /// The call is in the batch that its connection sends.
    Sending,
    /// The call is completely sent.
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

    /// Returns `true` if the call occupies a connection for long.
    pub(super) fn moves_much(&self) -> bool {
        self.bytes >= MUCH_BYTES
    }

    /// Returns `true` if a reply over this connection may answer the call. Returns `false` if the call's end
    /// was decided while it is being sent: its memory returns to the owner as soon as sending has finished.
    pub(super) fn can_be_answered(&self, connection: usize) -> bool {
        self.out && self.decided.is_none() && self.connection == connection
    }

    /// Releases the caller's memory and interrupt, before the entry is retained for reuse.
    pub(super) fn release_resources(&mut self) {
        self.message = None;
        self.receive_buffer = None;
        self.decided = None;
        self.interrupt = Interrupt::default();
    }
}
