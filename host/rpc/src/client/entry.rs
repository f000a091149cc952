//! What is known of one call.

use std::sync::Arc;
use std::time::Instant;

use super::batch::Message;
use super::call::Landing;
use super::pending::{Cell, Outcome};
use tombolo_core::Interrupt;

/// Data from so many bytes on are worth receiving straight into their place.
const LONG_LANDING_BYTES: usize = 8 << 10;

/// A new call.
pub(super) struct NewCall {
    pub(super) procedure: u32,
    pub(super) message: Message,
    pub(super) landing: Option<Landing>,
    pub(super) bulk: bool,
    pub(super) interrupt: Interrupt,
}

/// What is known of one call.
pub(super) struct Entry {
    /// Its number among all calls: they are sent again in this order.
    pub(super) serial: u64,
    pub(super) procedure: u32,
    /// Where its outcome is told.
    pub(super) cell: Option<Arc<Cell>>,
    /// None while it is in a batch.
    pub(super) message: Option<Message>,
    pub(super) landing: Option<Landing>,
    pub(super) has_long_landing: bool,
    pub(super) bulk: bool,
    pub(super) interrupt: Interrupt,
    pub(super) place: Place,
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
    /// What it has come to, told when the one who sends it is done with its memory.
    pub(super) decided: Option<Outcome>,
}

/// Where a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// It waits for the in-flight limit.
    Waiting,
    /// It is in a queue of its connection.
    Queued,
    /// It is in the batch of its connection.
    Sending,
    /// It is out.
    Sent,
}

impl Entry {
    pub(super) fn new(call: NewCall, cell: Arc<Cell>, serial: u64, now: Instant) -> Self {
        let NewCall { procedure, message, landing, bulk, interrupt } = call;
        let landing_bytes = landing.as_ref().map_or(0, |landing| landing.sink.len());
        let call_bytes = message.len();
        Self {
            serial,
            procedure,
            cell: Some(cell),
            message: Some(message),
            landing,
            has_long_landing: landing_bytes >= LONG_LANDING_BYTES,
            bulk,
            interrupt,
            place: Place::Waiting,
            connection: 0,
            out: false,
            call_bytes,
            bytes: call_bytes.saturating_add(landing_bytes),
            begun_at: now,
            sent_at: now,
            transmissions: 0,
            failures: 0,
            watched_in: 0,
            is_watched: false,
            decided: None,
        }
    }

    /// Whether a reply over this connection can be its answer. Of one whose end is decided, and which somebody still sends, it is
    /// not: its memory goes back to its owner as soon as that is done.
    pub(super) fn can_be_answered(&self, connection: usize) -> bool {
        self.out && self.decided.is_none() && self.connection == connection
    }

    /// Gives up what belongs to others.
    pub(super) fn let_go(&mut self) {
        self.message = None;
        self.landing = None;
        self.decided = None;
        self.interrupt = Interrupt::default();
    }
}
