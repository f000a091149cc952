//! Listening sockets: binding, accepting and admission.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use thiserror::Error;
use tombolo_sys::epoll::{Epoll, Interest};
use tombolo_sys::{Errno, tcp, udp};

use super::clients::{ConnectionPermit, close_idle_connections};
use super::common::Common;
use super::service::Transport;
use super::thread_queue::{ThreadQueue, Token};

/// Maximum number of connections accepted in one turn, for fairness.
const TURN_MAX: usize = 64;

/// Pause after running out of descriptors or memory: accept(2) would fail at once each time, while the
/// connection stays in the backlog.
const PAUSE: Duration = Duration::from_millis(100);

/// Pause while the event threads close idle connections in favour of a new one.
const CLOSING_PAUSE: Duration = Duration::from_millis(5);

/// Idle time before TCP keep-alive probes.
const SILENCE: Duration = Duration::from_secs(300);

/// The listening sockets, served by one event thread.
pub(super) struct Listening {
    sockets: Vec<OwnedFd>,
    common: Arc<Common>,
    /// All event threads.
    threads: Arc<[Arc<ThreadQueue>]>,
    /// End of the current pause in accepting.
    paused_until: Option<Instant>,
    /// A new connection waiting for idle ones to be closed.
    waiting: Option<(OwnedFd, SocketAddr)>,
    /// Time before which no idle connection is searched for, as the last search found none.
    full_until: Option<Instant>,
}

impl Listening {
    pub(super) fn new(sockets: Vec<OwnedFd>, common: Arc<Common>, threads: Arc<[Arc<ThreadQueue>]>) -> Self {
        Self { sockets, common, threads, paused_until: None, waiting: None, full_until: None }
    }

    pub(super) fn watch(&self, epoll: &Epoll) -> Result<(), Errno> {
        for (index, socket) in self.sockets.iter().enumerate() {
            epoll.add(socket, Token::listener(index).number(), Interest::Readable)?;
        }
        Ok(())
    }

    /// Closes the listening sockets; the kernel resets connections not yet accepted.
    pub(super) fn close(&mut self, epoll: &Epoll) {
        self.ignore(epoll);
        self.sockets.clear();
        self.paused_until = None;
        self.waiting = None;
    }

    /// Returns the time at which [`resume`](Self::resume) is to be called.
    pub(super) fn resumes_at(&self) -> Option<Instant> {
        self.paused_until
    }

    /// Resumes accepting after a pause.
    pub(super) fn resume(&mut self, epoll: &Epoll, now: Instant) {
        if self.paused_until.is_none_or(|time| now < time) {
            return;
        }
        if let Some((stream, address)) = self.waiting.take() {
            let client = self.common.clients.of(address.ip());
            match ConnectionPermit::new(&self.common, &client) {
                Some(admitted) => self.take_in(stream, address, admitted),
                None => self.refuse(address, "too many connections"),
            }
        }
        let watched = self.watch(epoll);
        self.paused_until = watched.is_err().then(|| now + PAUSE);
        if watched.is_err() {
            // Some sockets may be registered, and would be refused the next time.
            self.ignore(epoll);
        }
    }

    /// Accepts connections waiting at a socket, up to a limit.
    pub(super) fn turn(&mut self, index: usize, epoll: &Epoll) {
        // Another socket's turn may have begun a pause after this one was queued.
        if self.paused_until.is_some() {
            return;
        }
        for _ in 0..TURN_MAX {
            let Some(socket) = self.sockets.get(index) else { return };
            match tcp::accept(socket.as_fd()) {
                Ok((stream, address)) => {
                    if !self.admit_or_refuse(stream, address, epoll) {
                        return;
                    }
                }
                Err(Errno::AGAIN) => return,
                Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
                    if let Some(suppressed) = self.common.lines.out_of_resources.allow() {
                        tracing::error!(%error, suppressed, "cannot accept connections");
                    }
                    self.ignore(epoll);
                    self.paused_until = Some(Instant::now() + PAUSE);
                    return;
                }
                // The connection failed before it was accepted (accept(2), ERRORS).
                Err(error) => tracing::debug!(%error, "accept failed: client left"),
            }
        }
    }

    /// Admits or refuses a connection. Returns `false` if accepting must pause until idle ones are closed.
    fn admit_or_refuse(&mut self, stream: OwnedFd, address: SocketAddr, epoll: &Epoll) -> bool {
        if !self.common.options.admits(address.ip()) {
            self.refuse(address, "address not allowed");
            return true;
        }
        let client = self.common.clients.of(address.ip());
        if let Some(admitted) = ConnectionPermit::new(&self.common, &client) {
            self.take_in(stream, address, admitted);
            return true;
        }
        let now = Instant::now();
        if self.full_until.is_none_or(|until| now >= until) {
            if close_idle_connections(&self.common, &client) {
                self.waiting = Some((stream, address));
                self.ignore(epoll);
                self.paused_until = Some(now + CLOSING_PAUSE);
                return false;
            }
            self.full_until = Some(now + PAUSE);
        }
        self.refuse(address, "too many connections");
        true
    }

    fn refuse(&self, address: SocketAddr, reason: &str) {
        self.common.counters.refused.increment();
        if let Some(suppressed) = self.common.lines.refused.allow() {
            tracing::warn!(peer = %address, suppressed, "connection refused: {reason}");
        }
    }

    fn take_in(&self, stream: OwnedFd, address: SocketAddr, admitted: ConnectionPermit) {
        if let Err(error) = tcp::tune(&stream, SILENCE) {
            tracing::debug!(peer = %address, %error, "accept failed: client left");
            return;
        }
        hand_over(&self.common, &self.threads, stream, address, admitted);
    }

    fn ignore(&self, epoll: &Epoll) {
        for socket in &self.sockets {
            // Removal fails during a pause, when the sockets are not registered.
            let _ = epoll.remove(socket);
        }
    }
}

