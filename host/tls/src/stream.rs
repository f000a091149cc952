//! The bytes of a socket on which TLS is asked for in the protocol's own words: first without it, then with
//! it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use tombolo_mem::Sink;
use tombolo_sys::gather::Gather;
use tombolo_sys::{Result, socket, tcp};

use crate::{Session, TlsError};

/// A stream socket, with TLS or without. Nothing here waits.
pub struct Stream {
    socket: OwnedFd,
    /// Set once the handshake is done.
    tls: OnceLock<Session>,
}

impl Stream {
    /// Without TLS as yet.
    #[must_use]
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket, tls: OnceLock::new() }
    }

    /// What can be waited for.
    #[must_use]
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// From now on all bytes are the session's, whose handshake is done. A second one is ignored.
    pub fn secure(&self, session: Session) {
        let _ = self.tls.set(session);
    }

    /// Whether it has TLS.
    #[must_use]
    pub fn is_secure(&self) -> bool {
        self.tls.get().is_some()
    }

    /// What broke the session, if there is one.
    #[must_use]
    pub fn fault(&self) -> Option<TlsError> {
        self.tls.get()?.fault()
    }

    /// Receives some bytes; how many, 0 at the end. EAGAIN when nothing is there.
    pub fn receive(&self, into: &Sink) -> Result<usize> {
        match self.tls.get() {
            None => tcp::receive(self.socket(), &[into]),
            Some(session) => session.receive(self.socket(), &[into]),
        }
    }

    /// Sends the beginning of the list; how many bytes went. EAGAIN when there is no room. What was not sent
    /// is the beginning of what is sent next.
    pub fn send(&self, gather: &mut Gather<'_>) -> Result<usize> {
        match self.tls.get() {
            None => tcp::send(self.socket(), gather),
            Some(session) => session.send(self.socket(), gather),
        }
    }

    /// Nothing comes or goes any more. The threads that wait for it come back.
    pub fn shut_down(&self) {
        let _ = socket::shut_down(&self.socket);
    }
}
