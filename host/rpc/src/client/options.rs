//! Callee and client options.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::tunnel::Tunnel;
use tombolo_host_tls::ClientTls;

/// Maximum number of connections.
const CONNECTIONS_MAX: usize = 16;

/// Transport of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// TCP connections, with record marks.
    Tcp,
    /// UDP datagrams, for calls and replies of up to 65,507 bytes.
    Udp,
}

/// One version of one program of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Address of the server.
    pub address: SocketAddr,
    /// Transport of the calls.
    pub transport: Transport,
    /// Program number.
    pub program: u32,
    /// Version number.
    pub version: u32,
}

/// In-flight limit of bulk calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InFlight {
    /// A fixed number, at least one.
    Fixed(u32),
    /// An adaptive number: raised while throughput grows, lowered when calls only wait longer or are lost.
    Adaptive {
        /// Upper bound of the limit.
        max: u32,
    },
}

impl InFlight {
    /// Returns the upper bound of the limit.
    #[must_use]
    pub fn max(self) -> u32 {
        match self {
            Self::Fixed(count) | Self::Adaptive { max: count } => count.max(1),
        }
    }
}

/// Behaviour while the server does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// Retransmit calls until they are answered.
    Hard,
    /// Fail a call after [`Options::retries`] + 1 time-outs or, if the server has never answered, as many
    /// failed connections.
    Soft,
}

/// Effect of an interrupt on a call that is not answered yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupts {
    /// End the call at once.
    Always,
    /// End the call once the server has been silent for two seconds, or this call unanswered for as long.
    WhenSilent,
    /// Ignore interrupts.
    Never,
}

/// Options of a client.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of connections, 1 to 16: the first is established on demand, the others soon after it. UDP uses
    /// one socket. With several connections, the first carries no calls that move 128 KiB or more, so that
    /// they do not delay small calls.
    pub connections: usize,
    /// In-flight limit of this client's bulk calls; further ones are queued.
    pub in_flight: InFlight,
    /// TCP: maximum time to connect, silence with calls outstanding before the client reconnects, and time
    /// before an unanswered call is retransmitted. UDP: initial retransmission time-out; later ones follow
    /// round-trip estimates.
    pub timeout: Duration,
    /// With [`Recovery::Soft`]: number of time-outs before the last one, which fails the call.
    pub retries: u32,
    /// Behaviour while the server does not answer.
    pub recovery: Recovery,
    /// Effect of interrupts.
    pub interrupts: Interrupts,
    /// Use of a local port below 1024, which many servers require: `Some(true)` insists, `None` uses one
    /// where permitted, `Some(false)` uses any port.
    pub reserved_port: Option<bool>,
    /// Maximum length of a reply, in bytes. A longer reply fails its call and closes the connection.
    pub reply_bytes_max: usize,
    /// TLS configuration: calls are sent over TLS only (RFC 9289), to the authenticated server. Not available
    /// over UDP.
    pub tls: Option<Arc<ClientTls>>,
    /// Command whose standard input and output are the connection; the target's address is then unused. Not
    /// to be combined with UDP or `tls`.
    pub tunnel: Option<Arc<Tunnel>>,
    /// Name of the server for errors and logs: `host:/name`.
    pub label: String,
}

impl Options {
    /// Returns the defaults for a transport.
    #[must_use]
    pub fn of(transport: Transport) -> Self {
        let (timeout, retries) = match transport {
            Transport::Tcp => (Duration::from_secs(60), 2),
            Transport::Udp => (Duration::from_millis(1100), 3),
        };
        Self {
            connections: 1,
            in_flight: InFlight::Adaptive { max: 128 },
            timeout,
            retries,
            recovery: Recovery::Hard,
            interrupts: Interrupts::WhenSilent,
            reserved_port: None,
            reply_bytes_max: (1 << 20) + (64 << 10),
            tls: None,
            tunnel: None,
            label: String::new(),
        }
    }

    /// Returns the options with connections, time-out and reply length in usable ranges; an empty label
    /// becomes the target's address.
    pub(super) fn checked(mut self, target: &Target) -> Self {
        self.connections = match target.transport {
            Transport::Tcp => self.connections.clamp(1, CONNECTIONS_MAX),
            Transport::Udp => 1,
        };
        self.timeout = self.timeout.clamp(Duration::from_millis(10), Duration::from_secs(3600));
        self.reply_bytes_max = self.reply_bytes_max.clamp(4 << 10, 64 << 20);
        if self.label.is_empty() {
            self.label = target.address.to_string();
        }
        self
    }
}

impl Default for Options {
    /// Returns the defaults for TCP.
    fn default() -> Self {
        Self::of(Transport::Tcp)
    }
}
