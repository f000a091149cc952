//! Running server: admission of connections, and shutdown.

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use thiserror::Error as ThisError;
use tombolo_core::{SessionId, lock};
use tombolo_host_runtime::buffer_pool::Buffers;
use tombolo_host_runtime::listener::{ListenError, Listener};
use tombolo_host_runtime::rate_limit::RateLimit;
use tombolo_host_tls::{ServerTls, Stream};
use tombolo_sys::epoll::{Epoll, EventFd, Interest};
use tombolo_sys::{Errno, socket, tcp};

use crate::clients::{Admitted, Client, Clients};
use crate::connection::{Connection, ConnectionEnd};
use crate::exports::Exports;
use crate::handshake::Handshake;
use crate::replies::Replies;
use crate::transmission::Transmission;

/// Length of a TCP socket's queue of connections that are not accepted yet.
const BACKLOG: i32 = 256;

/// Pause after a failure to accept, such as a lack of descriptors or threads.
const PAUSE: Duration = Duration::from_millis(100);

/// Send buffer of a UNIX socket, larger than the system's 208 KiB for fewer wake-ups of the client. TCP
/// adapts its own.
const SEND_BUFFER_BYTES: usize = 2 << 20;

/// Interval for freeing unused memory while no connection arrives.
const TRIM_EVERY: Duration = Duration::from_secs(5);

/// Idle time after which TCP keepalive probes a peer.
const SILENCE: Duration = Duration::from_secs(300);

/// Time for connections to end when the server stops.
const STOP_WITHIN: Duration = Duration::from_secs(6);

/// Server options.
#[derive(Clone)]
pub struct Options {
    /// Maximum number of connections; a client (a host, or a process of this host) may have half of those
    /// that other clients leave free. Default: 256.
    pub connections_max: usize,
    /// Time limit for the handshake. Default: 10 s.
    pub handshake_within: Duration,
    /// Time after which a client is disconnected that receives no replies or does not complete a request.
    /// Default: 30 s.
    pub stuck_after: Duration,
    /// TLS configuration; if set, TLS is required over TCP. UNIX sockets rely on file permissions.
    pub tls: Option<Arc<ServerTls>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connections_max: 256,
            handshake_within: Duration::from_secs(10),
            stuck_after: Duration::from_secs(30),
            tls: None,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").field("connections_max", &self.connections_max).finish_non_exhaustive()
    }
}

/// Error of [`Server::start`] and of adding listeners.
#[derive(Debug, ThisError)]
pub enum StartError {
    /// A UNIX socket cannot be listened on.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// An address cannot be listened on.
    #[error("{address}: {source}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Cause.
        source: Errno,
    },
    /// The system lacks descriptors or threads.
    #[error("cannot start: {0}")]
    System(#[source] std::io::Error),
}

/// Listening sockets. Connections are not accepted before the server starts.
#[derive(Default)]
pub struct Listeners {
    unix: Vec<Listener>,
    tcp: Vec<OwnedFd>,
}

impl Listeners {
    /// Adds a UNIX socket at `path`, whose file gets the permission bits `mode`.
    pub fn add_unix(&mut self, path: &Path, mode: u32) -> Result<(), StartError> {
        let listener = Listener::bind(path, mode)?;
        listener.socket().set_nonblocking(true).map_err(StartError::System)?;
        self.unix.push(listener);
        Ok(())
    }

    /// Adds a TCP socket at `address`; returns the address with the actual port.
    pub fn add_tcp(&mut self, address: SocketAddr) -> Result<SocketAddr, StartError> {
        let bound = |source| StartError::Bind { address, source };
        let socket = tcp::bind(address).map_err(bound)?;
        tcp::listen(&socket, BACKLOG).map_err(bound)?;
        let address = tcp::local_address(&socket).map_err(bound)?;
        self.tcp.push(socket);
        Ok(address)
    }
}

/// A running server. Dropping it stops it after answering the received requests, within a few seconds.
pub struct Server {
    shared: Arc<ServerShared>,
    thread: Option<JoinHandle<()>>,
}

/// State shared by all connections.
struct ServerShared {
    /// The served disks; released when the server has stopped.
    exports: Mutex<Arc<Exports>>,
    options: Options,
    clients: Arc<Clients>,
    is_stopping: Arc<AtomicBool>,
    /// Event that wakes the accepting thread when the server stops.
    stop: EventFd,
    /// Id of the next connection.
    next: AtomicU64,
    /// Open connections by id.
    open: Mutex<HashMap<u64, Arc<Replies>>>,
    closed: Condvar,
    log: RateLimit,
}

