//! Sockets, a clock and chance: what an engine has of the world.

use std::time::Instant;

use super::error::Fault;
use super::options::Target;
use tombolo_mem::Sink;
use tombolo_sys::gather::Gather;
use tombolo_sys::{Errno, Result};

/// Makes sockets, and tells the time. Nothing that it does waits.
pub trait Wire: Send + Sync {
    /// Begins to connect. Events of the socket are told with this token; it must be told that it is writable
    /// once it is connected or has failed. An error counts as a connection that failed.
    fn connect(
        &self,
        target: &Target,
        token: SocketToken,
        reserved_port: Option<bool>,
    ) -> Result<Box<dyn Socket>>;

    /// Begins to connect, only to see whether that can be done: the socket is in no events, and is asked by
    /// [`finish_connecting`](Socket::finish_connecting). EOPNOTSUPP where nothing would be learnt from it.
    fn probe(&self, _target: &Target) -> Result<Box<dyn Socket>> {
        Err(Errno::OPNOTSUPP)
    }

    /// The time by this wire's clock.
    fn now(&self) -> Instant;

    /// An unpredictable number.
    fn random(&self) -> u64;
}

/// One connection, or one UDP socket that is connected. Threads may send and receive at the same time, but no
/// two of them send.
pub trait Socket: Send + Sync {
    /// Whether connecting has come to its end: the error that it failed with, or EAGAIN while it goes on.
    fn finish_connecting(&self) -> Result<()>;

    /// Sends the beginning of the list, or all of it as one datagram; returns how many bytes went. EAGAIN
    /// when there is no room: then it is told once it is writable.
    fn send(&self, gather: &mut Gather<'_>) -> Result<usize>;

    /// Receives into the sinks, one after the other; returns how many bytes came, 0 at the end of a stream.
    /// EAGAIN when nothing is there: then it is told once it is readable. A datagram is received whole or
    /// cut.
    fn receive(&self, into: &[&Sink]) -> Result<usize>;

    /// Why it is of no use, where that was not the system's word. Does not wait.
    fn fault(&self) -> Option<Fault> {
        None
    }

    /// Ends it in both directions, for all holders.
    fn shut_down(&self);

    /// Whether a receive that brought less than asked for has taken all there was, so that another is in vain
    /// before it is told once more. The end of a stream must then be told with
    /// [`Engine::finished`](super::Engine::finished).
    fn is_emptied_by_less(&self) -> bool {
        false
    }

    /// From now on it need not be told readable before so many bytes are there, or the end, or no more have
    /// room.
    fn tell_from(&self, _bytes: usize) {}
}

/// Names a socket among those of an engine, for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SocketToken(u64);

impl SocketToken {
    const INDEX_BITS: u32 = 8;

    pub(super) fn new(index: usize, generation: u64) -> Self {
        Self(generation << Self::INDEX_BITS | index as u64 & 0xff)
    }

    /// From what [`number`](Self::number) said.
    #[must_use]
    pub fn from_number(number: u64) -> Self {
        Self(number)
    }

    /// As a number.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0
    }

    pub(super) fn index(self) -> usize {
        (self.0 & 0xff) as usize
    }
}

/// What happened to a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// There is something to receive, be it the end or an error.
    pub readable: bool,
    /// It is writable again, or connecting has ended.
    pub writable: bool,
}
