//! Server options.

use std::net::IpAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::service::Origin;
use tombolo_host_runtime::buffer_pool::{BUFFER_MAX_BYTES, BufferLimits};
use tombolo_host_tls::ServerTls;

/// Longest call: a mebibyte of data, and its headers.
const RECORD_MAX_BYTES: usize = (1 << 20) + (8 << 10);

/// A predicate on addresses that may call.
pub type Admit = Arc<dyn Fn(IpAddr) -> bool + Send + Sync>;

/// Options of a server.
#[derive(Clone)]
pub struct Options {
    /// Number of event threads, at least one. Default: half the cores, at most four.
    pub threads: usize,
    /// Maximum length of a call in bytes; a connection that announces more is closed. Default and upper
    /// bound: 1 MiB + 8 KiB.
    pub record_max_bytes: usize,
    /// Predicate on addresses that may call, applied to each accepted connection, and to the sender of a
    /// datagram unless the socket has it cached from an earlier datagram. Default: all may call.
    pub admit: Option<Admit>,
    /// TLS configuration: a connection must begin TLS before its first call (RFC 9289), unless `admit_plain`
    /// exempts its address. Datagrams are not encrypted.
    pub tls: Option<Arc<ServerTls>>,
    /// Predicate on addresses that may call without TLS. Default: none.
    pub admit_plain: Option<Admit>,
    /// Maximum number of connections. One address may have at most as many connections as are left free. At
    /// the limit, idle connections are closed, or the new one is refused. Default: 32,768.
    pub connections_max: usize,
    /// Maximum number of calls of one connection whose replies are not yet sent. Default: 256.
    pub connection_calls_max: usize,
    /// Number of bytes in use for one connection's calls and replies at which the connection begins no
    /// further call. Default: 16 MiB.
    pub connection_bytes_max: usize,
    /// Number of unanswered calls of one client address at which its connections begin no others, except
    /// long calls already being received. Default: 1,024.
    pub client_calls_max: usize,
    /// Limits of memory for calls and file data.
    pub buffers: BufferLimits,
    /// Time after which a connection is closed that receives none of its replies, that sends less than 16 KiB
    /// of a call that it has begun, or whose TLS handshake does not end. Default: 30 s.
    pub stuck_after: Duration,
    /// Time after which a connection that receives none of its replies is closed while memory is short.
    /// Default: 1 s.
    pub stuck_after_if_short: Duration,
    /// Time after which a connection is closed that never had a call answered. Default: 6 minutes, as in the
    /// Linux server. After an answered call, a connection idle between calls is closed only at the limit of
    /// connections.
    pub silent_after: Duration,
    /// Grace period for running calls when the server stops. Default: 5 s.
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
    /// Returns `true` if this address may call.
    pub(super) fn admits(&self, address: IpAddr) -> bool {
        self.admit.as_ref().is_none_or(|admit| admit(address))
    }

    /// Returns `true` if the caller's address may call without TLS although TLS is configured.
    pub(super) fn admits_plain(&self, origin: &Origin) -> bool {
        let Origin::Network(address) = origin else { return false };
        self.admit_plain.as_ref().is_some_and(|admit| admit(address.ip()))
    }

    /// Returns the options with unusable limits raised or lowered.
    pub(super) fn checked(mut self) -> Self {
        self.threads = self.threads.max(1);
        self.record_max_bytes = self.record_max_bytes.min(RECORD_MAX_BYTES);
        self.connection_calls_max = self.connection_calls_max.max(1);
        self.client_calls_max = self.client_calls_max.max(1);
        // Calls begin while at most half of a share is in use, so the other half must suffice for the longest
        // call and the longest reply.
        self.buffers.share_bytes = self.buffers.share_bytes.max(4 * BUFFER_MAX_BYTES);
        self.buffers.total_bytes = self.buffers.total_bytes.max(self.buffers.share_bytes);
        self
    }

    /// Returns the regular interval of checks for stuck or idle connections.
    pub(super) fn sweep_interval(&self) -> Duration {
        const LONGEST: Duration = Duration::from_secs(5);
        const SHORTEST: Duration = Duration::from_millis(10);
        (self.stuck_after.min(self.silent_after) / 4).clamp(SHORTEST, LONGEST)
    }
}
