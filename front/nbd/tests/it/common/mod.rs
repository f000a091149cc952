//! Memory disk with optional delays, its server, and a client for single messages.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use tempfile::TempDir;
use tombolo_core::block::{Allocation, BlockDevice, Extents, Geometry, Profile, Range, Zeroing};
use tombolo_core::{Answer, Ctx, Error, Stability};
use tombolo_front_nbd::{Exports, Listeners, Options, Server};
use tombolo_mem::{Sink, Source};
use tombolo_wire_nbd::status::Status;
use tombolo_wire_nbd::*;

pub const PAGE: usize = 4096;

/// A disk whose pages are allocated when written, with counters of calls.
pub struct Disk {
    pages: Mutex<Vec<Option<Box<[u8]>>>>,
    pub read_only: bool,
    pub panics: AtomicBool,
    pub flushes: AtomicUsize,
    pub durable_writes: AtomicUsize,
    /// While closed, reads are pending.
    gate: Arc<(Mutex<bool>, Condvar)>,
}

impl Disk {
    pub fn new(pages: usize) -> Self {
        Self {
            pages: Mutex::new(vec![None; pages]),
            read_only: false,
            panics: AtomicBool::new(false),
            flushes: AtomicUsize::new(0),
            durable_writes: AtomicUsize::new(0),
            gate: Arc::new((Mutex::new(true), Condvar::new())),
        }
    }

    pub fn open_gate(&self, open: bool) {
        *self.gate.0.lock().unwrap() = open;
        self.gate.1.notify_all();
    }

    pub fn bytes(&self) -> Vec<u8> {
        let pages = self.pages.lock().unwrap();
        pages.iter().flat_map(|page| page.as_deref().map_or(vec![0; PAGE], <[u8]>::to_vec)).collect()
    }

    fn store(&self, offset: u64, mut bytes: &[u8]) {
        let mut pages = self.pages.lock().unwrap();
        let mut at = offset as usize;
        while !bytes.is_empty() {
            let (here, rest) = bytes.split_at(bytes.len().min(PAGE - at % PAGE));
            let page = pages[at / PAGE].get_or_insert_with(|| vec![0; PAGE].into());
            page[at % PAGE..][..here.len()].copy_from_slice(here);
            (at, bytes) = (at + here.len(), rest);
        }
    }

    fn load(&self, offset: u64, len: usize) -> Vec<u8> {
        let (pages, start) = (self.pages.lock().unwrap(), offset as usize);
        let within = &pages[start / PAGE..(start + len).div_ceil(PAGE)];
        let all: Vec<u8> =
            within.iter().flat_map(|page| page.as_deref().map_or(vec![0; PAGE], <[u8]>::to_vec)).collect();
        all[start % PAGE..][..len].to_vec()
    }

