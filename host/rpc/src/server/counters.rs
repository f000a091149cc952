//! What a server has done, in numbers.

use std::sync::atomic::{AtomicU64, Ordering};

/// Numbers since the start, but for the gauges. Read while they change, so they need not fit each other exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections there are (a gauge).
    pub connections: u64,
    /// Connections there have been.
    pub connections_total: u64,
    /// Callers that were turned away: not admitted, or one too many.
    pub refused: u64,
    /// Connections that were closed because their peer took no replies.
    pub closed_stuck: u64,
    /// Connections that were closed because their peer said nothing of use.
    pub closed_silent: u64,
    /// Connections that were closed because they were idle and the limit was reached.
    pub closed_for_others: u64,
    /// Connections that were closed because a record was longer than is taken.
    pub closed_too_long: u64,
    /// Calls received.
    pub calls: u64,
    /// Those of them that were not answered at once.
    pub later: u64,
    /// Those of them whose service panicked.
    pub panics: u64,
    /// Datagrams that were dropped because the client's limits were reached, and replies that the socket did not take.
    pub datagrams_dropped: u64,
    /// Bytes of calls, with their marks.
    pub received_bytes: u64,
    /// Bytes of replies, with their marks.
    pub sent_bytes: u64,
    /// Bytes of buffers that are lent to clients (a gauge).
    pub lent_bytes: u64,
}

macro_rules! counters {
    ($($name:ident),* $(,)?) => {
        /// The numbers where they are counted.
        #[derive(Debug, Default)]
        pub(super) struct Counters {
            $(pub(super) $name: Counter,)*
        }

        impl Counters {
            /// The numbers of now; but for `lent_bytes`, which others know.
            pub(super) fn read(&self) -> Counts {
                Counts { $($name: self.$name.get(),)* lent_bytes: 0 }
            }
        }
    };
}

counters!(
    connections,
    connections_total,
    refused,
    closed_stuck,
    closed_silent,
    closed_for_others,
    closed_too_long,
    calls,
    later,
    panics,
    datagrams_dropped,
    received_bytes,
    sent_bytes,
);

/// One number.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self, n: usize) {
        self.0.fetch_add(n as u64, Ordering::Relaxed);
    }

    pub(super) fn subtract(&self, n: usize) {
        self.0.fetch_sub(n as u64, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
