//! A running NFS server: the service, its transports, and a thread that tidies up.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tombolo_host::rpc_server::{Counts, Listeners, Options as TransportOptions, Server, StartError};

use crate::service::NfsService;

/// How often openings that nobody uses are looked for.
const TIDY_INTERVAL: Duration = Duration::from_secs(1);

/// An NFS server. Dropping it stops it: calls that were received are answered first, for as long as the transport's grace
/// period lasts.
pub struct NfsServer {
    transport: Option<Server>,
    /// Dropped to end the thread that tidies up.
    running: Option<mpsc::Sender<()>>,
    tidying: Option<JoinHandle<()>>,
}

impl NfsServer {
    /// Serves `service` at the listeners.
    pub fn start(
        listeners: &Listeners,
        options: TransportOptions,
        service: &Arc<NfsService>,
    ) -> Result<Self, StartError> {
        let transport = Server::start(listeners, options, service)?;
        let (running, ended) = mpsc::channel();
        let service = service.clone();
        let tidy = move || {
            while ended.recv_timeout(TIDY_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                service.tidy();
            }
        };
        let tidying =
            thread::Builder::new().name("nfs-tidy".into()).spawn(tidy).map_err(StartError::Thread)?;
        Ok(Self { transport: Some(transport), running: Some(running), tidying: Some(tidying) })
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
        drop(self.running.take());
        if self.tidying.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that tidies up had panicked");
        }
    }
}
