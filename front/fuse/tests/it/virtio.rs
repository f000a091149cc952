//! The virtio-fs device, driven over its virtqueues by well-behaved and by malicious guests.

use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tempfile::TempDir;
use tombolo_back_memory::Memory;
use tombolo_core::fs::Export;
use tombolo_front_fuse::session::{Coherence, Options as SessionOptions};
use tombolo_front_fuse::virtio::{Options, VirtioFs};
use tombolo_host_vhost::{Device, Server, Settings};
use tombolo_vhost_driver::{Driver, DriverQueue, DriverSettings, GuestBuffer, request};
use tombolo_wire_fuse::init::Capabilities;
use tombolo_wire_fuse::layout::attr::{AttrOut, EntryOut, GetattrIn};
use tombolo_wire_fuse::layout::dir::{ForgetIn, MkdirIn};
use tombolo_wire_fuse::layout::header::{InHeader, OutHeader};
use tombolo_wire_fuse::layout::init::{InitIn, InitOut};
use tombolo_wire_fuse::layout::lock::{F_WRLCK, FileLock, LkIn, OFFSET_MAX};
use tombolo_wire_fuse::layout::open::{CreateIn, OpenIn, OpenOut, OpenOutFlags};
use tombolo_wire_fuse::layout::rw::{ReadIn, WriteIn, WriteOut};
use tombolo_wire_fuse::{Errno, Opcode};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const PATIENCE: Duration = Duration::from_secs(60);
const ROOT: u64 = 1;

/// A guest with a server of its own.
struct Guest {
    driver: Driver,
    queues: Vec<DriverQueue>,
    request: GuestBuffer,
    reply: GuestBuffer,
    unique: u64,
    _server: Server,
    _dir: TempDir,
}

impl Guest {
    /// Connects and begins the session.
    fn new() -> Guest {
        let mut guest = Guest::before_init();
        guest.init();
        guest
    }

    fn before_init() -> Guest {
        Guest::with(SessionOptions::default())
    }

    fn with(session: SessionOptions) -> Guest {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let export: Arc<dyn Export> = Arc::new(Memory::default());
        let ids = Arc::new(AtomicU64::new(1));
        let options = Options {
            tag: "tombolo".into(),
            request_queues: 2,
            label: "test".into(),
            session,
            is_kept: false,
        };
        let server = Server::start(
            UnixListener::bind(&path).unwrap(),
            Settings::default(),
            Box::new(move |_| {
                let device = VirtioFs::new(export.clone(), options.clone(), ids.clone())?;
                Ok(Arc::new(device) as Arc<dyn Device>)
            }),
        )
        .unwrap();
        let settings = DriverSettings { queues: 3, ..DriverSettings::default() };
        let (driver, mut queues) = Driver::connect(&path, settings).unwrap();
        let request = queues[1].alloc(1 << 20).unwrap();
        let reply = queues[1].alloc(1 << 20).unwrap();
        Guest { driver, queues, request, reply, unique: 2, _server: server, _dir: dir }
    }

    fn init(&mut self) {
        let init =
            InitIn { major: 7, minor: 36, flags: Capabilities::all().bits() as u32, ..Default::default() };
        let out: InitOut = self.call(Opcode::Init, 0, &[init.as_bytes()]).unwrap();
        assert_eq!((out.major, out.minor, out.max_write), (7, 36, 1 << 20));
    }

    /// Sends a request as raw bytes; returns the reply.
    fn raw(&mut self, request: &[u8], reply_bytes: u32) -> Vec<u8> {
        let queue = &mut self.queues[1];
        queue.write(self.request, request);
        let parts =
            [self.request.first(request.len() as u32).readable(), self.reply.first(reply_bytes).writable()];
        let head = queue.submit(&parts[..if reply_bytes == 0 { 1 } else { 2 }]).unwrap();
        let used = queue.wait_used(PATIENCE).unwrap();
        assert_eq!(used.head, head);
        let mut bytes = vec![0; used.written as usize];
        queue.read(self.reply, &mut bytes);
        bytes
    }

    fn encode(&mut self, opcode: Opcode, node: u64, parts: &[&[u8]]) -> Vec<u8> {
        let args = parts.concat();
        self.unique += 2;
        let len = u32::try_from(size_of::<InHeader>() + args.len()).unwrap();
        let header =
            InHeader { len, opcode: opcode as u32, unique: self.unique, nodeid: node, ..Default::default() };
        [header.as_bytes(), &args].concat()
    }

