//! The disk and its pending requests.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tombolo_core::block::{Allocation, BlockDevice, Extent, Extents, Geometry, Profile, Range, Zeroing};
use tombolo_core::{Answer, Ctx, Error, Stability, lock, or_answer};
use tombolo_host_runtime::promise::Promise;
use tombolo_host_runtime::send_queue::Message;
use tombolo_host_tls::{ClientTls, Stream};
use tombolo_mem::{Region, Sink, Source};
use tombolo_sys::epoll::EventFd;
use tombolo_wire_nbd::status::{Status, from_status};
use tombolo_wire_nbd::{Command, CommandFlags, Request, TransmissionFlags as Flags};

use crate::connection::{Connection, run};
use crate::handshake::{ConnectError, Negotiated, connect};
use crate::unflushed::Unflushed;

/// Maximum length of a request without data, in bytes: below the 32 bits of a compact header, and a multiple
/// of all block sizes.
const RANGE_BYTES_MAX: u64 = 1 << 30;

/// Address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A unix socket.
    Unix(PathBuf),
    /// A host and its port.
    Tcp(String, u16),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => path.display().fmt(f),
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
        }
    }
}

/// A disk of an NBD server. Dropping it closes the connection; pending requests fail.
pub struct NbdDisk(Arc<DiskState>);

/// State shared by the disk and its receiving thread.
pub(crate) struct DiskState {
    pub(crate) address: Address,
    pub(crate) tls: Option<ClientTls>,
    pub(crate) export: String,
    /// Result of the first negotiation; later ones must be equivalent.
    pub(crate) first: Negotiated,
    /// Event that wakes the receiving thread when the disk is dropped.
    pub(crate) wake: Arc<EventFd>,
    requests: Mutex<Requests>,
    closed: AtomicBool,
    closes: Condvar,
}

#[derive(Default)]
struct Requests {
    /// `None` while the disk reconnects, and once it is dropped.
    connection: Option<Arc<Connection>>,
    /// Pending requests by cookie, and so in the order in which they were made.
    pending: BTreeMap<u64, Pending>,
    next_cookie: u64,
    unflushed: Unflushed,
}

type Outcome = Result<Vec<Extent>, Status>;

/// A pending request, with all that is needed to send it again over a new connection.
pub(crate) struct Pending {
    request: Request,
    source: Source,
    /// Destination of a read.
    pub(crate) sink: Option<Sink>,
    /// Number of bytes of `sink` received so far.
    pub(crate) read_bytes: usize,
    /// Error that the server has reported so far, if any.
    pub(crate) status: Result<(), Status>,
    pub(crate) extents: Vec<Extent>,
    /// Number of changes acknowledged before the request; a flush makes these durable.
    change_count: u64,
    promise: Arc<Promise<Outcome>>,
}

impl Pending {
    /// Returns the memory for `len` bytes of data at this offset, and counts these bytes as received; `None`
    /// if the request did not ask for them.
    pub(crate) fn part(&mut self, offset: u64, len: usize) -> Option<Sink> {
        let mut part = self.sink.clone()?;
        let at = usize::try_from(offset.checked_sub(self.request.offset)?).ok()?;
        if at.checked_add(len)? > part.len() {
            return None;
        }
        part.advance(at);
        part.truncate(len);
        self.read_bytes += len;
        Some(part)
    }

    pub(crate) fn offset(&self) -> u64 {
        self.request.offset
    }

    /// Returns `true` for a change that may be lost until flushed.
    fn is_volatile_change(&self) -> bool {
        let changes = [Command::WRITE, Command::TRIM, Command::WRITE_ZEROES].contains(&self.request.command);
        changes && !self.request.flags.contains(CommandFlags::FUA)
    }
}

impl NbdDisk {
    /// Connects, blocking. With `tls`, unencrypted connections are refused.
    pub fn connect(
        address: Address,
        tls: Option<ClientTls>,
        export: &str,
    ) -> Result<Arc<Self>, ConnectError> {
        let (stream, first) = connect(&address, tls.as_ref(), export)?;
        Self::over(stream, first, address, tls, export)
    }

    /// Starts the disk's thread over a connection.
    fn over(
        stream: Stream,
        first: Negotiated,
        address: Address,
        tls: Option<ClientTls>,
        export: &str,
    ) -> Result<Arc<Self>, ConnectError> {
        let connection = Arc::new(Connection::new(stream));
        let requests = Requests { connection: Some(connection.clone()), ..Requests::default() };
        let shared = Arc::new(DiskState {
            address,
            tls,
            export: export.to_owned(),
            first,
            wake: Arc::new(EventFd::new().map_err(std::io::Error::from)?),
            requests: Mutex::new(requests),
            closed: AtomicBool::new(false),
            closes: Condvar::new(),
        });
        let of_thread = shared.clone();
        thread::Builder::new().name("nbd-client".into()).spawn(move || {
            run(&of_thread, connection, first);
            of_thread.fail_all();
        })?;
        Ok(Arc::new(Self(shared)))
    }

