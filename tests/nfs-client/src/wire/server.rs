//! The server's side: a real service called over the simulated network.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::mem;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tombolo_host_rpc::server::{Exchange, Outcome, Peer, Service, Transport};
use tombolo_host_runtime::buffer_pool::{BufferLimits, Buffers};
use tombolo_mem::Source;
use tombolo_sys::Errno;
use tombolo_wire_rpc::{Mark, RecordAssembler};

use super::network::{Happening, Network, SocketId};
use super::stream::End;

/// Maximum length of a record, in bytes.
const RECORD_MAX_BYTES: usize = 2 << 20;

/// Maximum number of bytes per receive.
const RECEIVE_BYTES: usize = 64 << 10;

/// Maximum length of a datagram, in bytes.
const DATAGRAM_MAX_BYTES: usize = 65_507;

/// Receives calls from the network, has a service answer them, and sends the replies.
pub struct ServerSide<S> {
    network: Network,
    /// `None` while the server is down.
    service: Option<Arc<S>>,
    buffers: Buffers,
    connections: BTreeMap<SocketId, ServerConnection>,
    calls: BTreeMap<u64, Call>,
    last_call: u64,
    woken: Arc<Woken>,
    frozen_until: Duration,
    /// Events received while frozen.
    held: VecDeque<Happening>,
}

struct ServerConnection {
    peer: Arc<Peer>,
    records: RecordAssembler,
    received: Vec<u8>,
    outbox: VecDeque<u8>,
    /// `true` if the connection is closed once the outbox is empty.
    ends: bool,
}

struct Call {
    socket: SocketId,
    answer: Pin<Box<dyn Future<Output = (Box<Exchange>, Outcome)> + Send>>,
}

/// Calls that were woken.
#[derive(Default)]
struct Woken(Mutex<VecDeque<u64>>);

struct CallWaker(u64, Arc<Woken>);

impl Wake for CallWaker {
    fn wake(self: Arc<Self>) {
        self.1.0.lock().unwrap_or_else(PoisonError::into_inner).push_back(self.0);
    }
}

impl Woken {
    fn next(&self) -> Option<u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

impl<S: Service> ServerSide<S> {
    /// Creates a running server.
    pub fn new(network: &Network, service: Arc<S>) -> Self {
        Self {
            network: network.clone(),
            service: Some(service),
            buffers: Buffers::new(BufferLimits::default()),
            connections: BTreeMap::new(),
            calls: BTreeMap::new(),
            last_call: 0,
            woken: Arc::default(),
            frozen_until: Duration::ZERO,
            held: VecDeque::new(),
        }
    }

    /// Takes an event for the server.
    pub fn take(&mut self, happening: Happening) {
        if self.network.now() < self.frozen_until || !self.held.is_empty() {
            self.held.push_back(happening);
        } else {
            self.act_on(happening);
        }
    }

    /// Processes received events and woken calls. To be called after each step of the network.
    pub fn turn(&mut self) {
        if self.network.now() < self.frozen_until {
            return;
        }
        while let Some(happening) = self.held.pop_front() {
            self.act_on(happening);
        }
        while let Some(number) = self.woken.next() {
            self.go_on(number);
        }
    }

    /// Pauses the server for `time`.
    pub fn freeze(&mut self, time: Duration) {
        self.frozen_until = self.network.now() + time;
        self.network.nudge(self.frozen_until);
    }

    /// Stops the server and abandons its calls. With `power`, its machine is down for that time.
    pub fn stop(&mut self, power: Option<Duration>) {
        self.service = None;
        let mut state = self.network.state();
        state.listening = false;
        state.lose_datagrams_to_server();
        if let Some(down) = power {
            state.host_down_until = state.now + down;
        }
        drop(state);
        match power {
            Some(_) => self.network.forget_server_ends(),
            None => self.connections.keys().for_each(|socket| self.network.close(*socket, End::Server)),
        }
        self.connections.clear();
        self.calls.clear();
        self.held.retain(|happening| matches!(happening, Happening::Accepted(_)));
        self.frozen_until = Duration::ZERO;
    }

    /// Restarts the server.
    pub fn start(&mut self, service: Arc<S>) {
        self.service = Some(service);
        self.network.state().listening = true;
    }

    /// Returns `true` while the server runs.
    pub fn is_up(&self) -> bool {
        self.service.is_some()
    }

    fn act_on(&mut self, happening: Happening) {
        match happening {
            Happening::Accepted(socket) => self.accept(socket),
            // Connected before this server was listening.
            Happening::Server(socket, _) if !self.connections.contains_key(&socket) => self.close(socket),
            Happening::Server(socket, ready) => {
                if ready.readable {
                    self.receive(socket);
                }
                self.send(socket);
                self.network.looked_at(socket, End::Server);
            }
            Happening::Datagram(socket, bytes) => {
                let peer = Peer::new(address_of(socket), Transport::Udp);
                self.begin(socket, peer, &bytes);
            }
            Happening::Client(..) | Happening::Nothing => {}
        }
    }

