//! A disk's thread ([`run`]), which receives replies, resumes blocked sends, and reconnects.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tombolo_host_runtime::receive_buffer::ReceiveBuffer;
use tombolo_host_runtime::send_queue::{Outgoing, SendQueue};
use tombolo_host_tls::Stream;
use tombolo_mem::Sink;
use tombolo_sys::epoll::{Epoll, EventFd, Interest};
use tombolo_sys::gather::Gather;
use tombolo_sys::{Errno, Result};
use tombolo_wire_nbd::status::Status;
use tombolo_wire_nbd::{
    ChunkKind, Malformed, ReplyHead, ReplyStyle, decode_block_status, decode_error, decode_hole,
};

use crate::disk::{DiskState, Pending};
use crate::handshake::{ConnectError, Negotiated, connect};

/// First pause between attempts to reconnect, doubled after each attempt up to [`RETRY_MAX`].
const RETRY_MIN: Duration = Duration::from_millis(20);
const RETRY_MAX: Duration = Duration::from_secs(2);

/// Length of the longest reply header, an extended one.
const HEAD_BYTES: usize = 32;
/// Maximum number of bytes that are decoded of a payload other than data; they fit into the receive buffer.
const WORDS_BYTES_MAX: usize = 60 << 10;
/// Maximum length of a payload with extents. The extents beyond [`WORDS_BYTES_MAX`] are discarded. QEMU
/// reports up to 2¹⁷ extents, nbdkit 2²⁰.
const EXTENTS_BYTES_MAX: usize = 8 + (16 << 20);

/// A connection, shared by all threads that send on it.
pub(crate) struct Connection {
    stream: Stream,
    pub(crate) queue: SendQueue<()>,
}

impl Connection {
    pub(crate) fn new(stream: Stream) -> Self {
        Self { stream, queue: SendQueue::default() }
    }

    /// Sends as much as the socket accepts. On an error shuts the connection down, so that the receiving
    /// thread reconnects.
    pub(crate) fn flush(&self) {
        if self.queue.flush(self).is_err() {
            self.shut_down();
        }
    }

    pub(crate) fn shut_down(&self) {
        self.stream.shut_down();
    }
}

impl Outgoing for Connection {
    fn send(&self, gather: &mut Gather<'_>) -> Result<usize> {
        self.stream.send(gather)
    }

    fn sent(&self, _count: usize) {}
}