    /// Splits a range into requests of at most `piece_bytes`, sent concurrently; answered when all are done.
    fn in_pieces(
        &self,
        range: Range,
        piece_bytes: u64,
        mut send: impl FnMut(&DiskState, Range) -> Sent,
    ) -> Answer<()> {
        let mut sent = Vec::with_capacity(1);
        let mut at = range.offset;
        while at < range.end() {
            let piece = Range { offset: at, len_bytes: (range.end() - at).min(piece_bytes) };
            sent.push(send(&self.0, piece));
            at = piece.end();
        }
        Answer::later(async move {
            let mut outcome = Ok(());
            for piece in sent {
                // Wait for all: the caller's memory is in use until then.
                let result = piece.kept().await;
                outcome = outcome.and(result.map(drop));
            }
            outcome.or_else(from_status)
        })
    }

    /// Refuses requests beyond the end, and changes to a read-only disk.
    fn check(&self, range: Range, changes: bool) -> Result<(), Error> {
        match range.checked_end() {
            _ if changes && self.0.first.has(Flags::READ_ONLY) => Err(Error::ReadOnly),
            Some(end) if end <= self.geometry().size_bytes => Ok(()),
            _ => Err(Error::InvalidArgument),
        }
    }

    /// Clips a range to the server's size, which the disk's size exceeds if the last block is incomplete. The
    /// missing bytes read as zeroes.
    fn at_server(&self, range: Range) -> Range {
        let end = range.end().min(self.0.first.size_bytes);
        Range { len_bytes: end.saturating_sub(range.offset), ..range }
    }

    fn payload_max(&self) -> u64 {
        u64::from(self.0.first.sizes.payload_max)
    }

    /// Makes a change. A stable one is made with FUA, or followed by a flush if the server does not support
    /// FUA.
    fn change(&self, stability: Stability, change: impl FnOnce(CommandFlags) -> Answer<()>) -> Answer<()> {
        let shared = self.0.clone();
        match (stability >= Stability::DataSync, self.0.first.has(Flags::SEND_FUA)) {
            (false, _) => change(CommandFlags::empty()),
            (true, true) => change(CommandFlags::FUA),
            (true, false) => change(CommandFlags::empty()).then(move |()| shared.flush()),
        }
    }
}

impl Drop for NbdDisk {
    fn drop(&mut self) {
        let connection = {
            let mut requests = lock(&self.0.requests);
            // Set under the lock, so that the receiving thread, if about to sleep, sees the flag or is woken.
            self.0.closed.store(true, Ordering::SeqCst);
            requests.connection.take()
        };
        self.0.wake.notify();
        self.0.closes.notify_all();
        if let Some(connection) = connection {
            let leave = Request {
                flags: CommandFlags::empty(),
                command: Command::DISC,
                cookie: 0,
                offset: 0,
                len_bytes: 0,
            };
            connection.queue.push(self.0.message(&leave, &Source::new()));
            connection.flush();
            connection.shut_down();
        }
    }
}

type Sent = Arc<Promise<Outcome>>;

impl DiskState {
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Sleeps for `pause`, or until the disk is dropped.
    pub(crate) fn sleep(&self, pause: Duration) {
        let requests = lock(&self.requests);
        if !self.is_closed() {
            drop(self.closes.wait_timeout(requests, pause).unwrap_or_else(PoisonError::into_inner));
        }
    }

    fn send(
        &self,
        command: Command,
        flags: CommandFlags,
        range: Range,
        source: Source,
        sink: Option<Sink>,
    ) -> Sent {
        let promise = Sent::default();
        let connection = {
            let mut requests = lock(&self.requests);
            requests.next_cookie += 1;
            let cookie = requests.next_cookie;
            let request =
                Request { flags, command, cookie, offset: range.offset, len_bytes: range.len_bytes };
            let change_count = requests.unflushed.answered();
            let pending = Pending {
                request,
                source,
                sink,
                read_bytes: 0,
                status: Ok(()),
                extents: Vec::new(),
                change_count,
                promise: promise.clone(),
            };
            let connection = requests.connection.clone();
            if let Some(connection) = &connection {
                // Queued under the lock under which the request becomes pending: `connected`, which sends all
                // pending requests, takes the lock too, so each connection gets the request once.
                connection.queue.push(self.message(&request, &pending.source));
            }
            requests.pending.insert(cookie, pending);
            connection
        };
        if self.is_closed() {
            self.fail_all();
        } else if let Some(connection) = connection {
            connection.flush();
        }
        promise
    }