    /// Sends a request; returns the body of its reply, or the errno.
    fn ask(&mut self, opcode: Opcode, node: u64, parts: &[&[u8]]) -> Result<Vec<u8>, i32> {
        let request = self.encode(opcode, node, parts);
        let reply = self.raw(&request, self.reply.len);
        let (head, body) = OutHeader::read_from_prefix(&reply).unwrap();
        assert_eq!((head.len as usize, head.unique), (reply.len(), self.unique));
        if head.error == 0 { Ok(body.to_vec()) } else { Err(-head.error) }
    }

    fn call<T: FromBytes + KnownLayout + Immutable>(
        &mut self,
        opcode: Opcode,
        node: u64,
        parts: &[&[u8]],
    ) -> Result<T, i32> {
        self.ask(opcode, node, parts).map(|body| T::read_from_prefix(&body).unwrap().0)
    }

    fn create(&mut self, name: &[u8]) -> (EntryOut, OpenOut) {
        let how = CreateIn { flags: 2, mode: 0o100_644, ..Default::default() };
        let body = self.ask(Opcode::Create, ROOT, &[how.as_bytes(), name, b"\0"]).unwrap();
        let (entry, rest) = EntryOut::read_from_prefix(&body).unwrap();
        (entry, OpenOut::read_from_prefix(rest).unwrap().0)
    }
}

#[test]
fn the_guest_reads_tag_and_number_of_queues() {
    let mut guest = Guest::before_init();
    let config = guest.driver.config(0, 40).unwrap();
    assert_eq!(config.get(..8).unwrap(), b"tombolo\0");
    assert_eq!(config.get(36..40).unwrap(), 2u32.to_le_bytes());
}

/// Refuses to repeat requests: a repeated `mkdir` would fail, and node numbers belong to the process that
/// issued them.
#[test]
fn virtiofs_offers_no_in_flight_tracking() {
    const IN_FLIGHT: u64 = 1 << 12;
    let mut guest = Guest::before_init();
    let offered = guest.driver.front.ask_u64(request::GET_PROTOCOL_FEATURES).unwrap();
    assert_eq!(offered & IN_FLIGHT, 0);
}

#[test]
fn data_written_by_a_guest_comes_back_to_it() {
    let mut guest = Guest::new();
    let (entry, open) = guest.create(b"file");
    let data: Vec<u8> = (0..700_000u32).map(|number| (number % 251) as u8).collect();
    let write = WriteIn { fh: open.fh, offset: 5, size: data.len() as u32, ..Default::default() };
    let out: WriteOut = guest.call(Opcode::Write, entry.nodeid, &[write.as_bytes(), &data]).unwrap();
    assert_eq!(out.size as usize, data.len());
    let read = ReadIn { fh: open.fh, offset: 0, size: 1 << 19, ..Default::default() };
    let body = guest.ask(Opcode::Read, entry.nodeid, &[read.as_bytes()]).unwrap();
    assert_eq!(body.len(), 1 << 19);
    assert!(body[..5] == [0; 5] && body[5..] == data[..(1 << 19) - 5]);
    let attr: AttrOut =
        guest.call(Opcode::Getattr, entry.nodeid, &[GetattrIn::default().as_bytes()]).unwrap();
    assert_eq!(attr.attr.size as usize, data.len() + 5);
}

#[test]
fn listings_are_cached_under_always_only() {
    let kept = OpenOutFlags::CACHE_DIR | OpenOutFlags::KEEP_CACHE;
    for (coherence, flags) in [
        (Coherence::Strict, OpenOutFlags::empty()),
        (Coherence::Auto, OpenOutFlags::empty()),
        (Coherence::Always, kept),
    ] {
        let mut guest = Guest::with(SessionOptions { coherence, ..SessionOptions::default() });
        guest.init();
        let open: OpenOut = guest.call(Opcode::Opendir, ROOT, &[OpenIn::default().as_bytes()]).unwrap();
        assert_eq!(open.open_flags, flags.bits(), "{coherence:?}");
    }
}

/// Expects no ENOSYS, after which a kernel sends no more RELEASE, which releases flock locks and handles of
/// CREATE.
#[test]
fn every_policy_gets_a_release_after_open() {
    for coherence in [Coherence::Strict, Coherence::Auto, Coherence::Always] {
        let mut guest = Guest::with(SessionOptions { coherence, ..SessionOptions::default() });
        guest.init();
        let (entry, _) = guest.create(b"file");
        for (opcode, node) in [(Opcode::Open, entry.nodeid), (Opcode::Opendir, ROOT)] {
            let open: Result<OpenOut, i32> = guest.call(opcode, node, &[OpenIn::default().as_bytes()]);
            assert_ne!(open.unwrap().fh, 0, "{coherence:?} {opcode:?}");
        }
    }
}