/// Reasons why a connection was lost.
#[derive(Debug, thiserror::Error)]
enum Lost {
    #[error("the server closed the connection")]
    Closed,
    #[error("{0}")]
    System(#[from] Errno),
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

/// Receives the disk's replies, and reconnects after a loss, or if a receiver cannot be created, until the
/// disk is dropped.
pub(crate) fn run(shared: &Arc<DiskState>, mut connection: Arc<Connection>, mut negotiated: Negotiated) {
    loop {
        let receiver = Receiver::new(shared.clone(), connection.clone(), negotiated);
        let can_receive = receiver.is_ok();
        let lost = match receiver.map_err(Lost::from).and_then(|mut receiver| receiver.run()) {
            Ok(()) => return,
            Err(lost) => lost,
        };
        connection.shut_down();
        shared.connection_lost();
        if shared.is_closed() {
            return;
        }
        tracing::warn!(server = %shared.address, "NBD: connection lost: {lost}; reconnecting");
        if !can_receive {
            // While descriptors are lacking, each attempt would fail at once: pause instead of reconnecting
            // in a loop.
            shared.sleep(RETRY_MAX);
        }
        match reconnect(shared) {
            Some((stream, now)) => (connection, negotiated) = (Arc::new(Connection::new(stream)), now),
            None => return,
        }
        shared.connected(&connection);
        tracing::info!(server = %shared.address, "NBD: reconnected");
    }
}

/// Reconnects, retrying forever; `None` once the disk is dropped.
fn reconnect(shared: &DiskState) -> Option<(Stream, Negotiated)> {
    let mut pause = RETRY_MIN;
    let mut last_warning: Option<Instant> = None;
    while !shared.is_closed() {
        let outcome =
            connect(&shared.address, shared.tls.as_ref(), &shared.export).and_then(|(stream, now)| {
                let is_same = now.is_same_disk(&shared.first);
                if is_same { Ok((stream, now)) } else { Err(ConnectError::Changed) }
            });
        match outcome {
            Ok(connected) => return Some(connected),
            Err(error)
                if last_warning
                    .is_none_or(|last_warning| last_warning.elapsed() > Duration::from_secs(60)) =>
            {
                tracing::warn!(server = %shared.address, %error, "NBD: cannot connect; retrying");
                last_warning = Some(Instant::now());
            }
            Err(_) => {}
        }
        shared.sleep(pause);
        pause = (pause * 2).min(RETRY_MAX);
    }
    None
}

struct Receiver {
    shared: Arc<DiskState>,
    connection: Arc<Connection>,
    negotiated: Negotiated,
    epoll: Epoll,
    wake: Arc<EventFd>,
    received: ReceiveBuffer,
}

impl Receiver {
    fn new(shared: Arc<DiskState>, connection: Arc<Connection>, negotiated: Negotiated) -> Result<Self> {
        let (epoll, wake) = (Epoll::new()?, shared.wake.clone());
        epoll.add(connection.stream.socket(), 0, Interest::Changes)?;
        epoll.add(&*wake, 1, Interest::Readable)?;
        Ok(Self { shared, connection, negotiated, epoll, wake, received: ReceiveBuffer::default() })
    }

    /// Receives replies until the disk is dropped.
    fn run(&mut self) -> std::result::Result<(), Lost> {
        while !self.shared.is_closed() {
            let mut wanted = 4;
            let (head, used) = loop {
                self.fill(wanted)?;
                match ReplyHead::decode(self.negotiated.style, self.received.bytes())? {
                    Some(decoded) => break decoded,
                    None if wanted >= HEAD_BYTES => return Err(Malformed::Short.into()),
                    None => wanted = self.received.len() + 1,
                }
            };
            self.received.take(used);
            match head {
                ReplyHead::Simple { cookie, status } => self.simple(cookie, status)?,
                ReplyHead::Chunk { cookie, kind, is_last, payload_bytes } => {
                    self.chunk(cookie, kind, payload_bytes as usize)?;
                    if is_last {
                        self.shared.finish(cookie).ok_or(Malformed::Value)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn simple(&mut self, cookie: u64, status: Status) -> std::result::Result<(), Lost> {
        // If structured replies were negotiated, a simple reply to a read may only report an error.
        let sink = self.shared.with(cookie, |pending| {
            pending.status = pending.status.and_then(|()| failed(status));
            pending.part(pending.offset(), pending.sink.as_ref()?.len())
        });
        let sink = sink.ok_or(Malformed::Value)?;
        if let Some(sink) = sink.filter(|_| status == Status::Ok) {
            if self.negotiated.style != ReplyStyle::Simple {
                return Err(Malformed::Value.into());
            }
            self.data(sink)?;
        }
        self.shared.finish(cookie).ok_or(Malformed::Value)?;
        Ok(())
    }

    fn chunk(&mut self, cookie: u64, kind: ChunkKind, len: usize) -> std::result::Result<(), Lost> {
        if kind == ChunkKind::OFFSET_DATA {
            self.fill(8)?;
            let offset = self.received.take(8).first_chunk().map(|bytes| u64::from_be_bytes(*bytes));
            let len = len.checked_sub(8).filter(|len| *len > 0).ok_or(Malformed::Value)?;
            let part = self.shared.with(cookie, |pending| pending.part(offset?, len)).flatten();
            return self.data(part.ok_or(Malformed::Value)?);
        }
        let decoded = match kind {
            ChunkKind::BLOCK_STATUS => whole_extents(len, 4, 8),
            ChunkKind::BLOCK_STATUS_EXT => whole_extents(len, 8, 16),
            _ if len > WORDS_BYTES_MAX => None,
            _ => Some(len),
        };
        let decoded = decoded.ok_or(Malformed::Length(len as u64))?;
        self.fill(decoded)?;
        let payload = self.received.take(decoded);
        let context = self.negotiated.context;
        let noted = self.shared.with(cookie, |pending| note(pending, kind, payload, context));
        noted.ok_or(Malformed::Value)?.map_err(Lost::from)?;
        self.discard(len - decoded)
    }

    /// Receives and drops the remainder of a payload.
    fn discard(&mut self, mut len: usize) -> std::result::Result<(), Lost> {
        while len > 0 {
            let part = len.min(WORDS_BYTES_MAX);
            self.fill(part)?;
            self.received.take(part);
            len -= part;
        }
        Ok(())
    }

    /// Moves data into the memory of the request's caller, which the caller does not reuse before the answer:
    /// bytes in the receive buffer are copied, the others are received in place.
    fn data(&mut self, into: Sink) -> std::result::Result<(), Lost> {
        let Self { shared, connection, epoll, wake, received, .. } = self;
        received.take_into(into, |into| receive(shared, connection, epoll, wake, into))
    }

    fn fill(&mut self, len: usize) -> std::result::Result<(), Lost> {
        let Self { shared, connection, epoll, wake, received, .. } = self;
        received.fill(len, |into, _| receive(shared, connection, epoll, wake, into))
    }
}

/// Returns how many bytes of a payload of extents are decoded: a head of `head` bytes, and whole extents of
/// `each`. `None` if the payload is too long.
fn whole_extents(len: usize, head: usize, each: usize) -> Option<usize> {
    let decoded_max = WORDS_BYTES_MAX - (WORDS_BYTES_MAX - head) % each;
    (len <= EXTENTS_BYTES_MAX).then_some(len.min(decoded_max))
}

/// Applies a chunk without data to its request: zeroes a hole, or records extents or an error.
fn note(
    pending: &mut Pending,
    kind: ChunkKind,
    payload: &[u8],
    context: Option<u32>,
) -> std::result::Result<(), Malformed> {
    match kind {
        ChunkKind::NONE => {}
        ChunkKind::OFFSET_HOLE => {
            let (offset, len) = decode_hole(payload)?;
            let part = pending.part(offset, len as usize).ok_or(Malformed::Value)?;
            part.zero(0, part.len());
        }
        ChunkKind::BLOCK_STATUS | ChunkKind::BLOCK_STATUS_EXT => {
            let (id, extents) = decode_block_status(kind, payload)?;
            if Some(id) == context {
                pending.extents = extents;
            }
        }
        kind if kind.is_error() => pending.status = Err(decode_error(payload)?),
        _ => return Err(Malformed::Value),
    }
    Ok(())
}

fn failed(status: Status) -> std::result::Result<(), Status> {
    if status == Status::Ok { Ok(()) } else { Err(status) }
}

/// Receives from the socket, waiting for data and resuming blocked sends meanwhile; fails with
/// [`Lost::Closed`] at the end of the stream, and once the disk is dropped.
fn receive(
    shared: &DiskState,
    connection: &Connection,
    epoll: &Epoll,
    wake: &EventFd,
    into: &Sink,
) -> std::result::Result<usize, Lost> {
    let mut events = Vec::new();
    loop {
        match connection.stream.receive(into) {
            Ok(0) => return Err(Lost::Closed),
            Ok(received) => return Ok(received),
            Err(Errno::AGAIN) => {}
            Err(error) => return Err(error.into()),
        }
        epoll.wait(&mut events, None)?;
        for event in &events {
            if event.token == 1 {
                wake.clear();
            } else if event.writable {
                connection.queue.writable(connection)?;
            }
        }
        if shared.is_closed() {
            return Err(Lost::Closed);
        }
    }
}
