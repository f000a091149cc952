//! The lending side: a socket in the cache directory for proxies of the same user or root.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tombolo_core::fs::Volume;
use tombolo_host_runtime::listener::{ListenError, Listener};
use tombolo_host_runtime::rate_limit::RateLimit;
use tombolo_host_runtime::{lock, task};
use tombolo_sys::epoll::{Epoll, EventFd, Interest};
use tombolo_sys::{Errno, packet, socket};

use super::extents::Extents;
use super::message::{Ask, Lent, MESSAGE_BYTES_MAX, Reply, Request, Welcome};
use super::{is_own, socket_in};
use crate::counters::Counters;
use crate::session::{Session, lend};
use crate::store::{Hold, Lendable};

/// A lender of cached data. Dropping it ends all connections; the data may be evicted then.
#[derive(Debug)]
pub(crate) struct Lender {
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

/// The thread that accepts connections and receives requests, and its state.
struct Acceptor {
    listener: Listener,
    epoll: Epoll,
    session: Arc<Session>,
    volume: Volume,
    connections: HashMap<u64, Arc<Connection>>,
    last_token: u64,
    complaints: RateLimit,
}

/// A connected borrower. [`State::is_welcome`]: its handshake was accepted.
#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    state: Mutex<State>,
    /// Number of requests being answered.
    pending: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    is_welcome: bool,
    is_closed: bool,
    /// Lent data by generation, held against eviction.
    holds: HashMap<u64, Lending>,
}

/// A data file lent to one borrower.
#[derive(Debug)]
struct Lending {
    _hold: Hold,
    /// Number of descriptors sent and not returned.
    descriptors: u32,
    /// Parts lent so far, for the counter of lent bytes.
    extents: Extents,
}

/// Maximum number of connected borrowers.
const CONNECTIONS_MAX: usize = 16;

/// Maximum number of data files lent to one borrower.
const HOLDS_MAX: usize = 1024;

/// Maximum number of descriptors of one data file per borrower.
const DESCRIPTORS_MAX: u32 = 1024;

/// Maximum number of concurrent requests of one borrower.
const PENDING_MAX: usize = 128;

/// Maximum number of messages received from one connection before the others have their turn.
const MESSAGES_MAX: usize = 64;

/// Pause after a failed accept, for example for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const STOP: u64 = 0;
const LISTENER: u64 = 1;

impl Lender {
    /// Starts lending from the cache of `session`, which is in `dir` and whose origin is `volume`.
    pub(crate) fn start(dir: &Path, session: Arc<Session>, volume: Volume) -> Result<Self, ListenError> {
        let path = socket_in(dir);
        let failed = |source: io::Error| ListenError::Io { path: path.clone(), source };
        let errno = |error: Errno| failed(error.into());
        let listener = Listener::bind_packets(&path, 0o600)?;
        let (epoll, stop) = (Epoll::new().map_err(errno)?, Arc::new(EventFd::new().map_err(errno)?));
        epoll.add(&*stop, STOP, Interest::Readable).map_err(errno)?;
        epoll.add(listener.socket(), LISTENER, Interest::Readable).map_err(errno)?;
        let acceptor = Acceptor {
            listener,
            epoll,
            session,
            volume,
            connections: HashMap::new(),
            last_token: LISTENER,
            complaints: RateLimit::default(),
        };
        let thread = thread::Builder::new().name("cache-lend".into());
        let thread = thread.spawn(move || acceptor.run()).map_err(failed)?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Lender {
    fn drop(&mut self) {
        self.stop.notify();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that lends cached data has panicked");
        }
    }
}

impl Acceptor {
    fn run(mut self) {
        let mut events = Vec::new();
        loop {
            if let Err(error) = self.epoll.wait(&mut events, None) {
                tracing::error!(%error, "lending of cached data has ended");
                break;
            }
            for event in &events {
                match event.token {
                    STOP => return self.close_all(),
                    LISTENER => self.accept(),
                    token => {
                        if !self.receive(token) {
                            self.close(token);
                        }
                    }
                }
            }
        }
        self.close_all();
    }

    fn accept(&mut self) {
        let socket = match packet::accept(self.listener.socket()) {
            Ok(socket) => socket,
            Err(Errno::AGAIN | Errno::CONNABORTED) => return,
            Err(_) => return thread::sleep(ACCEPT_PAUSE),
        };
        if !is_own(socket.as_fd()) || self.connections.len() >= CONNECTIONS_MAX {
            return;
        }
        self.last_token += 1;
        if self.epoll.add(&socket, self.last_token, Interest::Readable).is_ok() {
            let connection = Connection { socket, state: Mutex::default(), pending: AtomicUsize::new(0) };
            self.connections.insert(self.last_token, Arc::new(connection));
        }
    }

