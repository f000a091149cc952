//! What an operator may set.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::service::Origin;
use tombolo_host_runtime::buffer_pool::{BUFFER_MAX_BYTES, BufferLimits};
use tombolo_host_tls::ServerTls;

/// Data of a call at most, and what may stand in front of it.
const RECORD_MAX_BYTES: usize = (1 << 20) + (8 << 10);

/// Decides which addresses may call.
pub type Admit = Arc<dyn Fn(IpAddr) -> bool + Send + Sync>;

/// How a server works.
#[derive(Clone)]
pub struct Options {
    /// Event threads; at least one. By default half as many as there are cores, and four at most.
    pub threads: usize,
    /// The longest call, in bytes; what announces more is closed. By default a mebibyte and 8 KiB, and that
    /// is the most.
    pub record_max_bytes: usize,
    /// What is asked about each connection and each datagram; by default all may call.
    pub admit: Option<Admit>,
    /// With this every connection must begin TLS before its first call (RFC 9289). Datagrams have none.
    pub tls: Option<Arc<ServerTls>>,
    /// What is asked about a connection that calls without it; by default none may.
    pub admit_plain: Option<Admit>,
    /// Connections at most, and of one address half of those that no other has. Where the limit is reached,
    /// idle ones are closed, or the next is refused. By default 32,768.
    pub connections_max: usize,
    /// Calls of one connection that were received and whose replies are not sent yet. By default 256.
    pub connection_calls_max: usize,
    /// Bytes of buffers that those calls and their replies have. By default 16 MiB.
    pub connection_bytes_max: usize,
    /// Calls of one client address that were received and are not answered yet. By default 1,024.
    pub client_calls_max: usize,
    /// Memory for calls and file data.
    pub buffers: BufferLimits,
    /// A connection that has replies to take and takes none of them for so long is closed, and so is one that
    /// has sent part of a call and nothing more. By default 30 s.
    pub stuck_after: Duration,
    /// The same where memory for replies is short, for a connection that takes none of its own. By default a
    /// second.
    pub stuck_after_if_short: Duration,
    /// A connection that never had a call answered is closed after so long. By default 6 minutes, as Linux's
    /// server does; but one that has been of use stays for as long as its peer is there.
    pub silent_after: Duration,
    /// For so long calls may run on when the server stops. By default 5 s.
    pub grace: Duration,
}

impl Default for Options {
    fn default() -> Self {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        Self {
            threads: (cores / 2).clamp(1, 4),
            record_max_bytes: RECORD_MAX_BYTES,
            admit: None,
            tls: None,
            admit_plain: None,
            connections_max: 32_768,
            connection_calls_max: 256,
            connection_bytes_max: 16 << 20,
            client_calls_max: 1024,
            buffers: BufferLimits::default(),
            stuck_after: Duration::from_secs(30),
            stuck_after_if_short: Duration::from_secs(1),
            silent_after: Duration::from_secs(360),
            grace: Duration::from_secs(5),
        }
    }
}

impl Options {
    /// Whether this address may call.
    pub(super) fn admits(&self, address: IpAddr) -> bool {
        self.admit.as_ref().is_none_or(|admit| admit(address))
    }

    /// Whether this address may call without TLS where there is TLS.
    pub(super) fn admits_plain(&self, origin: &Origin) -> bool {
        let Origin::Network(address) = origin else { return false };
        self.admit_plain.as_ref().is_some_and(|admit| admit(address.ip()))
    }

    /// With every limit at a value that works.
    pub(super) fn checked(mut self) -> Self {
        self.threads = self.threads.max(1);
        self.record_max_bytes = self.record_max_bytes.min(RECORD_MAX_BYTES);
        self.connection_calls_max = self.connection_calls_max.max(1);
        self.client_calls_max = self.client_calls_max.max(1);
        // Half a share holds the longest call and the longest reply.
        self.buffers.share_bytes = self.buffers.share_bytes.max(4 * BUFFER_MAX_BYTES);
        self.buffers.total_bytes = self.buffers.total_bytes.max(self.buffers.share_bytes);
        self
    }

    /// How often a thread looks for connections that are stuck or silent.
    pub(super) fn sweep_interval(&self) -> Duration {
        const LONGEST: Duration = Duration::from_secs(5);
        const SHORTEST: Duration = Duration::from_millis(10);
        (self.stuck_after.min(self.silent_after) / 4).clamp(SHORTEST, LONGEST)
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("threads", &self.threads)
            .field("record_max_bytes", &self.record_max_bytes)
            .field("tls", &self.tls)
            .field("connections_max", &self.connections_max)
            .field("connection_calls_max", &self.connection_calls_max)
            .field("client_calls_max", &self.client_calls_max)
            .field("buffers", &self.buffers)
            .finish_non_exhaustive()
    }
}