#[test]
fn nothing_is_served_before_init() {
    let mut guest = Guest::before_init();
    let early = guest.call::<AttrOut>(Opcode::Getattr, ROOT, &[GetattrIn::default().as_bytes()]);
    assert_eq!(early.unwrap_err(), i32::from(Errno::EIO.number()));
    guest.init();
    guest.call::<AttrOut>(Opcode::Getattr, ROOT, &[GetattrIn::default().as_bytes()]).unwrap();
}

#[test]
fn remount_begins_a_session_without_old_nodes() {
    let mut guest = Guest::new();
    let (entry, _) = guest.create(b"file");
    guest.init();
    let stale = guest.call::<AttrOut>(Opcode::Getattr, entry.nodeid, &[GetattrIn::default().as_bytes()]);
    assert_eq!(stale.unwrap_err(), i32::from(Errno::ESTALE.number()));
    assert_eq!(guest.call::<EntryOut>(Opcode::Lookup, ROOT, &[b"file\0"]).unwrap().attr.nlink, 1);
}

#[test]
fn unknown_numbers_and_excess_forgets_are_harmless() {
    let mut guest = Guest::new();
    let (entry, open) = guest.create(b"file");
    for node in [0, 77, u64::MAX] {
        let answer = guest.call::<AttrOut>(Opcode::Getattr, node, &[GetattrIn::default().as_bytes()]);
        assert_eq!(answer.unwrap_err(), i32::from(Errno::ESTALE.number()), "node {node}");
        let read = ReadIn { fh: open.fh, size: 10, ..Default::default() };
        assert!(guest.ask(Opcode::Read, node, &[read.as_bytes()]).is_err());
    }
    for fh in [open.fh + 1, u64::MAX] {
        let read = ReadIn { fh, size: 10, ..Default::default() };
        assert!(guest.ask(Opcode::Read, entry.nodeid, &[read.as_bytes()]).is_err(), "handle {fh}");
    }
    for node in [entry.nodeid, ROOT, 77] {
        let request = guest.encode(Opcode::Forget, node, &[ForgetIn { nlookup: u64::MAX }.as_bytes()]);
        assert!(guest.raw(&request, 0).is_empty());
    }
    guest.call::<AttrOut>(Opcode::Getattr, ROOT, &[GetattrIn::default().as_bytes()]).unwrap();
    guest.call::<EntryOut>(Opcode::Lookup, ROOT, &[b"file\0"]).unwrap();
}

#[test]
fn reply_without_space_is_an_error() {
    let mut guest = Guest::new();
    for room in [1, 15, 16, 100] {
        let request = guest.encode(Opcode::Getattr, ROOT, &[GetattrIn::default().as_bytes()]);
        let reply = guest.raw(&request, room);
        assert!(reply.len() <= 16, "{room}: {reply:?}");
    }
    let (entry, _) = guest.create(b"file");
    let request = guest.encode(Opcode::Lookup, ROOT, &[b"file\0"]);
    guest.raw(&request, 20);
    assert_ne!(entry.nodeid, 0);
}

#[test]
fn malformed_fuse_request_fails_and_next_is_served() {
    // A header with this length, whatever follows.
    let message = |len, opcode, args: &[u8]| {
        let header =
            InHeader { len, opcode: opcode as u32, nodeid: ROOT, unique: 4711, ..Default::default() };
        [header.as_bytes(), args].concat()
    };
    let endless = WriteIn { size: u32::MAX - 80, ..Default::default() };
    let attacks: [(&str, Vec<u8>); 5] = [
        ("half a header", vec![0; 20]),
        ("a slash", message(47, Opcode::Lookup, b"../etc\0")),
        ("shorter than its arguments", message(44, Opcode::Getattr, &[0; 4])),
        ("longer than it is", message(56, Opcode::Getattr, &[0; 4])),
        ("as long as can be", message(u32::MAX, Opcode::Write, endless.as_bytes())),
    ];
    let mut guest = Guest::new();
    let (entry, open) = guest.create(b"file");
    for (what, bytes) in attacks {
        let reply = guest.raw(&bytes, 4096);
        match OutHeader::read_from_prefix(&reply) {
            Ok((head, _)) => assert_eq!((head.error, head.unique), (Errno::EINVAL.to_wire(), 4711), "{what}"),
            // No request number to reply to.
            Err(_) => assert!(reply.is_empty() && bytes.len() < size_of::<InHeader>(), "{what}"),
        }
        // Open files remain open.
        let asked = GetattrIn { getattr_flags: 1, fh: open.fh, ..Default::default() };
        guest.call::<AttrOut>(Opcode::Getattr, entry.nodeid, &[asked.as_bytes()]).expect(what);
    }
}

