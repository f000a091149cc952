//! Calls over UDP.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use super::stream::PATIENCE;

/// A socket that talks to one server.
#[derive(Debug)]
pub struct Datagrams {
    socket: UdpSocket,
}

impl Datagrams {
    /// Begins to talk to a server.
    pub fn connect(address: SocketAddr) -> io::Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.connect(address)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { socket })
    }

    /// Sends one datagram.
    pub fn send(&self, bytes: &[u8]) -> io::Result<()> {
        self.socket.send(bytes).map(|_| ())
    }

    /// Receives the next datagram.
    pub fn receive(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; 1 << 16];
        let len = self.socket.recv(&mut bytes)?;
        bytes.truncate(len);
        Ok(bytes)
    }

    /// Returns `true` if nothing arrives within `time`.
    pub fn is_quiet_for(&self, time: Duration) -> bool {
        self.socket.set_read_timeout(Some(time)).expect("a time-out");
        let waited = self.socket.recv(&mut [0; 1 << 16]);
        self.socket.set_read_timeout(Some(PATIENCE)).expect("a time-out");
        matches!(waited, Err(error) if [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&error.kind()))
    }
}
