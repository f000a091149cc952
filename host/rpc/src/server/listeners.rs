//! Where calls are taken: addresses, and the sockets that are bound to them.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use thiserror::Error;
use tombolo_sys::{Errno, tcp, udp};

use super::service::Transport;

/// Where calls are taken. Port 0 takes a free one; the unspecified IPv6 address takes IPv4 callers as well.
#[derive(Clone, Debug, Default)]
pub struct Listeners {
    /// For connections.
    pub tcp: Vec<SocketAddr>,
    /// For datagrams. Where an address is the one at the same place of `tcp`, with port 0, both get the same port.
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
    /// Binds a socket to each address. They are kept from then on: no other process gets these ports before the server has started.
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
