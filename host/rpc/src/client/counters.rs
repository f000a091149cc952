//! What a client has done, in numbers.

use std::time::Duration;

use crate::counter::Counter;

/// Numbers since the start, but for the gauges. Read while they change, so they need not fit each other
/// exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Calls made.
    pub calls: u64,
    /// Replies that answered one.
    pub replies: u64,
    /// Replies that answered none: late, twice, or to a call that was never made.
    pub unknown_replies: u64,
    /// Replies that made no sense.
    pub garbage: u64,
    /// Calls that were sent again.
    pub retransmissions: u64,
    /// Connections that were made.
    pub connections: u64,
    /// Those of them that replaced one that was lost.
    pub reconnects: u64,
    /// Bytes sent, with record marks.
    pub sent_bytes: u64,
    /// Bytes received, with record marks.
    pub received_bytes: u64,
    /// Bytes of file data that were received where they belong.
    pub landed_bytes: u64,
    /// Bytes of file data that were copied there.
    pub copied_bytes: u64,
    /// System calls that sent something.
    pub sends: u64,
    /// Times that the receiver turned to a socket with replies, each for all that were there.
    pub turns: u64,
    /// Times that the receiver slept.
    pub sleeps: u64,
    /// Calls whose answer is still to come (a gauge).
    pub outstanding: u64,
    /// Bulk calls of them that wait for the in-flight limit (a gauge).
    pub waiting: u64,
    /// The in-flight limit (a gauge).
    pub in_flight: u64,
    /// The smoothed round trip (a gauge; zero before the first answer).
    pub round_trip: Duration,
    /// How long the server has not been responding, from five seconds on (a gauge; zero while it responds).
    pub unresponsive: Duration,
}

impl Counts {
    /// Replies for each time that the receiver turned to a socket.
    #[must_use]
    pub fn replies_per_turn(&self) -> f64 {
        if self.turns == 0 { 0.0 } else { self.replies as f64 / self.turns as f64 }
    }
}

macro_rules! counters {
    ($($name:ident),* $(,)?) => {
        /// The numbers where they are counted.
        #[derive(Debug, Default)]
        pub(super) struct Counters {
            $(pub(super) $name: Counter,)*
        }

        impl Counters {
            /// The numbers of now; but for the gauges, which others know.
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
