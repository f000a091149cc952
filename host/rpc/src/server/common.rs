//! What all threads of one server share, and what it has done, in numbers.
#![expect(clippy::vec_box, reason = "the boxes travel")]

use std::sync::Arc;
use std::time::Instant;

use super::clients::Clients;
use super::options::Options;
use super::service::Exchange;
use crate::counter::Counter;
use tombolo_host_runtime::buffer_pool::{BufferPool, Buffers};
use tombolo_host_runtime::free_list::FreeList;
use tombolo_host_runtime::rate_limit::RateLimit;

/// No more exchanges than these wait for their next use.
const SPARE_MAX: usize = 256;

/// What all threads of one server share.
pub(super) struct Common {
    pub(super) started: Instant,
    pub(super) options: Options,
    pub(super) counters: Counters,
    pub(super) pool: Arc<BufferPool>,
    pub(super) clients: Clients,
    /// Exchanges that come back from other threads than the one that took them.
    pub(super) spare: FreeList<Box<Exchange>>,
    pub(super) lines: Lines,
}

/// The log lines that callers can cause.
#[derive(Default)]
pub(super) struct Lines {
    pub(super) refused: RateLimit,
    pub(super) no_room: RateLimit,
    pub(super) too_long: RateLimit,
    pub(super) insecure: RateLimit,
    pub(super) stuck: RateLimit,
    pub(super) dropped: RateLimit,
}

impl Common {
    pub(super) fn new(options: Options) -> Arc<Self> {
        let pool = BufferPool::new(options.buffers);
        let clients = Clients::new(pool.clone(), options.client_calls_max);
        Arc::new(Self {
            started: Instant::now(),
            options,
            counters: Counters::default(),
            pool,
            clients,
            spare: FreeList::new(SPARE_MAX),
            lines: Lines::default(),
        })
    }
}

/// One event thread's exchanges.
pub(super) struct Exchanges {
    common: Arc<Common>,
    own: Vec<Box<Exchange>>,
}

impl Exchanges {
    /// More are not kept: a batch takes one at a time, but what was answered later takes one each.
    const COUNT_MAX: usize = 32;

    pub(super) fn new(common: Arc<Common>) -> Self {
        Self { common, own: Vec::with_capacity(Self::COUNT_MAX) }
    }

    /// An exchange that takes its buffers from there.
    pub(super) fn take(&mut self, buffers: &Buffers) -> Box<Exchange> {
        let Some(mut exchange) = self.own.pop().or_else(|| self.common.spare.take()) else {
            return Box::new(Exchange::new(buffers.clone()));
        };
        if !Arc::ptr_eq(exchange.buffers.account(), buffers.account()) {
            exchange.buffers = buffers.clone();
        }
        exchange
    }

    pub(super) fn put(&mut self, mut exchange: Box<Exchange>) {
        exchange.clear();
        if self.own.len() < Self::COUNT_MAX {
            self.own.push(exchange);
        }
    }
}

/// Numbers since the start, but for the gauges. Read while they change, so they need not fit each other
/// exactly.
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
    /// Connections that were closed because TLS was not asked for, or its handshake failed.
    pub closed_insecure: u64,
    /// Calls received.
    pub calls: u64,
    /// Those of them that were not answered at once.
    pub later: u64,
    /// Those of them whose service panicked.
    pub panics: u64,
    /// Datagrams that were dropped because the client's limits were reached, and replies that the socket did
    /// not take.
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
    closed_insecure,
    calls,
    later,
    panics,
    datagrams_dropped,
    received_bytes,
    sent_bytes,
);
