//! A running NFS server: the service, its transports, and the thread that closes idle openings.

use std::net::SocketAddr;
use std::sync::Arc;

use tombolo_host_rpc::server::{Bound, Counts, Options as TransportOptions, Server, StartError};

use crate::idle_closer::IdleCloser;
use crate::service::NfsService;

/// An NFS server. Dropping it stops it: calls that were received are answered first, for as long as the transport's grace
/// period lasts.
pub struct NfsServer {
    transport: Option<Server>,
    _idle_closer: IdleCloser,
}

impl NfsServer {
    /// Serves `service` at the sockets.
    pub fn start(
        bound: Bound,
        options: TransportOptions,
        service: &Arc<NfsService>,
    ) -> Result<Self, StartError> {
        let idle_closer = IdleCloser::start(service).map_err(StartError::Thread)?;
        let transport = Server::start(bound, options, service)?;
        Ok(Self { transport: Some(transport), _idle_closer: idle_closer })
    }

    /// Where it takes connections, with real ports.
    pub fn tcp_addresses(&self) -> &[SocketAddr] {
        self.transport.as_ref().map_or(&[], Server::tcp_addresses)
    }

    /// Where it takes datagrams, with real ports.
    pub fn udp_addresses(&self) -> &[SocketAddr] {
        self.transport.as_ref().map_or(&[], Server::udp_addresses)
    }

    /// What its transports have done so far.
    pub fn counts(&self) -> Counts {
        self.transport.as_ref().map(Server::counts).unwrap_or_default()
    }

    /// Answers what was received, and ends.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for NfsServer {
    fn drop(&mut self) {
        drop(self.transport.take());
    }
}
