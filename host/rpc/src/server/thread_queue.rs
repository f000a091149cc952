//! Commands from other threads to an event thread.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;

use tombolo_core::lock;

use super::clients::ConnectionPermit;
use crate::alarm::Alarm;
use tombolo_sys::Result;

/// Queue of commands to an event thread.
pub(super) struct ThreadQueue {
    /// Alarm that is raised when a command is added.
    pub(super) alarm: Alarm,
    /// Number of connections that the thread has or is about to get.
    pub(super) connections: AtomicUsize,
    commands: Mutex<Commands>,
}

/// Commands that wait for the thread.
#[derive(Default)]
pub(super) struct Commands {
    /// Connections to give a turn.
    pub(super) tokens: Vec<Token>,
    pub(super) new_connections: Vec<(OwnedFd, SocketAddr, ConnectionPermit)>,
    /// `true` if the thread must stop.
    pub(super) stop: bool,
}

impl Commands {
    fn clear(&mut self) {
        self.tokens.clear();
        self.new_connections.clear();
    }
}

impl ThreadQueue {
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            alarm: Alarm::with_wakeup()?,
            connections: AtomicUsize::new(0),
            commands: Mutex::default(),
        })
    }

    /// Schedules a turn of a connection.
    pub(super) fn check_connection(&self, token: Token) {
        self.put(|commands| commands.tokens.push(token));
    }

    pub(super) fn add_connection(&self, stream: OwnedFd, address: SocketAddr, admitted: ConnectionPermit) {
        self.put(|commands| commands.new_connections.push((stream, address, admitted)));
    }

    /// Makes the thread accept nothing new, and end once its calls are answered or the grace period is
    /// over.
    pub(super) fn stop(&self) {
        self.put(|commands| commands.stop = true);
    }

    /// Takes all commands into `commands`, whose memory the queue reuses.
    pub(super) fn take(&self, commands: &mut Commands) {
        commands.clear();
        let mut there = lock(&self.commands);
        self.alarm.take();
        commands.stop |= there.stop;
        std::mem::swap(&mut *there, commands);
        there.stop = commands.stop;
    }

    fn put(&self, write: impl FnOnce(&mut Commands)) {
        write(&mut lock(&self.commands));
        self.alarm.raise();
    }
}

/// A watched object, as the number that epoll returns with each event.
///
/// The number of a connection consists of its slot and the slot's use count, so that an event of an earlier
/// connection is not mistaken for one of its successor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token(u64);

/// A decoded token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Watched {
    /// The thread's alarm.
    Wakeup,
    /// A listening socket, by index.
    Listener(usize),
    /// A UDP socket, by index.
    Socket(usize),
    /// A connection, by its place in the [`ConnectionTable`](super::event_thread::ConnectionTable).
    Connection { slot: u32, use_count: u32 },
}

/// Layout of a token: kind in bits 62 and 63, use count of the slot in bits 32 to 61, slot or index below.
const KIND_SHIFT: u32 = 62;
const USE_SHIFT: u32 = 32;
/// Number of distinguishable uses of a slot.
pub(super) const USES: u32 = 1 << (KIND_SHIFT - USE_SHIFT);

impl Token {
    pub(super) const WAKEUP: Token = Token(0);

    pub(super) fn listener(index: usize) -> Self {
        Self(1 << KIND_SHIFT | index as u64)
    }

    pub(super) fn socket(index: usize) -> Self {
        Self(2 << KIND_SHIFT | index as u64)
    }

    pub(super) fn connection(slot: u32, use_count: u32) -> Self {
        Self(3 << KIND_SHIFT | u64::from(use_count % USES) << USE_SHIFT | u64::from(slot))
    }

    pub(super) fn from_number(number: u64) -> Self {
        Self(number)
    }

    pub(super) fn number(self) -> u64 {
        self.0
    }

    pub(super) fn watched(self) -> Watched {
        let low = self.0 as u32;
        match self.0 >> KIND_SHIFT {
            0 => Watched::Wakeup,
            1 => Watched::Listener(low as usize),
            2 => Watched::Socket(low as usize),
            _ => Watched::Connection { slot: low, use_count: (self.0 >> USE_SHIFT) as u32 % USES },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_what_it_was_made_for() {
        assert_eq!(Token::WAKEUP.watched(), Watched::Wakeup);
        assert_eq!(Token::listener(3).watched(), Watched::Listener(3));
        assert_eq!(Token::socket(4).watched(), Watched::Socket(4));
        let (slot, use_count) = (u32::MAX, USES - 1);
        let token = Token::from_number(Token::connection(slot, use_count).number());
        assert_eq!(token.watched(), Watched::Connection { slot, use_count });
        assert_eq!(Token::connection(1, USES), Token::connection(1, 0));
    }
}