    fn message(&self, request: &Request, source: &Source) -> Message<()> {
        let mut head = Vec::with_capacity(32);
        request.encode(self.first.header_style(), &mut head);
        Message { head, data: source.clone(), held: () }
    }

    fn flush(self: &Arc<Self>) -> Answer<()> {
        if lock(&self.requests).unflushed.take_loss() {
            return Answer::err(lost());
        }
        if !self.first.has(Flags::SEND_FLUSH) {
            return Answer::ok(());
        }
        let nothing = Range { offset: 0, len_bytes: 0 };
        let sent = self.send(Command::FLUSH, CommandFlags::empty(), nothing, Source::new(), None);
        let shared = self.clone();
        Answer::later(async move {
            let outcome = sent.kept().await;
            // The flush may have been sent again over another connection, to a server that has lost the
            // changes.
            if lock(&shared.requests).unflushed.take_loss() {
                return Err(lost());
            }
            outcome.map(drop).or_else(from_status)
        })
    }

    /// Calls `change` with a pending request; `None` if there is none with this cookie.
    pub(crate) fn with<T>(&self, cookie: u64, change: impl FnOnce(&mut Pending) -> T) -> Option<T> {
        lock(&self.requests).pending.get_mut(&cookie).map(change)
    }

    /// Completes a request; `None` if it does not exist. A read whose data are incomplete fails.
    pub(crate) fn finish(&self, cookie: u64) -> Option<()> {
        let pending = {
            let mut requests = lock(&self.requests);
            let mut pending = requests.pending.remove(&cookie)?;
            if pending.sink.as_ref().is_some_and(|sink| sink.len() != pending.read_bytes) {
                pending.status = pending.status.and(Err(Status::Io));
            }
            match pending.status {
                Ok(()) if pending.request.command == Command::FLUSH => {
                    requests.unflushed.flushed(pending.change_count)
                }
                Ok(()) if self.first.has(Flags::SEND_FLUSH) && pending.is_volatile_change() => {
                    requests.unflushed.changed()
                }
                _ => {}
            }
            pending
        };
        let Pending { promise, status, extents, source, sink, .. } = pending;
        // Dropped before the answer, after which the caller may reuse the memory.
        drop((source, sink));
        promise.keep(status.map(|()| extents));
        Some(())
    }

    pub(crate) fn connection_lost(&self) {
        let mut requests = lock(&self.requests);
        if let Some(connection) = requests.connection.take() {
            connection.queue.clear();
        }
        requests.unflushed.connection_lost();
    }

    /// Sends all pending requests again, in their original order.
    pub(crate) fn connected(&self, connection: &Arc<Connection>) {
        let mut requests = lock(&self.requests);
        if self.is_closed() {
            return;
        }
        for pending in requests.pending.values_mut() {
            (pending.status, pending.extents, pending.read_bytes) = (Ok(()), Vec::new(), 0);
            connection.queue.push(self.message(&pending.request, &pending.source));
        }
        requests.connection = Some(connection.clone());
        drop(requests);
        connection.flush();
    }

    /// Fails all pending requests, because the disk was closed or its thread has ended.
    fn fail_all(&self) {
        let pending = std::mem::take(&mut lock(&self.requests).pending);
        pending.into_values().for_each(|pending| pending.promise.keep(Err(Status::Shutdown)));
    }
}

fn lost() -> Error {
    Error::io("the connection was lost with unflushed changes, some of which the server may have lost")
}

impl BlockDevice for NbdDisk {
    fn profile(&self) -> Profile {
        self.0.first.profile()
    }

    fn geometry(&self) -> Geometry {
        self.0.first.geometry()
    }

    fn read(&self, _cx: &Ctx, offset: u64, mut into: Sink) -> Answer<()> {
        let range = Range { offset, len_bytes: into.len() as u64 };
        or_answer!(self.check(range, false));
        let range = self.at_server(range);
        let padding = into.split_off(range.len_bytes as usize);
        padding.zero(0, padding.len());
        self.in_pieces(range, self.payload_max(), |shared, piece| {
            let rest = into.split_off(piece.len_bytes as usize);
            let part = std::mem::replace(&mut into, rest);
            shared.send(Command::READ, CommandFlags::empty(), piece, Source::new(), Some(part))
        })
    }

    fn write(&self, _cx: &Ctx, offset: u64, stability: Stability, mut from: Source) -> Answer<()> {
        let range = Range { offset, len_bytes: from.len() as u64 };
        or_answer!(self.check(range, true));
        let range = self.at_server(range);
        let padding = from.split_off(range.len_bytes as usize);
        if padding.to_vec(padding.len()).iter().any(|byte| *byte != 0) {
            return Answer::err(Error::NoSpace);
        }
        self.change(stability, |flags| {
            self.in_pieces(range, self.payload_max(), |shared, piece| {
                let rest = from.split_off(piece.len_bytes as usize);
                let part = std::mem::replace(&mut from, rest);
                let extended = shared.first.header_style() == tombolo_wire_nbd::HeaderStyle::Extended;
                let flags = if extended { flags | CommandFlags::PAYLOAD_LEN } else { flags };
                shared.send(Command::WRITE, flags, piece, part, None)
            })
        })
    }

