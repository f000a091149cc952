//! Socket of a protocol that negotiates TLS itself: first without TLS, then with it if both sides agree.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use tombolo_mem::Sink;
use tombolo_sys::gather::Gather;
use tombolo_sys::{Result, socket, tcp};

use crate::{Session, TlsError};

/// A stream socket with or without TLS. No operation blocks.
pub struct Stream {
    socket: OwnedFd,
    /// Session, once its handshake is complete.
    tls: OnceLock<Session>,
}

impl Stream {
    /// Returns a stream without TLS.
    #[must_use]
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket, tls: OnceLock::new() }
    }

    /// Returns the socket, for polling.
    #[must_use]
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Passes all further bytes through a session whose handshake is complete. A second session is ignored.
    pub fn secure(&self, session: Session) {
        let _ = self.tls.set(session);
    }

    /// Returns `true` if the stream has TLS.
    #[must_use]
    pub fn is_secure(&self) -> bool {
        self.tls.get().is_some()
    }

    /// Returns the failure of the session, if any.
    #[must_use]
    pub fn fault(&self) -> Option<TlsError> {
        self.tls.get()?.fault()
    }

    /// Receives bytes, and returns their number, 0 at the end. Returns EAGAIN if nothing is available.
    pub fn receive(&self, into: &Sink) -> Result<usize> {
        match self.tls.get() {
            None => tcp::receive(self.socket(), &[into]),
            Some(session) => session.receive(self.socket(), &[into]),
        }
    }

    /// Sends a prefix of the list and returns its length. Returns EAGAIN if the socket is full. The next send
    /// must begin with the unsent remainder.
    pub fn send(&self, gather: &mut Gather<'_>) -> Result<usize> {
        match self.tls.get() {
            None => tcp::send(self.socket(), gather),
            Some(session) => session.send(self.socket(), gather),
        }
    }

    /// Shuts down both directions, which wakes the threads waiting for them.
    pub fn shut_down(&self) {
        let _ = socket::shut_down(&self.socket);
    }
}