    /// Processes a borrower's messages. Returns `false` if its connection must end.
    fn receive(&self, token: u64) -> bool {
        let Some(connection) = self.connections.get(&token) else { return true };
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        for _ in 0..MESSAGES_MAX {
            let packet = match packet::receive(&connection.socket, &mut buffer) {
                Ok(packet) if packet.len > 0 => packet,
                Err(Errno::AGAIN) => return true,
                _ => return false,
            };
            let is_whole = !packet.truncated && packet.descriptors.is_empty();
            let request = buffer.get(..packet.len).filter(|_| is_whole).and_then(Request::decoded);
            if request.and_then(|request| self.take(connection, request)).is_none() {
                if let Some(suppressed) = self.complaints.allow() {
                    tracing::warn!(suppressed, "invalid message from a borrower: disconnecting it");
                }
                return false;
            }
        }
        true
    }

    /// Processes a request. Returns `None` if it is invalid.
    fn take(&self, connection: &Arc<Connection>, request: Request) -> Option<()> {
        let mut state = lock(&connection.state);
        match (request, state.is_welcome) {
            (Request::Hello(volume), false) => {
                state.is_welcome = volume == self.volume;
                let welcome = if state.is_welcome { Welcome::Yes } else { Welcome::OtherOrigin };
                connection.send(&Reply::Hello(welcome), None);
            }
            (Request::Release(generation), true) => {
                let lending = state.holds.get_mut(&generation)?;
                lending.descriptors -= 1;
                if lending.descriptors == 0 {
                    state.holds.remove(&generation);
                }
            }
            (Request::Borrow(ask), true) => {
                drop(state);
                self.lend(connection, ask);
            }
            _ => return None,
        }
        Some(())
    }

    fn lend(&self, connection: &Arc<Connection>, ask: Ask) {
        let (connection, session) = (connection.clone(), self.session.clone());
        if connection.pending.fetch_add(1, Ordering::Relaxed) >= PENDING_MAX {
            connection.pending.fetch_sub(1, Ordering::Relaxed);
            return connection.send(&Reply::Lent(Lent { id: ask.id, ..Lent::default() }), None);
        }
        task::spawn(async move {
            let lendable = lend(&session, &ask).await;
            connection.pending.fetch_sub(1, Ordering::Relaxed);
            connection.answer(&ask, lendable, &session.cache.counters);
        });
    }

    fn close(&mut self, token: u64) {
        let Some(connection) = self.connections.remove(&token) else { return };
        // A task that answers a request may keep the socket open, so it is removed from the epoll set.
        let _ = self.epoll.remove(&connection.socket);
        let _ = socket::shut_down(&connection.socket);
        let holds = {
            let mut state = lock(&connection.state);
            state.is_closed = true;
            std::mem::take(&mut state.holds)
        };
        drop(holds);
    }

    fn close_all(&mut self) {
        let all: Vec<u64> = self.connections.keys().copied().collect();
        all.into_iter().for_each(|token| self.close(token));
    }
}

impl Connection {
    /// Answers a request: lends `lendable` if there is any and the borrower's limits permit it.
    fn answer(&self, ask: &Ask, lendable: Option<Lendable>, counters: &Counters) {
        let mut lent = Lent { id: ask.id, ..Lent::default() };
        let mut state = lock(&self.state);
        let generation = lendable.as_ref().map_or(0, |lendable| lendable.generation);
        let sent = state.holds.get(&generation).map_or(0, |lending| lending.descriptors);
        let has_it = sent > 0 && ask.has == generation;
        let has_room = has_it || (sent < DESCRIPTORS_MAX && (sent > 0 || state.holds.len() < HOLDS_MAX));
        let Some(lendable) = lendable.filter(|_| has_room && !state.is_closed) else {
            return self.send(&Reply::Lent(lent), None);
        };
        (lent.generation, lent.extents) = (generation, lendable.extents);
        // The descriptor is counted before it is sent, as the borrower may return it at once.
        let new = Lending { _hold: lendable.hold, descriptors: 0, extents: Extents::default() };
        let lending = state.holds.entry(generation).or_insert(new);
        lending.descriptors += u32::from(!has_it);
        counters.lent_bytes.add(lent.extents.iter().map(|extent| lending.extents.add(extent.clone())).sum());
        self.send(&Reply::Lent(lent), (!has_it).then_some(&lendable.reader));
    }

    /// Sends a message, and disconnects a borrower that does not read.
    fn send(&self, reply: &Reply, descriptor: Option<&OwnedFd>) {
        let descriptors: Vec<_> = descriptor.iter().map(|descriptor| descriptor.as_fd()).collect();
        if packet::send(&self.socket, &reply.encoded(), &descriptors).is_err() {
            let _ = socket::shut_down(&self.socket);
        }
    }
}
