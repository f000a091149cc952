//! Where calls are taken: addresses, the sockets that are bound to them, and taking callers in.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use thiserror::Error;
use tombolo_sys::epoll::{Epoll, Interest};
use tombolo_sys::{Errno, tcp, udp};

use super::clients::{Admitted, make_room};
use super::common::Common;
use super::service::Transport;
use super::thread_queue::{ThreadQueue, Token};

/// Callers of one turn; then those that are connected have theirs.
const TURN_MAX: usize = 64;

/// When the system has no descriptors left: it says so at once each time, and the caller waits on.
const PAUSE: Duration = Duration::from_millis(100);

/// While the event threads close connections, so that a caller gets their place.
const CLOSING_PAUSE: Duration = Duration::from_millis(5);

/// A peer that says nothing for so long is asked whether it is there.
const SILENCE: Duration = Duration::from_secs(300);

/// The listening sockets, which one event thread has.
pub(super) struct Listening {
    sockets: Vec<OwnedFd>,
    common: Arc<Common>,
    /// All event threads.
    threads: Arc<[Arc<ThreadQueue>]>,
    /// No connection is accepted before.
    paused_until: Option<Instant>,
    /// A new connection for which idle ones are being closed.
    waiting: Option<(OwnedFd, SocketAddr)>,
    /// No idle connection was found; none is looked for before this.
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

    /// Accepts no more connections; the kernel refuses waiting ones.
    pub(super) fn close(&mut self, epoll: &Epoll) {
        self.ignore(epoll);
        self.sockets.clear();
        self.paused_until = None;
        self.waiting = None;
    }

    /// When [`resume`](Self::resume) is to be called.
    pub(super) fn resumes_at(&self) -> Option<Instant> {
        self.paused_until
    }

    /// After a pause, takes callers again.
    pub(super) fn resume(&mut self, epoll: &Epoll, now: Instant) {
        if self.paused_until.is_none_or(|time| now < time) {
            return;
        }
        if let Some((stream, address)) = self.waiting.take() {
            let client = self.common.clients.of(address.ip());
            match Admitted::new(&self.common, &client) {
                Some(admitted) => self.take_in(stream, address, admitted),
                None => self.refuse(address, "too many connections"),
            }
        }
        let watched = self.watch(epoll);
        self.paused_until = watched.is_err().then(|| now + PAUSE);
    }

    /// Accepts the connections that wait at a socket, up to a limit.
    pub(super) fn turn(&mut self, index: usize, epoll: &Epoll) {
        // Another socket's turn may have begun a pause after this one was lined up.
        if self.paused_until.is_some() {
            return;
        }
        for _ in 0..TURN_MAX {
            let Some(socket) = self.sockets.get(index) else { return };
            match tcp::accept(socket.as_fd()) {
                Ok((stream, address)) => {
                    if !self.consider(stream, address, epoll) {
                        return;
                    }
                }
                Err(Errno::AGAIN) => return,
                Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
                    if let Some(suppressed) = self.common.lines.no_room.allow() {
                        tracing::error!(%error, suppressed, "cannot accept connections");
                    }
                    self.ignore(epoll);
                    self.paused_until = Some(Instant::now() + PAUSE);
                    return;
                }
                // The caller's connection failed before we took it (accept(2), ERRORS).
                Err(error) => tracing::debug!(%error, "accept failed: client left"),
            }
        }
    }

    /// Admits a connection, if it may. False if accepting is to pause for a moment.
    fn consider(&mut self, stream: OwnedFd, address: SocketAddr, epoll: &Epoll) -> bool {
        if !self.common.options.admits(address.ip()) {
            self.refuse(address, "address not allowed");
            return true;
        }
        let client = self.common.clients.of(address.ip());
        if let Some(admitted) = Admitted::new(&self.common, &client) {
            self.take_in(stream, address, admitted);
            return true;
        }
        let now = Instant::now();
        if self.full_until.is_none_or(|until| now >= until) {
            if make_room(&self.common, &client) {
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
        self.common.counters.refused.add(1);
        if let Some(suppressed) = self.common.lines.refused.allow() {
            tracing::warn!(peer = %address, suppressed, "connection refused: {reason}");
        }
    }

    fn take_in(&self, stream: OwnedFd, address: SocketAddr, admitted: Admitted) {
        if let Err(error) = tcp::tune(&stream, SILENCE) {
            tracing::debug!(peer = %address, %error, "accept failed: client left");
            return;
        }
        hand_over(&self.common, &self.threads, stream, address, admitted);
    }

    fn ignore(&self, epoll: &Epoll) {
        for socket in &self.sockets {
            // It is not watched during a pause.
            let _ = epoll.remove(socket);
        }
    }
}

/// Gives a connection to the event thread that has the fewest.
pub(super) fn hand_over(
    common: &Common,
    threads: &[Arc<ThreadQueue>],
    stream: OwnedFd,
    address: SocketAddr,
    admitted: Admitted,
) {
    let least = threads.iter().min_by_key(|thread| thread.connections.load(Ordering::Relaxed));
    if let Some(thread) = least {
        common.counters.connections_total.add(1);
        thread.connections.fetch_add(1, Ordering::Relaxed);
        thread.add_caller(stream, address, admitted);
    }
}

/// Where calls are taken. Port 0 takes a free one; the unspecified IPv6 address takes IPv4 callers as well.
#[derive(Clone, Debug, Default)]
pub struct Listeners {
    /// For connections.
    pub tcp: Vec<SocketAddr>,
    /// For datagrams. Where an address is the one at the same place of `tcp`, with port 0, both get the same
    /// port.
    pub udp: Vec<SocketAddr>,
}

/// Sockets that are bound to their addresses, and refuse connections until a server is started with them.
#[derive(Debug, Default)]
pub struct Bound {
    pub(super) tcp: Vec<(SocketAddr, OwnedFd)>,
    pub(super) udp: Vec<(SocketAddr, OwnedFd)>,
}

/// Why calls cannot be taken at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{address} over {}: {source}", .transport.name())]
pub struct BindError {
    /// The address.
    pub address: SocketAddr,
    /// What would have come there.
    pub transport: Transport,
    /// What the system said.
    #[source]
    pub source: Errno,
}

/// So many free ports of TCP are tried until one is free for UDP too.
const FREE_PORT_TRIES: usize = 50;

impl Listeners {
    /// Binds a socket to each address. They are kept from then on: no other process gets these ports before
    /// the server has started.
    ///
    /// # Errors
    /// An address cannot be had: EADDRINUSE when another program has it.
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
    /// Where connections will be taken, with real ports.
    pub fn tcp_addresses(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        self.tcp.iter().map(|(address, _)| *address)
    }
}
