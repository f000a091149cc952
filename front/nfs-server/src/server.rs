//! Running NFS server: service, transports, and the thread that closes idle openings.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tombolo_host_rpc::server::{Bound, Counts, Options as TransportOptions, Server, StartError};

use crate::export::NfsService;

/// An NFS server. Its drop answers the received calls, within the transport's grace period, and stops it.
pub struct NfsServer {
    transport: Option<Server>,
    service: Arc<NfsService>,
    _idle_closer: IdleCloser,
}

impl NfsServer {
    /// Serves `service` on the sockets.
    pub fn start(
        bound: Bound,
        options: TransportOptions,
        service: &Arc<NfsService>,
    ) -> Result<Self, StartError> {
        let idle_closer = IdleCloser::start(service).map_err(StartError::Thread)?;
        let transport = Server::start(bound, options, service)?;
        Ok(Self { transport: Some(transport), service: service.clone(), _idle_closer: idle_closer })
    }

    /// Serves an accepted stream of a caller at this address. Closes it and returns `false` at the limit.
    pub fn adopt(&self, stream: OwnedFd, address: SocketAddr) -> bool {
        self.transport.as_ref().is_some_and(|transport| transport.adopt(stream, address))
    }

    /// Returns the TCP addresses, with actual ports.
    pub fn tcp_addresses(&self) -> &[SocketAddr] {
        self.transport.as_ref().map_or(&[], Server::tcp_addresses)
    }

    /// Returns the UDP addresses, with actual ports.
    pub fn udp_addresses(&self) -> &[SocketAddr] {
        self.transport.as_ref().map_or(&[], Server::udp_addresses)
    }

    /// Returns the transports' counters.
    pub fn counts(&self) -> Counts {
        self.transport.as_ref().map(Server::counts).unwrap_or_default()
    }

    /// Stops the server after answering the received calls.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for NfsServer {
    fn drop(&mut self) {
        self.service.end_waits();
        drop(self.transport.take());
    }
}

/// Interval between checks for idle openings and expired leases.
const INTERVAL: Duration = Duration::from_secs(1);

/// Thread that closes a service's idle openings and expires its leases, until this handle is dropped.
pub struct IdleCloser {
    /// Dropped to stop the thread.
    running: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl IdleCloser {
    /// Starts the thread.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(service: &Arc<NfsService>) -> io::Result<Self> {
        let (running, ended) = mpsc::channel();
        let service = service.clone();
        let close_idle = move || {
            while ended.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                service.close_idle();
            }
        };
        let thread = thread::Builder::new().name("nfs-tidy".into()).spawn(close_idle)?;
        Ok(Self { running: Some(running), thread: Some(thread) })
    }
}

impl Drop for IdleCloser {
    fn drop(&mut self) {
        drop(self.running.take());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("idle-file thread panicked");
        }
    }
}