/// Passes a connection to the event thread with the fewest connections.
pub(super) fn hand_over(
    common: &Common,
    threads: &[Arc<ThreadQueue>],
    stream: OwnedFd,
    address: SocketAddr,
    admitted: ConnectionPermit,
) {
    let least = threads.iter().min_by_key(|thread| thread.connections.load(Ordering::Relaxed));
    if let Some(thread) = least {
        common.counters.connections_total.increment();
        thread.connections.fetch_add(1, Ordering::Relaxed);
        thread.add_connection(stream, address, admitted);
    }
}

/// Addresses to listen on. Port 0 selects a free port; the unspecified IPv6 address also accepts IPv4.
#[derive(Clone, Debug, Default)]
pub struct Listeners {
    /// TCP addresses.
    pub tcp: Vec<SocketAddr>,
    /// UDP addresses. An address equal to the one at the same index of `tcp`, with port 0, gets the same
    /// port.
    pub udp: Vec<SocketAddr>,
}

/// Bound sockets. TCP sockets refuse connections until a server is started with them.
#[derive(Debug, Default)]
pub struct Bound {
    pub(super) tcp: Vec<(SocketAddr, OwnedFd)>,
    pub(super) udp: Vec<(SocketAddr, OwnedFd)>,
}

/// Failure to bind a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{address} over {}: {source}", .transport.name())]
pub struct BindError {
    /// Address that could not be bound.
    pub address: SocketAddr,
    /// Transport of the socket.
    pub transport: Transport,
    /// The error of the system call.
    #[source]
    pub source: Errno,
}

/// Maximum number of attempts to find a port that is free for both TCP and UDP.
const FREE_PORT_TRIES: usize = 50;

impl Listeners {
    /// Binds a socket to each address. The ports stay reserved until the server starts, except from processes
    /// that bind with SO_REUSEADDR.
    ///
    /// # Errors
    /// An address is not available: EADDRINUSE if another program uses it.
    pub fn bind(&self) -> Result<Bound, BindError> {
        let has_common_port = self.tcp.iter().zip(&self.udp).any(|(tcp, udp)| tcp == udp && tcp.port() == 0);
        for _ in 1..FREE_PORT_TRIES {
            match self.try_bind() {
                Err(error) if has_common_port && error.source == Errno::ADDRINUSE => {}
                outcome => return outcome,
            }
        }
        self.try_bind()
    }

    fn try_bind(&self) -> Result<Bound, BindError> {
        let mut bound = Bound::default();
        for &address in &self.tcp {
            let error = |source| BindError { address, transport: Transport::Tcp, source };
            let socket = tcp::bind(address).map_err(error)?;
            bound.tcp.push((tcp::local_address(&socket).map_err(error)?, socket));
        }
        for (index, &address) in self.udp.iter().enumerate() {
            let beside =
                self.tcp.get(index).filter(|tcp| **tcp == address).and_then(|_| bound.tcp.get(index));
            let address = beside.map_or(address, |(real, _)| *real);
            let error = |source| BindError { address, transport: Transport::Udp, source };
            let socket = udp::bind(address).map_err(error)?;
            bound.udp.push((tcp::local_address(&socket).map_err(error)?, socket));
        }
        Ok(bound)
    }
}

impl Bound {
    /// Returns the TCP addresses, with their real ports.
    pub fn tcp_addresses(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        self.tcp.iter().map(|(address, _)| *address)
    }
}