    fn accept(&mut self, socket: SocketId) {
        if self.service.is_none() {
            return self.close(socket);
        }
        let connection = ServerConnection {
            peer: Peer::new(address_of(socket), Transport::Tcp),
            records: RecordAssembler::new(RECORD_MAX_BYTES),
            received: Vec::new(),
            outbox: VecDeque::new(),
            ends: false,
        };
        self.connections.insert(socket, connection);
    }

    fn receive(&mut self, socket: SocketId) {
        let Some(connection) = self.connections.get_mut(&socket) else { return };
        match self.network.receive(socket, End::Server, RECEIVE_BYTES) {
            Ok(bytes) if !bytes.is_empty() => connection.received.extend(bytes),
            Err(Errno::AGAIN) => return,
            Ok(_) | Err(_) => return self.close(socket),
        }
        let mut left = connection.received.as_slice();
        let mut calls = Vec::new();
        let outcome = loop {
            match connection.records.next(&mut left) {
                Ok(Some(record)) => calls.push(record.to_vec()),
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        connection.received = left.to_vec();
        let peer = connection.peer.clone();
        calls.iter().for_each(|call| self.begin(socket, peer.clone(), call));
        if let Err(error) = outcome {
            panic!("{socket}: the client sends no records: {error}");
        }
    }

    fn begin(&mut self, socket: SocketId, peer: Arc<Peer>, call: &[u8]) {
        let Some(service) = self.service.clone() else { return };
        let word = |index: usize| {
            call.get(index * 4..).and_then(<[u8]>::first_chunk).map(|w| u32::from_be_bytes(*w))
        };
        let (xid, procedure) = (word(0).unwrap_or_default(), word(5).unwrap_or_default());
        self.network.note(u64::from(xid) << 32 | u64::from(procedure), || {
            format!("{socket}: call {xid:#x} of procedure {procedure}, {} bytes", call.len())
        });
        let mut exchange = Box::new(Exchange::new(self.buffers.clone()));
        exchange.fill(Source::from(call.to_vec()), None);
        let (network, service_time) = (self.network.clone(), self.network.conditions().service);
        let answer = Box::pin(async move {
            network.sleep(network.random_between(service_time)).await;
            let answer = service.serve(peer, exchange).await;
            network.sleep(network.random_between(service_time)).await;
            answer
        });
        self.last_call += 1;
        self.calls.insert(self.last_call, Call { socket, answer });
        self.go_on(self.last_call);
    }

    fn go_on(&mut self, number: u64) {
        // Removed from the map: a call woken while it is polled is polled again later.
        let Some(mut call) = self.calls.remove(&number) else { return };
        let waker = Waker::from(Arc::new(CallWaker(number, self.woken.clone())));
        match call.answer.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Pending => {
                self.calls.insert(number, call);
            }
            Poll::Ready((exchange, outcome)) => self.answer(call.socket, &exchange, outcome),
        }
    }

    fn answer(&mut self, socket: SocketId, exchange: &Exchange, outcome: Outcome) {
        let mut reply = exchange.reply.clone();
        if let Some(data) = &exchange.data {
            reply.extend(data.source.to_vec(usize::MAX));
            reply.resize(reply.len().next_multiple_of(4), 0);
        }
        match self.connections.get_mut(&socket) {
            Some(connection) => {
                if outcome == Outcome::Reply {
                    let mark = Mark::whole(reply.len()).expect("a reply of less than two gibibytes");
                    connection.outbox.extend(mark.to_bytes());
                    connection.outbox.extend(reply);
                }
                connection.ends |= outcome == Outcome::Close;
                self.send(socket);
            }
            None if outcome == Outcome::Reply && reply.len() <= DATAGRAM_MAX_BYTES => {
                // A reply over a closed connection is dropped.
                let _ = self.network.send_datagram(socket, End::Server, &reply);
            }
            None => {}
        }
    }

    fn send(&mut self, socket: SocketId) {
        let Some(connection) = self.connections.get_mut(&socket) else { return };
        while !connection.outbox.is_empty() {
            match self.network.send(socket, End::Server, connection.outbox.make_contiguous()) {
                Ok(count) => drop(connection.outbox.drain(..count)),
                Err(Errno::AGAIN) => return,
                Err(_) => return self.close(socket),
            }
        }
        if mem::take(&mut connection.ends) {
            self.close(socket);
        }
    }

    fn close(&mut self, socket: SocketId) {
        self.connections.remove(&socket);
        self.network.close(socket, End::Server);
    }
}

/// Returns the address that the server sees: one per client, with a port per socket.
fn address_of(socket: SocketId) -> SocketAddr {
    let [_, _, high, low] = u32::from(socket.client).to_be_bytes();
    let port = 512 + (socket.number % 60_000) as u16;
    (Ipv4Addr::new(10, 1, high, low), port).into()
}
