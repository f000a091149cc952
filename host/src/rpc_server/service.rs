//! What answers calls, and what a call is made of.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use crate::buffers::{Buffers, Lease};
use tombolo_mem::Source;

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
    /// The transport polls the future once on the thread that received the call: what is ready then is sent with the
    /// replies of the whole batch. The rest goes on as a task (`host::task`): it is polled by whoever wakes it, and that
    /// thread sends the reply. So the future must never block. If it panics, the connection is closed.
    fn serve(
        self: Arc<Self>,
        peer: Arc<Peer>,
        exchange: Box<Exchange>,
    ) -> impl Future<Output = (Box<Exchange>, Outcome)> + Send + 'static;
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The reply in the exchange is sent.
    Reply,
    /// Nothing is sent, and the connection goes on.
    Silent,
    /// Nothing is sent; the connection is closed after the replies that wait to be sent. Over UDP the same as `Silent`.
    Close,
}

/// How calls arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Records in a stream.
    Tcp,
    /// A datagram for each.
    Udp,
}

/// Who calls: a connection, or a sender of datagrams.
pub struct Peer {
    /// Its address; an IPv4 address is one even if it came to an IPv6 socket.
    pub address: SocketAddr,
    /// How it calls.
    pub transport: Transport,
    /// What the service wishes to remember of this peer. It is dropped some time after a connection has ended; that of a
    /// sender of datagrams may be forgotten at any time.
    pub memo: OnceLock<Box<dyn Any + Send + Sync>>,
}

impl Peer {
    /// A peer that the service remembers nothing of.
    pub fn new(address: SocketAddr, transport: Transport) -> Arc<Self> {
        Arc::new(Self { address, transport, memo: OnceLock::new() })
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.transport, self.address)
    }
}

/// Memory of one call and its reply, used again from call to call. It travels in a box, for it is some 400 bytes long.
#[derive(Debug)]
pub struct Exchange {
    /// Private copy of the call's first bytes: all of it up to [`HEAD_BYTES`], the first [`LONG_HEAD_BYTES`] of a longer one.
    pub head: Vec<u8>,
    /// The whole call, where it was received: file data goes on from here without a copy.
    pub record: Source,
    /// The reply's bytes, encoded by the service; no record mark. Empty when the call arrives.
    pub reply: Vec<u8>,
    /// File data that follows `reply` (READ). The transport fills it up to a multiple of four bytes. None when the call arrives.
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
