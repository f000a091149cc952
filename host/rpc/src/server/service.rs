//! The service interface, and the memory of a call and its reply.

use std::fmt;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};

use tombolo_host_links::server::IdentityPolicy;
use tombolo_host_runtime::buffer_pool::{Buffers, Lease};
use tombolo_host_tls::PeerCertificate;
use tombolo_mem::Source;
use tombolo_shm::link::Incarnation;

/// Maximum length of a call that is copied whole to [`Exchange::head`], in bytes.
pub const HEAD_BYTES: usize = 8 << 10;

/// Length of the prefix copied of a longer call (a WRITE), in bytes.
pub const LONG_HEAD_BYTES: usize = 1 << 10;

/// Capacity of the reply buffer retained between calls, in bytes.
const RETAINED_BYTES: usize = 16 << 10;

/// A handler of calls, independent of the transport.
pub trait Service: Send + Sync + 'static {
    /// Answers one call. Returns the exchange with the reply in it, for reuse.
    ///
    /// The transport polls the future once on the thread that received the call. If the future is ready, the
    /// reply is sent at once or, over TCP, in a batch at the end of the turn. A pending future becomes a task
    /// (`tombolo_host_runtime::task`): the thread that wakes it polls it and delivers the reply. The future
    /// must never block, because these threads also serve other calls. If it panics, the connection or link
    /// is closed; over UDP only the call ends.
    fn serve(
        self: Arc<Self>,
        peer: Arc<Peer>,
        exchange: Box<Exchange>,
    ) -> impl Future<Output = (Box<Exchange>, Outcome)> + Send + 'static;

    /// Returns `true` if a call beginning with `head` may take a buffer ([`Exchange::buffers`]). Consulted
    /// only over TCP, when memory is short: a call that takes no buffer does not wait for memory. `head` has
    /// at most [`LONG_HEAD_BYTES`] bytes.
    fn needs_buffer(&self, _head: &[u8]) -> bool {
        true
    }
}

/// Result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Send the reply in the exchange.
    Reply,
    /// Send nothing and keep the connection open.
    Silent,
    /// Send nothing; close the connection once the queued replies are sent. Over a link the link is cut at
    /// once; over UDP this has the effect of `Silent`.
    Close,
}

/// Transport over which calls arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Records in a TCP stream, or in another stream passed to [`Server::adopt`](super::Server::adopt).
    Tcp,
    /// One UDP datagram for each call.
    Udp,
    /// Requests of a link over shared memory.
    Link,
}

impl Transport {
    /// Returns the transport's name for messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Link => "shared memory",
        }
    }
}

/// The caller: a connection, a sender of datagrams, or the client of a link.
pub struct Peer {
    /// The caller's address or link.
    pub origin: Origin,
    /// Transport over which the caller sends calls.
    pub transport: Transport,
    /// Certificate presented by the peer, set once the connection has TLS.
    pub certificate: OnceLock<Box<PeerCertificate>>,
}

/// Origin of calls: the client's address or link.
#[derive(Clone, Debug)]
pub enum Origin {
    /// A network address. IPv4-mapped IPv6 addresses appear as IPv4.
    Network(SocketAddr),
    /// A link over shared memory.
    Link(Box<LinkOrigin>),
}

/// The client of a link over shared memory.
#[derive(Clone, Debug)]
pub struct LinkOrigin {
    /// Name for logs.
    pub label: Arc<str>,
    /// The only export that the client may use.
    pub export: String,
    /// Incarnation of the client, as claimed by itself: the same on all its links.
    pub client: Incarnation,
    /// User of the client's process, as attested by the kernel; `None` if client and server run on different
    /// kernels.
    pub user: Option<u32>,
    /// Users on whose behalf the client may call.
    pub identity_policy: IdentityPolicy,
}

impl Peer {
    /// Returns a peer at a network address, without a certificate yet.
    pub fn new(address: SocketAddr, transport: Transport) -> Arc<Self> {
        Self::at(Origin::Network(address), transport)
    }

