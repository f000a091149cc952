//! Abstraction of sockets, clock and random numbers, as used by the engine.

use std::time::Instant;

use super::error::Fault;
use super::options::Target;
use tombolo_mem::Sink;
use tombolo_sys::gather::Gather;
use tombolo_sys::{Errno, Result};

/// A factory of sockets, a clock, and a source of random numbers. No operation may wait for the network.
pub trait Wire: Send + Sync {
    /// Begins to connect, from a local port as [`Options::reserved_port`](super::Options::reserved_port)
    /// requests. Events of the socket carry this token; the wire must report the socket writable once it is
    /// connected or has failed. A returned error counts as a failed connection.
    fn connect(
        &self,
        target: &Target,
        token: SocketToken,
        reserved_port: Option<bool>,
    ) -> Result<Box<dyn Socket>>;

    /// Begins to connect as a probe: the socket has no events, and is polled by
    /// [`finish_connecting`](Socket::finish_connecting). Returns EOPNOTSUPP if probes are not supported.
    fn probe(&self, _target: &Target) -> Result<Box<dyn Socket>> {
        Err(Errno::OPNOTSUPP)
    }

    /// Returns the current time of this wire's clock.
    fn now(&self) -> Instant;

    /// Returns an unpredictable number.
    fn random(&self) -> u64;
}

/// One connection, or one connected UDP socket. Threads may send and receive concurrently, but only one at a
/// time sends.
pub trait Socket: Send + Sync {
    /// Completes connecting. Returns the error of a failed attempt, or EAGAIN while it is in progress.
    fn finish_connecting(&self) -> Result<()>;

    /// Sends a prefix of `gather`, or all of it as one datagram, and returns the number of bytes sent.
    /// Returns EAGAIN if the socket is full; an event then reports that it is writable.
    fn send(&self, gather: &mut Gather<'_>) -> Result<usize>;

    /// Receives into the sinks in order, and returns the number of bytes, 0 at the end of a stream. Returns
    /// EAGAIN if nothing is available; an event then reports that it is readable. A datagram is received
    /// whole or truncated.
    fn receive(&self, into: &[&Sink]) -> Result<usize>;

    /// Returns the fault, other than a system error, that made the socket unusable. Does not block.
    fn fault(&self) -> Option<Fault> {
        None
    }

    /// Shuts down both directions, for all holders of the socket.
    fn shut_down(&self);

    /// Returns `true` if a short receive means that nothing is left, so that another receive is futile before
    /// the next event. The end of a stream must then be reported with
    /// [`Engine::finished`](super::Engine::finished).
    fn is_emptied_by_less(&self) -> bool {
        false
    }

    /// Sets the low-water mark: readiness need not be reported before this many bytes are available, except
    /// at the end of the stream or with a full buffer.
    fn set_low_water(&self, _bytes: usize) {}
}

/// A unique name of a socket of an engine, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SocketToken(u64);

impl SocketToken {
    const INDEX_BITS: u32 = 8;

    pub(super) fn new(index: usize, generation: u64) -> Self {
        Self(generation << Self::INDEX_BITS | index as u64 & 0xff)
    }

    /// Returns the token with this [`number`](Self::number).
    #[must_use]
    pub fn from_number(number: u64) -> Self {
        Self(number)
    }

    /// Returns the token's number.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0
    }

    pub(super) fn index(self) -> usize {
        (self.0 & 0xff) as usize
    }
}

/// An event of a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// `true` if there is something to receive, including end of stream and errors.
    pub readable: bool,
    /// `true` if the socket is writable, or connecting has ended.
    pub writable: bool,
}
