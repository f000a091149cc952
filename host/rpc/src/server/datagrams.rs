//! Receiving of calls in UDP datagrams, which have no record marks (RFC 5531 §11).

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::calls::{Calls, Datagrams, Destination, Return, RunResult};
use super::clients::Client;
use super::common::Exchanges;
use super::service::{Peer, Transport};
use tombolo_host_runtime::buffer_pool::{Buffers, Lease};
use tombolo_sys::udp::{self, DATAGRAM_MAX_BYTES, Route};
use tombolo_sys::{Errno, Result};

/// Maximum number of datagrams served in one turn, for fairness.
const TURN_MAX: usize = 32;

/// Maximum number of senders cached by a socket.
const SENDERS_MAX: usize = 64;

/// Receiving side of a UDP socket, as owned by its event thread.
pub(super) struct DatagramReader {
    pub(super) datagrams: Arc<Datagrams>,
    /// Receive buffer; replaced when a call retains it.
    area: Option<Lease>,
    senders: Vec<Sender>,
    /// Index of the sender to evict next.
    oldest: usize,
}

/// A sender of a recent datagram.
#[derive(Clone)]
struct Sender {
    address: SocketAddr,
    peer: Arc<Peer>,
    client: Arc<Client>,
    buffers: Buffers,
}

impl DatagramReader {
    pub(super) fn new(datagrams: Arc<Datagrams>) -> Self {
        Self { datagrams, area: None, senders: Vec::new(), oldest: 0 }
    }

    /// Serves datagrams, up to a limit. Returns their number, and `true` if there may be more.
    pub(super) fn turn(&mut self, calls: &mut dyn Calls, exchanges: &mut Exchanges) -> (usize, bool) {
        for count in 0..TURN_MAX {
            match self.receive() {
                Ok((bytes, route)) => self.serve(bytes, route, calls, exchanges),
                // Errors other than EAGAIN concern an earlier reply (ICMP) or this one datagram, so the
                // socket stays in use.
                Err(Errno::AGAIN) => return (count, false),
                Err(error) => tracing::debug!(%error, "datagram receive failed"),
            }
        }
        (TURN_MAX, true)
    }

    /// Frees the receive buffer and the cached senders; the next datagram recreates them.
    pub(super) fn trim(&mut self) {
        self.area = None;
        self.senders = Vec::new();
    }

    fn receive(&mut self) -> Result<(usize, Route)> {
        let datagrams = &self.datagrams;
        let pool = &datagrams.common.pool;
        let area = match &mut self.area {
            Some(area) => area,
            none => none.insert(pool.take(DATAGRAM_MAX_BYTES).ok_or(Errno::NOMEM)?),
        };
        udp::receive(datagrams.socket(), &area.sink(0..DATAGRAM_MAX_BYTES))
    }

    fn serve(&mut self, bytes: usize, route: Route, calls: &mut dyn Calls, exchanges: &mut Exchanges) {
        let datagrams = self.datagrams.clone();
        let common = &datagrams.common;
        common.counters.received_bytes.add_len(bytes);
        if bytes == 0 {
            return;
        }
        let Some(sender) = self.sender(route.peer()) else {
            common.counters.refused.increment();
            return;
        };
        if !(sender.client.is_below_limit() && sender.buffers.account().has_room()) {
            common.counters.datagrams_dropped.increment();
            return;
        }
        let Some(lease) = &self.area else { return };
        let mut exchange = exchanges.take(&sender.buffers);
        exchange.fill(lease.source(0..bytes), Some(lease.clone()));
        common.counters.calls.increment();
        datagrams.calls.fetch_add(1, Ordering::SeqCst);
        sender.client.begin_call();
        let back = || Return { client: sender.client.clone(), route };
        match calls.run(&sender.peer, exchange, &|| Destination::Datagram(datagrams.clone(), back())) {
            RunResult::Done(exchange, outcome) => {
                datagrams.answer(&back(), &exchange, outcome);
                exchanges.put(exchange);
            }
            RunResult::Later => {}
            RunResult::Panicked => datagrams.end_call(&back()),
        }
        if let Some(area) = &mut self.area
            && !area.is_sole()
        {
            area.charge(sender.buffers.account());
            self.area = None;
        }
    }

    /// Returns the sender, or `None` if it is not admitted.
    fn sender(&mut self, address: SocketAddr) -> Option<Sender> {
        if let Some(sender) = self.senders.iter().find(|sender| sender.address == address) {
            return Some(sender.clone());
        }
        let common = &self.datagrams.common;
        if !common.options.admits(address.ip()) {
            return None;
        }
        let client = common.clients.of(address.ip());
        let buffers = Buffers::of(client.datagrams.clone());
        let sender = Sender { address, peer: Peer::new(address, Transport::Udp), client, buffers };
        if self.senders.len() < SENDERS_MAX {
            self.senders.push(sender.clone());
        } else if let Some(context) = self.senders.get_mut(self.oldest) {
            *context = sender.clone();
            self.oldest = (self.oldest + 1) % SENDERS_MAX;
        }
        Some(sender)
    }
}
