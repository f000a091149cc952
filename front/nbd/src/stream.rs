//! The bytes of a connection, with TLS or without. Nothing here waits.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use tombolo_host_tls::Session;
use tombolo_mem::Sink;
use tombolo_sys::gather::Gather;
use tombolo_sys::{Result, socket, tcp};

pub(crate) struct Stream {
    socket: OwnedFd,
    /// Set once the handshake is done.
    tls: OnceLock<Session>,
}

impl Stream {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self { socket, tls: OnceLock::new() }
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(crate) fn secure(&self, session: Session) {
        let _ = self.tls.set(session);
    }

    pub(crate) fn is_secure(&self) -> bool {
        self.tls.get().is_some()
    }

    pub(crate) fn receive(&self, into: &Sink) -> Result<usize> {
        match self.tls.get() {
            None => tcp::receive(self.socket(), &[into]),
            Some(session) => session.receive(self.socket(), &[into]),
        }
    }

    pub(crate) fn send(&self, gather: &mut Gather<'_>) -> Result<usize> {
        match self.tls.get() {
            None => tcp::send(self.socket(), gather),
            Some(session) => session.send(self.socket(), gather),
        }
    }

    /// The threads that wait for it come back.
    pub(crate) fn shut_down(&self) {
        let _ = socket::shut_down(&self.socket);
    }
}
