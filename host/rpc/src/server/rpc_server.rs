//! [`Server`]: start-up of the event threads on bound sockets, counters, and shutdown.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use thiserror::Error;

use super::calls::{Datagrams, calls_of};
use super::clients::ConnectionPermit;
use super::common::{Common, Counts, Exchanges};
use super::connection::ThreadContext;
use super::datagrams::DatagramReader;
use super::event_thread::EventThread;
use super::listening::{BindError, Bound, Listening, hand_over};
use super::options::Options;
use super::record_reader::ReceiveArea;
use super::service::{Service, Transport};
use super::thread_queue::ThreadQueue;
use tombolo_sys::{Errno, tcp};

/// Maximum number of connections waiting to be accepted; the kernel caps it at its own limit.
const BACKLOG: i32 = 4096;

/// Reason why a server did not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// A listening socket could not be set up.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The system lacks descriptors, memory or threads for an event thread.
    #[error("cannot start an event thread: {0}")]
    Thread(#[source] std::io::Error),
}

/// A running server. Dropping it stops it, as [`stop`](Self::stop) does.
pub struct Server {
    common: Arc<Common>,
    queues: Arc<[Arc<ThreadQueue>]>,
    threads: Vec<JoinHandle<()>>,
    tcp: Vec<SocketAddr>,
    udp: Vec<SocketAddr>,
}

impl Server {
    /// Starts to serve calls on the bound sockets. The first event thread accepts connections at once;
    /// connections assigned to a thread that is not started yet wait for its start.
    pub fn start<S: Service>(bound: Bound, options: Options, service: &Arc<S>) -> Result<Self, StartError> {
        let common = Common::new(options.checked());
        let udp = bound.udp.iter().map(|(address, _)| *address).collect();
        let sockets: Vec<_> =
            bound.udp.into_iter().map(|(_, socket)| Datagrams::new(socket, common.clone())).collect();
        let queues: Result<Vec<_>, Errno> =
            (0..common.options.threads).map(|_| ThreadQueue::new().map(Arc::new)).collect();
        let queues: Arc<[_]> = queues.map_err(system)?.into();
        for (address, socket) in &bound.tcp {
            tcp::listen(socket, BACKLOG).map_err(|source| BindError {
                address: *address,
                transport: Transport::Tcp,
                source,
            })?;
        }
        let (tcp, mut streams) = bound.tcp.into_iter().unzip();
        let mut server = Self { common, queues, threads: Vec::new(), tcp, udp };
        for index in 0..server.queues.len() {
            // The first thread accepts connections; UDP sockets are distributed round-robin.
            let own_streams = if index == 0 { std::mem::take(&mut streams) } else { Vec::new() };
            let own_sockets = sockets.iter().skip(index).step_by(server.queues.len()).cloned();
            server.start_thread(index, own_streams, own_sockets, service.clone())?;
        }
        Ok(server)
    }

    /// Serves calls over an existing stream, such as a Unix socket, on behalf of a client at `address`.
    /// Returns `false`, and closes the stream, if the limit of connections is reached.
    pub fn adopt(&self, stream: OwnedFd, address: SocketAddr) -> bool {
        let client = self.common.clients.of(address.ip());
        let Some(admitted) = ConnectionPermit::new(&self.common, &client) else { return false };
        hand_over(&self.common, &self.queues, stream, address, admitted);
        true
    }

    /// Returns the addresses of the TCP sockets, with their real ports.
    pub fn tcp_addresses(&self) -> &[SocketAddr] {
        &self.tcp
    }

    /// Returns the addresses of the UDP sockets, with their real ports.
    pub fn udp_addresses(&self) -> &[SocketAddr] {
        &self.udp
    }

    /// Returns a snapshot of the server's counters.
    pub fn counts(&self) -> Counts {
        Counts { lent_bytes: self.common.pool.lent_bytes() as u64, ..self.common.counters.read() }
    }

    /// Stops accepting connections and calls, sends replies to calls already received for up to the grace
    /// period, and closes all connections. Blocks until that is done.
    pub fn stop(self) {
        drop(self);
    }

    fn start_thread<S: Service>(
        &mut self,
        index: usize,
        streams: Vec<OwnedFd>,
        sockets: impl Iterator<Item = Arc<Datagrams>>,
        service: Arc<S>,
    ) -> Result<(), StartError> {
        let common = self.common.clone();
        let area = ReceiveArea::new(common.pool.clone()).ok_or_else(|| system(Errno::NOMEM))?;
        let calls = calls_of(service, common.clone());
        let exchanges = Exchanges::new(common.clone());
        let context = ThreadContext { common: common.clone(), calls, exchanges, area };
        let queue = self.queues[index].clone();
        let listening = Listening::new(streams, common, self.queues.clone());
        let readers = sockets.map(DatagramReader::new).collect();
        let thread = EventThread::new(context, queue, listening, readers).map_err(system)?;
        let builder = thread::Builder::new().name(format!("rpc-{index}"));
        self.threads.push(builder.spawn(move || thread.run()).map_err(StartError::Thread)?);
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.queues.iter().for_each(|queue| queue.stop());
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("event thread panicked");
            }
        }
    }
}

fn system(error: Errno) -> StartError {
    StartError::Thread(error.into())
}
