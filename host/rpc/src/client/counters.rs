//! Counters of a client.

use std::time::Duration;

tombolo_core::counters! {
    /// The live counters behind [`Counts`].
    pub(super) struct Counters;

    /// Counters since the start, and gauges. They are read while they change, so they need not agree exactly.
    pub struct Counts {
        /// Calls made.
        calls,
        /// Replies matched to a call; over a link, those with results.
        replies,
        /// Replies matched to no call: late, duplicate, or never requested.
        unknown_replies,
        /// Malformed replies.
        garbage,
        /// Connections established.
        connections,
        /// Connections established after the loss of an earlier one or a failed attempt.
        reconnects,
        /// Bytes sent, with record marks.
        sent_bytes,
        /// Bytes received, with record marks.
        received_bytes,
        /// Bytes of file data received straight into their buffers.
        landed_bytes,
        /// Bytes of file data copied into their buffers.
        copied_bytes,
        /// Batches sent; over a link, calls sent.
        sends,
        /// Turns of the receiver. Each takes the data available on one connection, up to a limit; turns that
        /// find nothing do not count.
        turns,
        /// Times that the receiver slept.
        sleeps,
        ;
        /// Retransmissions of calls.
        retransmissions: u64,
        /// Outstanding calls, without those over links (a gauge).
        outstanding: u64,
        /// Bulk calls waiting for the in-flight limit, without those over links (a gauge).
        waiting: u64,
        /// In-flight limit (a gauge).
        in_flight: u64,
        /// Smoothed round trip of bulk calls or of other calls, whichever is longer (a gauge; zero before the
        /// first answer, and over links).
        round_trip: Duration,
        /// Time for which the server has not been responding, reported from five seconds on (a gauge; zero
        /// while it responds).
        unresponsive: Duration,
    }
}

impl Counts {
    /// Returns the average number of replies per [turn](Self::turns) of the receiver; 0 before the first
    /// turn.
    #[must_use]
    pub fn replies_per_turn(&self) -> f64 {
        if self.turns == 0 { 0.0 } else { self.replies as f64 / self.turns as f64 }
    }
}