    fn note(&self, stability: Stability) {
        if stability >= Stability::DataSync {
            self.durable_writes.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl BlockDevice for Disk {
    fn profile(&self) -> Profile {
        Profile { read_only: self.read_only, has_cache: true, discards: true, zeroes_fast: true }
    }

    fn geometry(&self) -> Geometry {
        Geometry::of_file((self.pages.lock().unwrap().len() * PAGE) as u64)
    }

    fn read(&self, _cx: &Ctx, offset: u64, into: Sink) -> Answer<()> {
        assert!(!self.panics.load(Ordering::SeqCst), "on purpose");
        let bytes = self.load(offset, into.len());
        if *self.gate.0.lock().unwrap() {
            into.write_at(0, &bytes);
            return Answer::ok(());
        }
        let gate = self.gate.clone();
        let (sender, mut receiver) = (Arc::new(Mutex::new((false, None::<std::task::Waker>))), None);
        let shared = sender.clone();
        std::thread::spawn(move || {
            let open = gate.1.wait_while(gate.0.lock().unwrap(), |open| !*open).unwrap();
            drop(open);
            into.write_at(0, &bytes);
            let mut state = sender.lock().unwrap();
            state.0 = true;
            let waker = state.1.take();
            drop(state);
            waker.into_iter().for_each(std::task::Waker::wake);
        });
        receiver.replace(shared);
        Answer::later(std::future::poll_fn(move |context| {
            let mut state = receiver.as_ref().unwrap().lock().unwrap();
            if state.0 {
                return std::task::Poll::Ready(Ok(()));
            }
            state.1 = Some(context.waker().clone());
            std::task::Poll::Pending
        }))
    }

    fn write(&self, _cx: &Ctx, offset: u64, stability: Stability, from: Source) -> Answer<()> {
        self.note(stability);
        self.store(offset, &from.to_vec(usize::MAX));
        Answer::ok(())
    }

    fn flush(&self, _cx: &Ctx) -> Answer<()> {
        self.flushes.fetch_add(1, Ordering::SeqCst);
        Answer::ok(())
    }

    fn discard(&self, cx: &Ctx, range: Range) -> Answer<()> {
        self.write_zeroes(cx, range, Zeroing { may_unmap: true, ..Zeroing::default() })
    }

    fn write_zeroes(&self, _cx: &Ctx, range: Range, how: Zeroing) -> Answer<()> {
        self.note(how.stability);
        self.store(range.offset, &vec![0; range.len_bytes as usize]);
        let whole = (range.offset as usize).div_ceil(PAGE)..(range.end() as usize / PAGE);
        if how.may_unmap && whole.start < whole.end {
            self.pages.lock().unwrap()[whole].fill(None);
        }
        Answer::ok(())
    }

    fn extents(&self, _cx: &Ctx, range: Range, count_max: usize) -> Answer<Extents> {
        let pages = self.pages.lock().unwrap();
        let mut extents = Extents::new(range, count_max);
        loop {
            let at = extents.next_offset() as usize;
            let Some(page) = pages.get(at / PAGE) else { break };
            let allocation = if page.is_some() { Allocation::Data } else { Allocation::Hole };
            if !extents.push((PAGE - at % PAGE) as u64, allocation) {
                break;
            }
        }
        if extents.as_slice().is_empty() { Answer::err(Error::io("nothing")) } else { Answer::ok(extents) }
    }
}

/// A server of one disk on a UNIX socket.
pub struct Served {
    pub disk: Arc<Disk>,
    pub server: Option<Server>,
    pub dir: TempDir,
}

impl Served {
    pub fn new(disk: Disk) -> Self {
        Self::with(disk, Options::default())
    }

    pub fn with(disk: Disk, options: Options) -> Self {
        let (dir, disk) = (tempfile::tempdir().unwrap(), Arc::new(disk));
        let mut listeners = Listeners::default();
        listeners.add_unix(&dir.path().join("s"), 0o600).unwrap();
        let mut exports = Exports::default();
        exports.add("disk", disk.clone());
        let server = Some(Server::start(listeners, exports, options).unwrap());
        Self { disk, server, dir }
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    pub fn url(&self) -> String {
        format!("nbd+unix:///disk?socket={}", self.socket().display())
    }

    /// Connects up to the transmission phase.
    pub fn client(&self, style: ReplyStyle) -> Client {
        let mut client = Client::greeted(&self.socket());
        match style {
            ReplyStyle::Simple => {}
            ReplyStyle::Structured => client.agree(OptionCode::STRUCTURED_REPLY),
            ReplyStyle::Extended => client.agree(OptionCode::EXTENDED_HEADERS),
        }
        if style != ReplyStyle::Simple {
            client.agree(OptionCode::SET_META_CONTEXT);
        }
        client.agree(OptionCode::GO);
        client.style = style;
        client
    }
}

/// A client that sends messages as directed by a test.
pub struct Client<S = UnixStream> {
    pub stream: S,
    pub style: ReplyStyle,
}

impl Client {
    pub fn connected(socket: &PathBuf) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Self { stream, style: ReplyStyle::Simple }
    }

    pub fn greeted(socket: &PathBuf) -> Self {
        let mut client = Self::connected(socket);
        client.greet();
        client
    }
}

impl<S: Read + Write> Client<S> {
    /// Receives the server's greeting and replies.
    pub fn greet(&mut self) {
        Greeting::decode(&self.array()).unwrap();
        let flags = ClientFlags::FIXED_NEWSTYLE | ClientFlags::NO_ZEROES;
        self.send(&flags.bits().to_be_bytes());
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Returns `true` if the server has closed the connection.
    pub fn is_closed(&mut self) -> bool {
        matches!(self.stream.read(&mut [0]), Ok(0))
            || matches!(self.stream.read(&mut [0]), Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset)
    }

    /// Sends an option about the disk. Returns `true` if it is not refused.
    pub fn option(&mut self, code: OptionCode) -> bool {
        let mut bytes = Vec::new();
        encode_option(&mut bytes, code, "disk");
        self.send(&bytes);
        loop {
            let head = OptionReplyHead::decode(&self.array()).unwrap();
            let data = self.bytes(head.data_bytes);
            match OptionReply::decode(&head, &data).unwrap() {
                OptionReply::Ack => return true,
                OptionReply::Refused(..) => return false,
                _ => {}
            }
        }
    }

    pub fn agree(&mut self, code: OptionCode) {
        assert!(self.option(code), "{code:?}");
    }

    pub fn header_style(&self) -> HeaderStyle {
        if self.style == ReplyStyle::Extended { HeaderStyle::Extended } else { HeaderStyle::Compact }
    }

    pub fn request(
        &mut self,
        cookie: u64,
        command: Command,
        flags: CommandFlags,
        range: (u64, u64),
        data: &[u8],
    ) {
        let flags = match self.style {
            ReplyStyle::Extended if command == Command::WRITE => flags | CommandFlags::PAYLOAD_LEN,
            _ => flags,
        };
        let mut bytes = Vec::new();
        let request = Request { flags, command, cookie, offset: range.0, len_bytes: range.1 };
        request.encode(self.header_style(), &mut bytes);
        bytes.extend(data);
        self.send(&bytes);
    }

    /// Receives a reply: cookie, status and payload. A successful simple reply has `data_bytes` of data.
    pub fn reply(&mut self, data_bytes: usize) -> (u64, Status, Vec<u8>) {
        let len = match self.style {
            ReplyStyle::Simple => 16,
            ReplyStyle::Structured => 20,
            ReplyStyle::Extended => 32,
        };
        let head = self.bytes(len);
        match ReplyHead::decode(self.style, &head).unwrap().unwrap().0 {
            ReplyHead::Simple { cookie, status: Status::Ok } => (cookie, Status::Ok, self.bytes(data_bytes)),
            ReplyHead::Simple { cookie, status } => (cookie, status, Vec::new()),
            ReplyHead::Chunk { cookie, kind, payload_bytes, .. } => {
                let payload = self.bytes(payload_bytes as usize);
                let status = if kind.is_error() { decode_error(&payload).unwrap() } else { Status::Ok };
                (cookie, status, payload)
            }
        }
    }
}
