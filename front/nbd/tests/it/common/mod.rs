//! Memory disk with optional delays, its server, and a client for single messages.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tempfile::TempDir;
use tombolo_back_memory::MemoryDisk;
use tombolo_core::block::{BlockDevice, Extents, Geometry, Profile, Range, Zeroing};
use tombolo_core::{Answer, Ctx, SessionId, Stability};
use tombolo_front_nbd::{Exports, Listeners, Options, Server};
use tombolo_host_runtime::promise::Promise;
use tombolo_mem::{Buffer, Sink, Source};
use tombolo_wire_nbd::status::Status;
use tombolo_wire_nbd::*;

pub const PAGE: usize = 4096;
pub const NONE: CommandFlags = CommandFlags::empty();

/// A disk in memory with counters of calls.
pub struct Disk {
    inner: Arc<MemoryDisk>,
    pub read_only: bool,
    pub panics: AtomicBool,
    pub flushes: AtomicUsize,
    pub durable_writes: AtomicUsize,
    /// Until it is kept, reads are pending.
    gate: Mutex<Option<Arc<Promise<()>>>>,
}

impl Disk {
    pub fn new(pages: usize) -> Self {
        Self {
            inner: Arc::new(MemoryDisk::new((pages * PAGE) as u64).unwrap()),
            read_only: false,
            panics: AtomicBool::new(false),
            flushes: AtomicUsize::new(0),
            durable_writes: AtomicUsize::new(0),
            gate: Mutex::default(),
        }
    }

    pub fn open_gate(&self, open: bool) {
        let before = std::mem::replace(&mut *self.gate.lock().unwrap(), (!open).then(Arc::default));
        before.into_iter().for_each(|gate| gate.keep(()));
    }

    pub fn bytes(&self) -> Vec<u8> {
        let len = self.geometry().size_bytes as usize;
        let buffer = Buffer::new(len);
        self.inner.read(&Ctx::root(SessionId(0)), 0, buffer.sink(0..len)).wait().unwrap();
        buffer.source(0..len).to_vec(len)
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
        self.inner.geometry()
    }

    fn read(&self, cx: &Ctx, offset: u64, into: Sink) -> Answer<()> {
        assert!(!self.panics.load(Ordering::SeqCst), "on purpose");
        let Some(gate) = self.gate.lock().unwrap().clone() else { return self.inner.read(cx, offset, into) };
        let (inner, cx) = (self.inner.clone(), cx.clone());
        Answer::later(async move {
            gate.kept().await;
            inner.read(&cx, offset, into).resolve().await
        })
    }

    fn write(&self, cx: &Ctx, offset: u64, stability: Stability, from: Source) -> Answer<()> {
        self.note(stability);
        self.inner.write(cx, offset, stability, from)
    }

    fn flush(&self, _cx: &Ctx) -> Answer<()> {
        self.flushes.fetch_add(1, Ordering::SeqCst);
        Answer::ok(())
    }

    fn discard(&self, cx: &Ctx, range: Range) -> Answer<()> {
        self.inner.discard(cx, range)
    }

    fn write_zeroes(&self, cx: &Ctx, range: Range, how: Zeroing) -> Answer<()> {
        self.note(how.stability);
        self.inner.write_zeroes(cx, range, how)
    }

    fn extents(&self, cx: &Ctx, range: Range, count_max: usize) -> Answer<Extents> {
        self.inner.extents(cx, range, count_max)
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

    /// Sends a request, and returns status and payload of the reply to it.
    pub fn ask(
        &mut self,
        command: Command,
        flags: CommandFlags,
        range: (u64, u64),
        data: &[u8],
    ) -> (Status, Vec<u8>) {
        self.request(9, command, flags, range, data);
        let data_bytes = if command == Command::READ { range.1 as usize } else { 0 };
        let (cookie, status, payload) = self.reply(data_bytes);
        assert_eq!(cookie, 9);
        (status, payload)
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