    /// Returns a peer over shared memory.
    pub fn of_link(link: LinkOrigin) -> Arc<Self> {
        Self::at(Origin::Link(Box::new(link)), Transport::Link)
    }

    fn at(origin: Origin, transport: Transport) -> Arc<Self> {
        Arc::new(Self { origin, transport, certificate: OnceLock::new() })
    }
}

impl Origin {
    /// Returns the network address, if there is one.
    #[must_use]
    pub fn ip(&self) -> Option<IpAddr> {
        match self {
            Self::Network(address) => Some(address.ip()),
            Self::Link(_) => None,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(address) => address.fmt(f),
            Self::Link(link) => link.label.fmt(f),
        }
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.transport, self.origin)
    }
}

/// Memory of one call and its reply, reused from call to call. It is passed in a box, because it is large.
#[derive(Debug)]
pub struct Exchange {
    /// Private copy of the call's beginning: all of it up to [`HEAD_BYTES`], the first [`LONG_HEAD_BYTES`] of
    /// a longer one.
    pub head: Vec<u8>,
    /// The whole call, from whose memory file data are passed on without a copy.
    pub record: Source,
    /// Reply encoded by the service, without record mark. Empty at the start of the call.
    pub reply: Vec<u8>,
    /// File data that follows `reply` (READ), padded by the transport to a multiple of four bytes. `None` at
    /// the start of the call.
    pub data: Option<ReplyData>,
    /// Source of buffers for file data.
    pub buffers: Buffers,
    /// Lease that retains and accounts for the memory of `record`, if `record` lies in a buffer of the pool.
    pub(super) lease: Option<Lease>,
}

impl Exchange {
    /// Returns an exchange without a call.
    pub fn new(buffers: Buffers) -> Self {
        Self { head: Vec::new(), record: Source::new(), reply: Vec::new(), data: None, buffers, lease: None }
    }

    /// Stores a received call. `lease` is the buffer that `record` lies in, if any.
    pub fn fill(&mut self, record: Source, lease: Option<Lease>) {
        self.clear();
        let head = match record.len() {
            len @ ..=HEAD_BYTES => len,
            _ => LONG_HEAD_BYTES,
        };
        self.head.resize(head, 0);
        let copied = record.read_at(0, &mut self.head);
        self.head.truncate(copied);
        self.record = record;
        self.lease = lease;
    }

    /// Stores a received call whose first bytes are already copied: `record` is `frame` followed by `rest`.
    pub(crate) fn receive(&mut self, frame: &[u8], rest: &Source, record: Source) {
        self.clear();
        let len = match record.len() {
            len @ ..=HEAD_BYTES => len,
            _ => LONG_HEAD_BYTES,
        };
        let frame = frame.get(..len).unwrap_or(frame);
        self.head.extend_from_slice(frame);
        self.head.resize(len, 0);
        let copied = self.head.get_mut(frame.len()..).map_or(0, |tail| rest.read_at(0, tail));
        self.head.truncate(frame.len() + copied);
        self.record = record;
    }

    /// Drops the call and the reply. Retains memory of `head` and `reply` for the next call.
    pub fn clear(&mut self) {
        self.head.clear();
        self.record = Source::new();
        self.lease = None;
        self.reply.clear();
        self.reply.shrink_to(RETAINED_BYTES);
        self.data = None;
    }
}

/// File data of a reply, sent by reference.
#[derive(Debug)]
pub struct ReplyData {
    /// The data, without padding.
    pub source: Source,
    /// Buffer that contains the bytes, returned once they are sent. `None` if the bytes are in no buffer of
    /// the pool.
    pub lease: Option<Lease>,
}

impl ReplyData {
    /// Returns the first `len_bytes` of a buffer, or all of it if it is shorter.
    pub fn new(lease: Lease, len_bytes: usize) -> Self {
        Self { source: lease.source(0..len_bytes), lease: Some(lease) }
    }
}
