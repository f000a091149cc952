//! A running NFS server: the service, its transports, and the thread that closes idle openings.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tombolo_host_rpc::server::{Bound, Counts, Options as TransportOptions, Server, StartError};

use crate::export::NfsService;

/// An NFS server. Dropping it stops it: calls that were received are answered first, for as long as the
/// transport's grace period lasts.
pub struct NfsServer {
    transport: Option<Server>,
    service: Arc<NfsService>,
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
        Ok(Self { transport: Some(transport), service: service.clone(), _idle_closer: idle_closer })
    }

    /// Serves a stream that is there already, as one of a caller at this address. False, and it is closed, at
    /// the limit of connections.
    pub fn adopt(&self, stream: OwnedFd, address: SocketAddr) -> bool {
        self.transport.as_ref().is_some_and(|transport| transport.adopt(stream, address))
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
        self.service.end_waits();
        drop(self.transport.take());
    }
}

/// How often idle openings are looked for.
const INTERVAL: Duration = Duration::from_secs(1);

/// Closes a service's idle openings, with a thread of its own, until it is dropped.
pub struct IdleCloser {
    /// Dropped to end the thread.
    running: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl IdleCloser {
    /// Begins.
    ///
    /// # Errors
    /// There is no thread.
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
