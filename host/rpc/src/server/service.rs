//! What answers calls, and what a call is made of.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};

use tombolo_host_links::server::IdentityPolicy;
use tombolo_host_runtime::buffer_pool::{Buffers, Lease};
use tombolo_host_tls::PeerCertificate;
use tombolo_mem::Source;
use tombolo_shm::link::Incarnation;

/// So much of a call lies in [`Exchange::head`] if the call is no longer than that, in bytes.
pub const HEAD_BYTES: usize = 8 << 10;

/// So much of a longer one (a WRITE), in bytes.
pub const LONG_HEAD_BYTES: usize = 1 << 10;

/// More memory than this is not kept for the next reply, in bytes.
const KEPT_BYTES: usize = 16 << 10;

/// What answers calls. Knows no transport.
pub trait Service: Send + Sync + 'static {
    /// Answers one call. The exchange is given back with the reply in it, and used again.
    ///
    /// The transport polls the future once on the thread that received the call: what is ready then is sent
    /// with the replies of the whole batch. The rest goes on as a task (`host::task`): it is polled by the
    /// thread that wakes it, and that thread sends the reply. So the future must never block. If it panics,
    /// the connection is closed.
    fn serve(
        self: Arc<Self>,
        peer: Arc<Peer>,
        exchange: Box<Exchange>,
    ) -> impl Future<Output = (Box<Exchange>, Outcome)> + Send + 'static;

    /// Whether a call that begins so may take a buffer ([`Exchange::buffers`]). Asked only when memory is
    /// short: a call that takes none does not wait for any then. `head` is the first bytes,
    /// [`LONG_HEAD_BYTES`] of them at most.
    fn needs_buffer(&self, _head: &[u8]) -> bool {
        true
    }
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The reply in the exchange is sent.
    Reply,
    /// Nothing is sent, and the connection goes on.
    Silent,
    /// Nothing is sent; the connection is closed after the replies that wait to be sent. Over UDP the same as
    /// `Silent`.
    Close,
}

/// How calls arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Records in a stream.
    Tcp,
    /// A datagram for each.
    Udp,
    /// Requests of a link over shared memory.
    Link,
}

impl Transport {
    /// As people call it.
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
    /// Where it is.
    pub origin: Origin,
    /// How it calls.
    pub transport: Transport,
    /// The certificate that it has shown, once its connection has TLS.
    pub certificate: OnceLock<Box<PeerCertificate>>,
    /// What the service wishes to remember of this peer. It is dropped some time after a connection has
    /// ended; that of a sender of datagrams may be forgotten at any time.
    pub memo: OnceLock<Box<dyn Any + Send + Sync>>,
}

/// Where calls come from.
#[derive(Clone, Debug)]
pub enum Origin {
    /// An address; an IPv4 address is one even if it came to an IPv6 socket.
    Network(SocketAddr),
    /// A link over shared memory.
    Link(Box<LinkOrigin>),
}

/// The client of a link over shared memory.
#[derive(Clone, Debug)]
pub struct LinkOrigin {
    /// What it is called in logs.
    pub label: Arc<str>,
    /// The one export that it may use.
    pub export: String,
    /// Which life of which client, as it says itself: the same on all its links.
    pub client: Incarnation,
    /// The user whose process it is, as this kernel says, where both share a kernel.
    pub user: Option<u32>,
    /// In whose name it may call.
    pub identity_policy: IdentityPolicy,
}

impl Peer {
    /// A peer at an address that the service remembers nothing of.
    pub fn new(address: SocketAddr, transport: Transport) -> Arc<Self> {
        Self::at(Origin::Network(address), transport)
    }

    /// A peer over shared memory.
    pub fn of_link(link: LinkOrigin) -> Arc<Self> {
        Self::at(Origin::Link(Box::new(link)), Transport::Link)
    }

    fn at(origin: Origin, transport: Transport) -> Arc<Self> {
        Arc::new(Self { origin, transport, certificate: OnceLock::new(), memo: OnceLock::new() })
    }
}

impl Origin {
    /// Its address in the network, if it has one.
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

/// Memory of one call and its reply, used again from call to call. It travels in a box, for it is some 400
/// bytes long.
#[derive(Debug)]
pub struct Exchange {
    /// Private copy of the call's first bytes: all of it up to [`HEAD_BYTES`], the first [`LONG_HEAD_BYTES`]
    /// of a longer one.
    pub head: Vec<u8>,
    /// The whole call, where it was received: file data goes on from here without a copy.
    pub record: Source,
    /// The reply's bytes, encoded by the service; no record mark. Empty when the call arrives.
    pub reply: Vec<u8>,
    /// File data that follows `reply` (READ). The transport fills it up to a multiple of four bytes. None
    /// when the call arrives.
    pub data: Option<ReplyData>,
    /// Where the service takes buffers for file data.
    pub buffers: Buffers,
    /// Keeps and counts the memory of `record`.
    pub(super) lease: Option<Lease>,
}

impl Exchange {
    /// An exchange without a call.
    pub fn new(buffers: Buffers) -> Self {
        Self { head: Vec::new(), record: Source::new(), reply: Vec::new(), data: None, buffers, lease: None }
    }

    /// Puts a call in, as the transport does. The lease is what `record` lies in, if it lies in one.
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

    /// As [`fill`](Self::fill), where the call's first bytes were copied already: `record` is `frame` and
    /// then `rest`.
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

    /// Lets go of the call and the reply, and keeps their memory.
    pub fn clear(&mut self) {
        self.head.clear();
        self.record = Source::new();
        self.lease = None;
        self.reply.clear();
        self.reply.shrink_to(KEPT_BYTES);
        self.data = None;
    }
}

/// File data of a reply, sent by reference.
#[derive(Debug)]
pub struct ReplyData {
    /// The bytes.
    pub source: Source,
    /// The buffer that they lie in, which goes back once they are sent. None if they lie elsewhere.
    pub lease: Option<Lease>,
}

impl ReplyData {
    /// The first `len_bytes` of a buffer, or all if it has fewer.
    pub fn new(lease: Lease, len_bytes: usize) -> Self {
        Self { source: lease.source(0..len_bytes), lease: Some(lease) }
    }
}
