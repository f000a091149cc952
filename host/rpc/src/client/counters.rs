//! Counters of a client.

use std::time::Duration;

use crate::counter::Counter;

/// Counters since the start, and gauges. They are read while they change, so they need not agree exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Calls made.
    pub calls: u64,
    /// Replies matched to a call.
    pub replies: u64,
    /// Replies matched to no call: late, duplicate, or never requested.
    pub unknown_replies: u64,
    /// Malformed replies.
    pub garbage: u64,
    /// Retransmitted calls.
    pub retransmissions: u64,
    /// Connections established.
    pub connections: u64,
    /// Connections that replaced a lost one.
    pub reconnects: u64,
    /// Bytes sent, with record marks.
    pub sent_bytes: u64,
    /// Bytes received, with record marks.
    pub received_bytes: u64,
    /// Bytes of file data received straight into their buffers.
    pub landed_bytes: u64,
    /// Bytes of file data copied into their buffers.
    pub copied_bytes: u64,
    /// Batches sent; over a link, calls sent.
    pub sends: u64,
    /// Turns of the receiver. Each takes the data available on one connection, up to a limit; turns that
    /// find nothing do not count.
    pub turns: u64,
    /// Times that the receiver slept.
    pub sleeps: u64,
    /// Outstanding calls (a gauge).
    pub outstanding: u64,
    /// Bulk calls waiting for the in-flight limit (a gauge).
    pub waiting: u64,
    /// In-flight limit (a gauge).
    pub in_flight: u64,
    /// Smoothed round trip of bulk calls or of other calls, whichever is longer (a gauge; zero before the
    /// first answer).
    pub round_trip: Duration,
    /// Time for which the server has not been responding, reported from five seconds on (a gauge; zero while
    /// it responds).
    pub unresponsive: Duration,
}

impl Counts {
    /// Returns the average number of replies per [turn](Self::turns) of the receiver; 0 before the first
    /// turn.
    #[must_use]
    pub fn replies_per_turn(&self) -> f64 {
        if self.turns == 0 { 0.0 } else { self.replies as f64 / self.turns as f64 }
    }
}

macro_rules! counters {
    ($($name:ident),* $(,)?) => {
        /// The live counters behind [`Counts`].
        #[derive(Debug, Default)]
        pub(super) struct Counters {
            $(pub(super) $name: Counter,)*
        }

        impl Counters {
            /// Returns the current values; the gauges are 0.
            pub(super) fn read(&self) -> Counts {
                Counts { $($name: self.$name.get(),)* ..Counts::default() }
            }
        }
    };
}

counters!(
    calls,
    replies,
    unknown_replies,
    garbage,
    connections,
    reconnects,
    sent_bytes,
    received_bytes,
    landed_bytes,
    copied_bytes,
    sends,
    turns,
    sleeps,
);