    fn flush(&self, _cx: &Ctx) -> Answer<()> {
        self.0.flush()
    }

    fn discard(&self, _cx: &Ctx, range: Range) -> Answer<()> {
        or_answer!(self.check(range, true));
        if !self.0.first.has(Flags::SEND_TRIM) {
            return Answer::ok(());
        }
        self.in_pieces(self.at_server(range), RANGE_BYTES_MAX, |shared, piece| {
            shared.send(Command::TRIM, CommandFlags::empty(), piece, Source::new(), None)
        })
    }

    fn write_zeroes(&self, cx: &Ctx, range: Range, how: Zeroing) -> Answer<()> {
        or_answer!(self.check(range, true));
        if self.0.first.has(Flags::SEND_WRITE_ZEROES) {
            if how.only_fast && !self.0.first.has(Flags::SEND_FAST_ZERO) {
                return Answer::err(Error::NotSupported);
            }
            return self.change(how.stability, |mut flags| {
                flags.set(CommandFlags::NO_HOLE, !how.may_unmap);
                flags.set(CommandFlags::FAST_ZERO, how.only_fast);
                self.in_pieces(self.at_server(range), RANGE_BYTES_MAX, |shared, piece| {
                    shared.send(Command::WRITE_ZEROES, flags, piece, Source::new(), None)
                })
            });
        }
        if how.only_fast {
            return Answer::err(Error::NotSupported);
        }
        // One buffer of zeroes, repeated.
        let page = Region::from(vec![0; 64 << 10]);
        let Ok(len) = usize::try_from(range.len_bytes) else { return Answer::err(Error::InvalidArgument) };
        let mut zeroes = Source::new();
        while zeroes.len() < len {
            let part = (len - zeroes.len()).min(page.len());
            if zeroes.push(&page, 0, part).is_err() {
                return Answer::err(Error::InvalidArgument);
            }
        }
        self.write(cx, range.offset, how.stability, zeroes)
    }

    fn extents(&self, _cx: &Ctx, range: Range, count_max: usize) -> Answer<Extents> {
        or_answer!(self.check(range, false));
        let mut extents = Extents::new(range, count_max);
        let theirs = self.at_server(range);
        if self.0.first.context.is_none() || theirs.len_bytes == 0 {
            // Reported as data: the server reports no allocation, or the range is beyond the server's end.
            extents.push(range.len_bytes, Allocation::Data);
            return Answer::ok(extents);
        }
        let requested = Range { len_bytes: theirs.len_bytes.min(RANGE_BYTES_MAX), ..range };
        let mut flags = CommandFlags::empty();
        flags.set(CommandFlags::REQ_ONE, count_max == 1);
        let sent = self.0.send(Command::BLOCK_STATUS, flags, requested, Source::new(), None);
        Answer::later(async move {
            match sent.kept().await {
                Ok(found) if found.is_empty() => return Err(Error::io("the server reported no extents")),
                Ok(found) => {
                    let _ = found.iter().all(|extent| extents.push(extent.len_bytes, extent.allocation));
                    // The part beyond the server's end is treated like the last extent.
                    if let Some(last) = found.last().filter(|_| extents.next_offset() == theirs.end()) {
                        extents.push(range.end() - theirs.end(), last.allocation);
                    }
                }
                Err(status) => from_status(status)?,
            }
            Ok(extents)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::net::TcpListener;
    use std::sync::mpsc;

    use tombolo_wire_nbd::{BlockSizes, ReplyStyle};

    use super::*;

    #[test]
    fn disk_whose_receiver_cannot_be_created_reconnects() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address =
            Address::Tcp("127.0.0.1".to_owned(), listener.local_addr().expect("its address").port());
        let sizes = BlockSizes { minimum: 512, preferred: 4096, payload_max: 1 << 20 };
        let (style, flags) = (ReplyStyle::Simple, Flags::empty());
        let first = Negotiated { style, context: None, flags, size_bytes: 4096, sizes };
        // epoll_ctl(2) refuses this file.
        let unsuitable = Stream::new(File::open("/dev/null").expect("open").into());
        let (accepted, is_accepted) = mpsc::channel();
        thread::spawn(move || accepted.send(listener.accept().is_ok()));
        let disk = NbdDisk::over(unsuitable, first, address, None, "").expect("a thread");
        assert_eq!(is_accepted.recv_timeout(Duration::from_secs(20)), Ok(true));
        drop(disk);
    }
}
