//! What all threads of one server share.
#![expect(clippy::vec_box, reason = "the boxes travel")]

use std::sync::Arc;
use std::time::Instant;

use super::clients::Clients;
use super::counters::Counters;
use super::options::Options;
use super::service::Exchange;
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