impl Server {
    /// Starts to serve the exports on the listeners, until the server is dropped.
    pub fn start(listeners: Listeners, exports: Exports, options: Options) -> Result<Self, StartError> {
        let system = |error: Errno| StartError::System(error.into());
        let shared = Arc::new(ServerShared {
            exports: Mutex::new(Arc::new(exports)),
            clients: Clients::new(options.connections_max.max(2)),
            options,
            is_stopping: Arc::default(),
            stop: EventFd::new().map_err(system)?,
            next: AtomicU64::new(1),
            open: Mutex::default(),
            closed: Condvar::new(),
            log: RateLimit::default(),
        });
        let epoll = Epoll::new().map_err(system)?;
        epoll.add(&shared.stop, u64::MAX, Interest::Readable).map_err(system)?;
        for (index, listener) in listeners.unix.iter().enumerate() {
            epoll.add(listener.socket(), index as u64, Interest::Readable).map_err(system)?;
        }
        for (index, socket) in listeners.tcp.iter().enumerate() {
            epoll.add(socket, (listeners.unix.len() + index) as u64, Interest::Readable).map_err(system)?;
        }
        let accepting = shared.clone();
        let builder = thread::Builder::new().name("nbd-accept".into());
        let thread =
            builder.spawn(move || accepting.accept(&epoll, &listeners)).map_err(StartError::System)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Returns the number of open connections; a client may have several.
    pub fn connections(&self) -> usize {
        lock(&self.shared.open).len()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.is_stopping.store(true, Ordering::SeqCst);
        self.shared.stop.notify();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the accepting thread panicked");
        }
        let mut open = lock(&self.shared.open);
        open.values().for_each(|replies| replies.wake.notify());
        let until = Instant::now() + STOP_WITHIN;
        while !open.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                open.values().for_each(|replies| replies.kill());
                break;
            }
            let waited = self.shared.closed.wait_timeout(open, left);
            open = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        *lock(&self.shared.exports) = Arc::default();
    }
}

impl ServerShared {
    fn accept(self: &Arc<Self>, epoll: &Epoll, listeners: &Listeners) {
        let mut events = Vec::new();
        while !self.is_stopping.load(Ordering::SeqCst) {
            if epoll.wait(&mut events, Some(TRIM_EVERY)).is_err() || events.is_empty() {
                self.clients.pool.trim();
            }
            for event in &events {
                let index = event.token as usize;
                let accepted = match (listeners.unix.get(index), index.checked_sub(listeners.unix.len())) {
                    (Some(listener), _) => accept_unix(listener),
                    (None, at) => match at.and_then(|at| listeners.tcp.get(at)) {
                        Some(socket) => accept_tcp(socket),
                        None => continue,
                    },
                };
                let started = accepted.and_then(|(stream, client)| self.begin(stream, client));
                match started {
                    Ok(()) | Err(Errno::AGAIN | Errno::CONNABORTED) => {}
                    Err(error) => {
                        if let Some(suppressed) = self.log.allow() {
                            tracing::warn!(%error, suppressed, "NBD: cannot accept a connection");
                        }
                        thread::sleep(PAUSE);
                    }
                }
            }
        }
    }

    fn begin(self: &Arc<Self>, stream: OwnedFd, client: Client) -> Result<(), Errno> {
        let Some((admitted, buffers)) = self.clients.admit(client) else {
            if let Some(suppressed) = self.log.allow() {
                tracing::warn!(%client, suppressed, "NBD: connection refused: too many connections");
            }
            return Ok(());
        };
        let (shared, id) = (self.clone(), self.next.fetch_add(1, Ordering::Relaxed));
        let connection = self.connection(stream, admitted, buffers)?;
        lock(&self.open).insert(id, connection.replies.clone());
        let guard = Open { shared: self.clone(), id };
        let builder = thread::Builder::new().name(format!("nbd-{id}"));
        let spawned = builder.spawn(move || {
            let _guard = guard;
            shared.serve(connection, client, id);
        });
        spawned.map(drop).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))
    }

    fn connection(&self, stream: OwnedFd, admitted: Admitted, buffers: Buffers) -> Result<Connection, Errno> {
        let replies = Arc::new(Replies::new(Stream::new(stream), admitted)?);
        Connection::new(replies, buffers, &self.options, self.is_stopping.clone())
    }

    fn serve(&self, mut connection: Connection, client: Client, id: u64) {
        let tls = self.options.tls.as_deref().filter(|_| matches!(client, Client::Host(_)));
        let exports = lock(&self.exports).clone();
        let selected = Handshake::new(&exports, tls).run(&mut connection);
        drop(exports);
        let end = match selected {
            Ok(selected) => {
                connection.deadline = None;
                tracing::info!(%client, export = selected.name, "NBD client");
                Transmission::new(selected, SessionId(id)).run(&mut connection)
            }
            Err(end) => end,
        };
        if let ConnectionEnd::Malformed(_) | ConnectionEnd::Refused(_) | ConnectionEnd::Slow = end
            && let Some(suppressed) = self.log.allow()
        {
            tracing::warn!(%client, suppressed, "NBD: closing a connection: {end}");
        }
        connection.finish(&end);
        tracing::debug!(%client, "NBD: connection closed: {end}");
    }
}

/// Registration of an open connection, which is closed when this is dropped.
struct Open {
    shared: Arc<ServerShared>,
    id: u64,
}

impl Drop for Open {
    fn drop(&mut self) {
        let replies = lock(&self.shared.open).remove(&self.id);
        if let Some(replies) = replies {
            replies.kill();
        }
        self.shared.closed.notify_all();
    }
}

fn accept_unix(listener: &Listener) -> Result<(OwnedFd, Client), Errno> {
    let accepted = listener.socket().accept();
    let (stream, _) = accepted.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))?;
    let peer = socket::peer(stream.as_fd())?;
    socket::set_send_buffer(&stream, SEND_BUFFER_BYTES)?;
    Ok((stream.into(), Client::Process(peer.pid)))
}

fn accept_tcp(socket: &OwnedFd) -> Result<(OwnedFd, Client), Errno> {
    let (stream, address) = tcp::accept(socket.as_fd())?;
    tcp::tune(&stream, SILENCE)?;
    Ok((stream, Client::Host(address.ip())))
}
