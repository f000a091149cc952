//! The callee, and how it is called.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::tunnel::Tunnel;
use tombolo_host_tls::ClientTls;

/// Connections at most.
const CONNECTIONS_MAX: usize = 16;

/// What carries the calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Connections, with record marks.
    Tcp,
    /// Datagrams; a call or reply of more than 65,507 bytes does not fit one.
    Udp,
}

/// One version of one program of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Where it is served.
    pub address: SocketAddr,
    /// How.
    pub transport: Transport,
    /// The program.
    pub program: u32,
    /// Its version.
    pub version: u32,
}

/// How many bulk calls may be outstanding at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InFlight {
    /// So many; at least one.
    Fixed(u32),
    /// As many as turn out well: more while that makes it faster, fewer when calls only wait longer or get
    /// lost.
    Adaptive {
        /// No more than these.
        max: u32,
    },
}

impl InFlight {
    /// The most calls that it may come to.
    #[must_use]
    pub fn max(self) -> u32 {
        match self {
            Self::Fixed(count) | Self::Adaptive { max: count } => count.max(1),
        }
    }
}

/// What happens while the server does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// Calls are sent again until they are answered, for ever.
    Hard,
    /// A call fails after so many time-outs as [`Options::retries`] says, and one more.
    Soft,
}

/// When an interrupt ends a call whose answer is still to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupts {
    /// At once.
    Always,
    /// Once the server has been silent for two seconds, or has not answered this call for as long: until then
    /// the answer is worth waiting for.
    WhenSilent,
    /// Never.
    Never,
}

/// How a client works.
#[derive(Clone, Debug)]
pub struct Options {
    /// Connections, 1 to 16. They are made when there is use for them. UDP has one socket. The first of
    /// several has no calls that move 128 KiB and more, so that nothing small waits behind them.
    pub connections: usize,
    /// Bulk calls of this client that may be outstanding at a time; further ones wait, in order.
    pub in_flight: InFlight,
    /// TCP: a server that is silent for so long while calls are outstanding is connected to anew, and a call
    /// that is not answered in this time is sent again. UDP: the first call is sent again after so long;
    /// later ones as round trips take.
    pub timeout: Duration,
    /// With [`Recovery::Soft`]: a call fails after so many time-outs and one more.
    pub retries: u32,
    /// What happens while the server does not answer.
    pub recovery: Recovery,
    /// What interrupts do.
    pub interrupts: Interrupts,
    /// Whether to call from a port below 1024, as many servers demand: true insists, none does it where we
    /// may.
    pub reserved_port: Option<bool>,
    /// The longest reply, in bytes. A call that is answered by a longer one fails, and the connection is made
    /// anew.
    pub reply_bytes_max: usize,
    /// With this no call is sent but over TLS (RFC 9289), and only to the server that it is for. UDP has
    /// none.
    pub tls: Option<Arc<ClientTls>>,
    /// With this each connection is a process of a program, and the target's address means nothing. Instead
    /// of TLS, and of UDP.
    pub tunnel: Option<Arc<Tunnel>>,
    /// Whose calls these are, for errors and the log: `host:/name`.
    pub label: String,
}

impl Options {
    /// What suits this transport.
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

    /// With every value at one that works.
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
    /// For TCP.
    fn default() -> Self {
        Self::of(Transport::Tcp)
    }
}
