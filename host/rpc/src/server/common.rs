//! State and counters shared by all threads of a server.
#![expect(clippy::vec_box, reason = "the boxes are passed to calls")]

use std::sync::Arc;
use std::time::Instant;

use super::clients::Clients;
use super::options::Options;
use super::service::Exchange;
use tombolo_host_runtime::buffer_pool::{BufferPool, Buffers};
use tombolo_host_runtime::free_list::FreeList;
use tombolo_host_runtime::rate_limit::RateLimit;

/// Maximum number of exchanges in [`Common::spare`].
const SPARE_MAX: usize = 256;

/// State shared by all threads of one server.
pub(super) struct Common {
    pub(super) started: Instant,
    pub(super) options: Options,
    pub(super) counters: Counters,
    pub(super) pool: Arc<BufferPool>,
    pub(super) clients: Clients,
    /// Exchanges of calls that were answered later, for reuse by all threads.
    pub(super) spare: FreeList<Box<Exchange>>,
    pub(super) lines: Lines,
}

/// Rate limits of some log messages that clients can cause, one for each message.
#[derive(Default)]
pub(super) struct Lines {
    pub(super) refused: RateLimit,
    pub(super) out_of_resources: RateLimit,
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

/// Exchanges that one event thread retains for reuse.
pub(super) struct Exchanges {
    common: Arc<Common>,
    own: Vec<Box<Exchange>>,
}

impl Exchanges {
    /// Maximum number of exchanges retained: ample, as calls that are answered at once take one at a time.
    const COUNT_MAX: usize = 32;

    pub(super) fn new(common: Arc<Common>) -> Self {
        Self { common, own: Vec::with_capacity(Self::COUNT_MAX) }
    }

    /// Takes an exchange whose buffers are charged to the account of `buffers`.
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

tombolo_core::counters! {
    /// The live counters behind [`Counts`], except `lent_bytes`, which the buffer pool counts.
    pub(super) struct Counters;

    /// Counters since the start, and gauges. They are read while they change, so they need not agree exactly.
    pub struct Counts {
        /// Open connections (a gauge).
        connections,
        /// Connections accepted or adopted.
        connections_total,
        /// Connections and datagrams refused: address not admitted, or too many connections.
        refused,
        /// Connections closed because the peer did not receive its replies.
        closed_stuck,
        /// Connections closed because they were idle: within an incomplete call or TLS handshake, or without
        /// ever having had a call answered.
        closed_silent,
        /// Idle connections closed because the limit of connections was reached.
        closed_for_others,
        /// Connections closed because a record exceeded the maximum length.
        closed_too_long,
        /// Connections closed because TLS was required and not established.
        closed_insecure,
        /// Calls received.
        calls,
        /// Calls not answered at once.
        later,
        /// Calls whose service panicked.
        panics,
        /// Datagrams dropped because the client's limits were reached, and replies that the socket did not
        /// accept.
        datagrams_dropped,
        /// Bytes of calls, with their record marks.
        received_bytes,
        /// Bytes of replies, with their record marks.
        sent_bytes,
        ;
        /// Bytes in use on behalf of clients: buffers, pending calls and unsent replies (a gauge).
        lent_bytes: u64,
    }
}