#[test]
fn unknown_fuse_operation_is_refused_and_next_is_served() {
    let mut guest = Guest::new();
    let mut request = guest.encode(Opcode::Getattr, ROOT, &[&[0; 16]]);
    request[4..8].copy_from_slice(&999u32.to_le_bytes());
    let reply = guest.raw(&request, 4096);
    assert_eq!(OutHeader::read_from_prefix(&reply).unwrap().0.error, Errno::ENOSYS.to_wire());
    guest.call::<AttrOut>(Opcode::Getattr, ROOT, &[GetattrIn::default().as_bytes()]).unwrap();
}

#[test]
fn lock_wait_does_not_delay_the_next_request() {
    let mut guest = Guest::new();
    let (entry, open) = guest.create(b"file");
    let lock = |owner| LkIn {
        fh: open.fh,
        owner,
        lk: FileLock { start: 0, end: OFFSET_MAX, kind: F_WRLCK, pid: 1 },
        ..Default::default()
    };
    guest.ask(Opcode::Setlk, entry.nodeid, &[lock(1).as_bytes()]).unwrap();
    let waiting = guest.encode(Opcode::Setlkw, entry.nodeid, &[lock(2).as_bytes()]);
    let other = guest.queues[1].alloc(4096).unwrap();
    let answer = guest.queues[1].alloc(4096).unwrap();
    guest.queues[1].write(other, &waiting);
    let parts = [other.first(waiting.len() as u32).readable(), answer.writable()];
    let head = guest.queues[1].submit(&parts).unwrap();
    // On the same queue, behind it.
    guest.call::<AttrOut>(Opcode::Getattr, ROOT, &[GetattrIn::default().as_bytes()]).unwrap();
    let mut unlock = lock(1);
    unlock.lk.kind = 2;
    let request = guest.encode(Opcode::Setlk, entry.nodeid, &[unlock.as_bytes()]);
    let queue = &mut guest.queues[1];
    queue.write(guest.request, &request);
    let parts = [guest.request.first(request.len() as u32).readable(), guest.reply.writable()];
    let unlocked = queue.submit(&parts).unwrap();
    let mut done = [queue.wait_used(PATIENCE).unwrap().head, queue.wait_used(PATIENCE).unwrap().head];
    done.sort_unstable();
    let mut both = [head, unlocked];
    both.sort_unstable();
    assert_eq!(done, both);
}

#[test]
fn guest_reset_interrupts_lock_waits() {
    let mut guest = Guest::new();
    let (entry, open) = guest.create(b"file");
    for (opcode, owner) in [(Opcode::Setlk, 1), (Opcode::Setlkw, 2)] {
        let lk = FileLock { start: 0, end: OFFSET_MAX, kind: F_WRLCK, pid: 1 };
        let lock = LkIn { fh: open.fh, owner, lk, ..Default::default() };
        let request = guest.encode(opcode, entry.nodeid, &[lock.as_bytes()]);
        let place = guest.queues[1].alloc(4096).unwrap();
        guest.queues[1].write(place, &request);
        let parts = [place.first(request.len() as u32).readable(), guest.reply.writable()];
        guest.queues[1].submit(&parts).unwrap();
        if opcode == Opcode::Setlk {
            guest.queues[1].wait_used(PATIENCE).unwrap();
        }
    }
    // The server has taken the earlier requests.
    guest.call::<AttrOut>(Opcode::Getattr, ROOT, &[GetattrIn::default().as_bytes()]).unwrap();
    let since = std::time::Instant::now();
    let base = guest.driver.stop_queue(1).unwrap();
    assert!(since.elapsed() < Settings::default().drain_timeout / 2);
    assert_eq!(guest.queues[1].used_index(), base, "all that was taken was answered");
}

#[test]
fn second_request_queue_makes_directories() {
    let mut guest = Guest::new();
    guest.queues.swap(1, 2);
    guest.request = guest.queues[1].alloc(4096).unwrap();
    guest.reply = guest.queues[1].alloc(4096).unwrap();
    let how = MkdirIn { mode: 0o755, umask: 0o22 };
    let made: EntryOut = guest.call(Opcode::Mkdir, ROOT, &[how.as_bytes(), b"dir\0"]).unwrap();
    assert_eq!(made.attr.mode, 0o040_755);
}
