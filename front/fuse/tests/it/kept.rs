//! Kill of the server right before it replies, at each request of a guest. The next process gets a copy of
//! the area and of the request log as of that moment, and the same request again.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tombolo_back_local_dir::{LocalDir, Options as DirOptions};
use tombolo_core::SessionId;
use tombolo_core::fs::{Client, Export, PermissionCheck};
use tombolo_host_vhost::FdStore;
use tombolo_layer_basic::delay;
use tombolo_layer_replies::{self as replies, Options as RepliesOptions};
use tombolo_mem::{Region, Sink, Source};
use tombolo_sys::packet;
use tombolo_wire_fuse::layout::attr::{AttrOut, EntryOut, GetattrIn, SetattrIn, SetattrValid};
use tombolo_wire_fuse::layout::dir::{ForgetIn, LinkIn, MkdirIn, RenameIn};
use tombolo_wire_fuse::layout::header::{InHeader, OutHeader};
use tombolo_wire_fuse::layout::init::InitIn;
use tombolo_wire_fuse::layout::open::{CreateIn, OpenIn, OpenOut, ReleaseIn};
use tombolo_wire_fuse::layout::rw::{ReadIn, WriteIn};
use tombolo_wire_fuse::layout::xattr::SetxattrIn;
use tombolo_wire_fuse::{Extent, Opcode};
use zerocopy::{FromBytes, IntoBytes};

use tombolo_front_fuse::persistent::{AREA_BYTES, Memory, PersistentFs};
use tombolo_front_fuse::session::{Exchange, Options, Session, Slot};

pub(crate) const O_RDWR: u32 = 2;
const O_TRUNC: u32 = 0o1000;
const O_APPEND: u32 = 0o2000;
const O_EXCL: u32 = 0o200;
/// Offset of the openings: 2²⁰ records of 32 bytes at the end.
const OPENINGS_AT: usize = AREA_BYTES - (32 << 20);
/// Length of each table's used part.
const COPIED: usize = 64 << 10;

/// State left by a process: area, request log, and descriptors at its keeper.
struct Left {
    area: Region,
    notes: PathBuf,
    keeper: Arc<Mutex<Keeper>>,
}

/// Keeper of descriptors (messages as in `host/vhost/src/fd_store.rs`: kind, presence of an owner, key).
#[derive(Default)]
struct Keeper {
    store: BTreeMap<Vec<u8>, OwnedFd>,
    socket: Option<OwnedFd>,
}

impl Keeper {
    /// Handles messages of the server.
    fn hear(&mut self) {
        let mut bytes = [0; 18];
        let Some(socket) = &self.socket else { return };
        while let Ok(packet) = packet::receive(socket, &mut bytes) {
            let Some((kind, key)) = bytes[..packet.len].split_first() else { break };
            match (kind, packet.descriptors.into_iter().next()) {
                (1, Some(descriptor)) => drop(self.store.insert(key.to_vec(), descriptor)),
                (2, None) => drop(self.store.remove(key)),
                (3, None) => self.store.clear(),
                said => panic!("{said:?}"),
            }
        }
    }

    fn copy(&mut self) -> Keeper {
        self.hear();
        let copy =
            |(key, store): (&Vec<u8>, &OwnedFd)| (key.clone(), store.try_clone().expect("a duplicate"));
        Keeper { store: self.store.iter().map(copy).collect(), socket: None }
    }

    /// Hands the stored descriptors over to a new server.
    fn greet(&mut self) -> FdStore {
        let (ours, theirs) = packet::pair().expect("a pair");
        for (key, store) in &self.store {
            packet::send(&ours, &[&[1], &key[..]].concat(), &[store.as_fd()]).expect("sent");
        }
        packet::send(&ours, &[&[4], &[0; 17][..]].concat(), &[]).expect("sent");
        self.socket = Some(ours);
        FdStore::new(theirs).expect("a store")
    }
}

fn new_area() -> Region {
    let memory = tombolo_sys::memfd::create("test", AREA_BYTES as u64).expect("memory");
    Region::map(memory, 0, AREA_BYTES).expect("mapped")
}

impl Left {
    fn new(dir: &Path) -> Left {
        Left { area: new_area(), notes: dir.join("notes-0"), keeper: Arc::default() }
    }

    /// Returns another reference to the same state.
    fn share(&self) -> Left {
        let Left { area, notes, keeper } = self;
        Left { area: area.clone(), notes: notes.clone(), keeper: Arc::clone(keeper) }
    }

    /// Copies the current state.
    fn copy(&self, to: &Path) -> Left {
        let area = new_area();
        for at in [0, OPENINGS_AT] {
            let mut bytes = vec![0; COPIED];
            self.area.read_at(at, &mut bytes).expect("inside");
            area.write_at(at, &bytes).expect("inside");
        }
        std::fs::copy(&self.notes, to).expect("a copy");
        let keeper = self.keeper.lock().expect("a keeper").copy();
        Left { area, notes: to.to_owned(), keeper: Arc::new(Mutex::new(keeper)) }
    }
}

/// A server process as far as this test needs one.
struct Process {
    session: Arc<Session>,
    left: Left,
}

impl Process {
    fn start(tree: &Path, left: Left, latency: Duration) -> Process {
        let bottom = Arc::new(LocalDir::open(tree, DirOptions::default()).expect("the tree"));
        let replies = replies::open(bottom, &RepliesOptions::default(), &left.notes).expect("the notes");
        let export: Arc<dyn Export> = match latency {
            Duration::ZERO => Arc::new(replies),
            latency => Arc::new(delay::over(Arc::new(replies), latency).expect("a timer")),
        };
        let client = Client { session: SessionId(1), label: "guest".into(), checks: PermissionCheck::Caller };
        let file_system = export.attach(&client).expect("attached");
        let store = left.keeper.lock().expect("a keeper").greet();
        let memory = Memory::new(left.area.clone(), Some(store), &*file_system).expect("its own area");
        let kept = PersistentFs::begin(file_system, &memory).expect("kept");
        Process { session: Session::persistent(SessionId(1), &kept, Options::default()), left }
    }
}

/// One request whose reply is inspected before the guest sees it.
struct Probe {
    payload: Source,
    space: Region,
    before_answer: Option<Box<dyn FnOnce() + Send>>,
    answer: Arc<Mutex<Option<Vec<u8>>>>,
}

impl Probe {
    fn answered(&mut self, bytes: Vec<u8>) {
        if let Some(before) = self.before_answer.take() {
            before();
            *self.answer.lock().expect("an answer") = Some(bytes);
        }
    }
}

impl Exchange for Probe {
    fn payload(&mut self, len_bytes: usize) -> Source {
        let mut payload = std::mem::take(&mut self.payload);
        payload.truncate(len_bytes);
        payload
    }

    fn reply_space(&mut self, len_bytes: usize) -> Sink {
        let mut space = Sink::from(&self.space);
        space.truncate(len_bytes);
        space
    }

    fn send(&mut self, reply: &[u8]) -> bool {
        self.answered(reply.to_vec());
        true
    }

    fn send_data(&mut self, header: &[u8], data_bytes: usize) -> bool {
        let mut data = vec![0; data_bytes];
        self.space.read_at(0, &mut data).expect("inside");
        self.answered([header, &data].concat());
        true
    }

    fn send_nothing(&mut self) {
        self.answered(Vec::new());
    }

    fn retire(self, _slot: Box<Slot>) {}
}

/// A request that was sent: its reply, and the state left by a process killed before it.
struct Sent {
    answer: Arc<Mutex<Option<Vec<u8>>>>,
    left: Arc<Mutex<Option<Left>>>,
}

impl Sent {
    fn wait(self) -> (Vec<u8>, Left) {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let found = self.answer.lock().expect("an answer").take();
            if let Some(found) = found {
                return (found, self.left.lock().expect("left").take().expect("a copy"));
            }
            assert!(Instant::now() < until, "no answer");
            std::thread::yield_now();
        }
    }
}

/// A guest whose server dies before each reply.
pub(crate) struct Guest {
    /// `None` between two processes.
    process: Option<Process>,
    pub(crate) tree: PathBuf,
    deaths: u32,
    unique: u64,
    dir: TempDir,
}

impl Guest {
    pub(crate) fn new() -> Guest {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let tree = dir.path().join("tree");
        std::fs::create_dir(&tree).expect("mkdir");
        let process = Process::start(&tree, Left::new(dir.path()), Duration::ZERO);
        let mut guest = Guest { process: Some(process), tree, deaths: 0, unique: 0, dir };
        let init = InitIn { major: 7, minor: 36, flags: u32::MAX, ..Default::default() };
        guest.ask(Opcode::Init, 0, &[init.as_bytes()]).expect("INIT");
        guest
    }

    /// Sends a request, and waits for its reply.
    fn send(&mut self, bytes: &[u8]) -> (Vec<u8>, Left) {
        self.submit(bytes).wait()
    }

    fn submit(&mut self, bytes: &[u8]) -> Sent {
        let (header, _) = InHeader::read_from_prefix(bytes).expect("a header");
        let private = Extent::of(&header).map_or(bytes.len(), |extent| extent.private_bytes);
        let (head, payload) = bytes.split_at(private);
        let mut slot = Box::<Slot>::default();
        slot.fill(head.len(), |place| place.copy_from_slice(head));
        self.deaths += 1;
        let to = self.dir.path().join(format!("notes-{}", self.deaths));
        let (left, kept) = (Arc::new(Mutex::new(None)), Arc::clone(&self.process().session));
        let (sent, now) = (Arc::clone(&left), self.process().left.share());
        let answer = Arc::new(Mutex::new(None));
        let probe = Probe {
            payload: Source::from(payload.to_vec()),
            space: Region::heap(64 << 10),
            before_answer: Some(Box::new(move || *sent.lock().expect("left") = Some(now.copy(&to)))),
            answer: Arc::clone(&answer),
        };
        drop(kept.handle(slot, probe));
        Sent { answer, left }
    }

    /// Ends the session, as a device does at another INIT.
    pub(crate) fn begin_anew(&mut self) {
        self.end();
        let mut left = self.process().left.share();
        left.notes.set_extension("anew");
        left.keeper.lock().expect("a keeper").hear();
        self.die(left);
    }

    pub(crate) fn end(&self) {
        self.process().session.end();
    }

    fn process(&self) -> &Process {
        self.process.as_ref().expect("a process")
    }

    /// Starts the next process with the state left; everything else of the previous one is closed.
    fn die(&mut self, left: Left) {
        self.process = None;
        self.process = Some(Process::start(&self.tree, left, Duration::ZERO));
    }

    /// Returns the number of descriptors at the keeper.
    pub(crate) fn held_elsewhere(&self) -> usize {
        self.process().left.keeper.lock().expect("a keeper").copy().store.len()
    }

    fn encode(&mut self, opcode: Opcode, node: u64, parts: &[&[u8]]) -> Vec<u8> {
        let args = parts.concat();
        self.unique += 2;
        let len = u32::try_from(size_of::<InHeader>() + args.len()).expect("short");
        let (opcode, unique) = (opcode as u32, self.unique);
        let header = InHeader { len, opcode, unique, nodeid: node, ..Default::default() };
        [header.as_bytes(), &args].concat()
    }

    /// Sends a look-up that is answered by the process that receives it.
    fn look_up_once(&mut self, name: &[u8]) -> u64 {
        let body = self.ask_once(Opcode::Lookup, 1, &[name]).expect("LOOKUP");
        EntryOut::read_from_prefix(&body).expect("an entry").0.nodeid
    }

    /// Sends a request that is answered by the process that receives it.
    pub(crate) fn ask_once(&mut self, opcode: Opcode, node: u64, parts: &[&[u8]]) -> Result<Vec<u8>, i32> {
        let bytes = self.encode(opcode, node, parts);
        body_of(&self.send(&bytes).0)
    }

    /// Sends a request that is answered by the next process.
    pub(crate) fn ask(&mut self, opcode: Opcode, node: u64, parts: &[&[u8]]) -> Result<Vec<u8>, i32> {
        let bytes = self.encode(opcode, node, parts);
        let (_, left) = self.send(&bytes);
        self.die(left);
        if opcode == Opcode::Init {
            self.begin_anew();
        }
        body_of(&self.send(&bytes).0)
    }

    pub(crate) fn entry(&mut self, opcode: Opcode, node: u64, how: &[u8], names: &[u8]) -> (u64, Vec<u8>) {
        let body =
            self.ask(opcode, node, &[how, names]).unwrap_or_else(|errno| panic!("{opcode:?}: {errno}"));
        let (entry, rest) = EntryOut::read_from_prefix(&body).expect("an entry");
        (entry.nodeid, rest.to_vec())
    }

    pub(crate) fn create(&mut self, name: &[u8]) -> (u64, u64) {
        let how = CreateIn { flags: O_RDWR | O_EXCL | O_APPEND, mode: 0o100_400, ..Default::default() };
        let (node, rest) = self.entry(Opcode::Create, 1, how.as_bytes(), name);
        (node, OpenOut::read_from_prefix(&rest).expect("an opening").0.fh)
    }

    pub(crate) fn write(&mut self, node: u64, fh: u64, data: &[u8]) {
        let write = WriteIn { fh, size: data.len() as u32, ..Default::default() };
        self.ask(Opcode::Write, node, &[write.as_bytes(), data]).expect("WRITE");
    }

    pub(crate) fn read(&mut self, node: u64, fh: u64) -> Vec<u8> {
        let read = ReadIn { fh, size: 4096, ..Default::default() };
        self.ask(Opcode::Read, node, &[read.as_bytes()]).expect("READ")
    }

    pub(crate) fn size(&mut self, node: u64) -> Result<u64, i32> {
        let body = self.ask(Opcode::Getattr, node, &[GetattrIn::default().as_bytes()])?;
        Ok(AttrOut::read_from_prefix(&body).expect("attributes").0.attr.size)
    }

    fn forget(&mut self, node: u64, nlookup: u64) {
        self.ask(Opcode::Forget, node, &[ForgetIn { nlookup }.as_bytes()]).expect("no answer");
    }
}

/// Returns the body of a reply, which FORGET does not have, or its errno.
fn body_of(answer: &[u8]) -> Result<Vec<u8>, i32> {
    if answer.is_empty() {
        return Ok(Vec::new());
    }
    let (head, body) = OutHeader::read_from_prefix(answer).expect("a reply");
    if head.error == 0 { Ok(body.to_vec()) } else { Err(-head.error) }
}

/// EEXIST, ENOENT.
const EXISTS: i32 = 17;
const ABSENT: i32 = 2;
/// ESTALE.
pub(crate) const STALE: i32 = 116;

#[test]
fn name_changes_execute_once_across_kills() {
    let mut guest = Guest::new();
    let how = MkdirIn { mode: 0o755, umask: 0 };
    let (dir, _) = guest.entry(Opcode::Mkdir, 1, how.as_bytes(), b"dir\0");
    assert_eq!(guest.ask(Opcode::Mkdir, 1, &[how.as_bytes(), b"dir\0"]), Err(EXISTS));
    let (inner, _) = guest.entry(Opcode::Mkdir, dir, how.as_bytes(), b"inner\0");
    guest.entry(Opcode::Symlink, dir, &[], b"link\0target\0");
    let (file, fh) = guest.create(b"file\0");
    let (again, _) = guest.entry(Opcode::Link, dir, LinkIn { oldnodeid: file }.as_bytes(), b"other\0");
    assert_eq!(again, file);
    guest.ask(Opcode::Rename, dir, &[RenameIn { newdir: 1 }.as_bytes(), b"other\0moved\0"]).expect("RENAME");
    assert_eq!(guest.entry(Opcode::Lookup, 1, &[], b"moved\0").0, file);
    guest.ask(Opcode::Unlink, 1, &[b"file\0"]).expect("UNLINK");
    assert_eq!(guest.ask(Opcode::Unlink, 1, &[b"file\0"]), Err(ABSENT));
    guest.ask(Opcode::Rmdir, dir, &[b"inner\0"]).expect("RMDIR");
    assert_eq!(guest.ask(Opcode::Rmdir, dir, &[b"inner\0"]), Err(ABSENT));
    assert_eq!(guest.size(inner), Err(STALE));
    for size in [3, 900, 0] {
        let set = SetattrIn { valid: SetattrValid::SIZE.bits(), size, ..Default::default() };
        guest.ask(Opcode::Setattr, file, &[set.as_bytes()]).expect("SETATTR");
        assert_eq!(guest.size(file), Ok(size));
    }
    guest.write(file, fh, b"once, ");
    guest.write(file, fh, b"and once");
    assert_eq!(std::fs::read(guest.tree.join("moved")).expect("data"), b"once, and once");
}

#[test]
fn node_survives_kills_until_forgotten() {
    let mut guest = Guest::new();
    let (node, fh) = guest.create(b"file\0");
    let release = ReleaseIn { fh, ..Default::default() };
    guest.ask(Opcode::Release, node, &[release.as_bytes()]).expect("RELEASE");
    for _ in 0..3 {
        assert_eq!(guest.entry(Opcode::Lookup, 1, &[], b"file\0").0, node);
    }
    // Each of the four may have been counted twice, and one FORGET been lost.
    guest.forget(node, 2);
    assert_eq!(guest.size(node), Ok(0));
    guest.forget(node, 1);
    assert_eq!(guest.size(node), Ok(0));
    // No more is retained than each kill can leave.
    guest.forget(node, 1 + 4);
    guest.forget(node, 3);
    assert_eq!(guest.size(node), Err(STALE));
    std::fs::remove_file(guest.tree.join("file")).expect("remove");
    std::fs::write(guest.tree.join("file"), b"another").expect("write");
    assert_ne!(guest.entry(Opcode::Lookup, 1, &[], b"file\0").0, node, "a number is not given twice");
}

#[test]
fn xattr_changes_execute_once_across_kills() {
    const NO_ATTRIBUTE: i32 = 61;
    let mut guest = Guest::new();
    let (node, _) = guest.create(b"file\0");
    let make = SetxattrIn { size: 4, flags: 1, ..Default::default() };
    let make: [&[u8]; 2] = [make.as_bytes(), b"user.test\0mine"];
    guest.ask(Opcode::Setxattr, node, &make).expect("SETXATTR");
    assert_eq!(guest.ask(Opcode::Setxattr, node, &make), Err(EXISTS));
    guest.ask(Opcode::Removexattr, node, &[b"user.test\0"]).expect("REMOVEXATTR");
    assert_eq!(guest.ask(Opcode::Removexattr, node, &[b"user.test\0"]), Err(NO_ATTRIBUTE));
}

/// Resolves a handle as a guest's kernel does in open_by_handle_at(2).
#[test]
fn forgotten_node_handle_resolves_in_next_process() {
    let mut guest = Guest::new();
    for name in ["file", "other"] {
        std::fs::write(guest.tree.join(name), name).expect("write");
    }
    let node = guest.look_up_once(b"file\0");
    guest.forget(node, 1);
    assert_eq!(guest.size(node), Err(STALE));
    assert_ne!(guest.look_up_once(b"other\0"), node, "a number is not given twice");
    for _ in 0..2 {
        assert_eq!(guest.entry(Opcode::Lookup, node, &[], b".\0").0, node);
        assert_eq!(guest.size(node), Ok(4));
        guest.forget(node, 2);
    }
    assert_eq!(guest.look_up_once(b"file\0"), node, "it is the same file");
    guest.forget(node, 1);
    std::fs::remove_file(guest.tree.join("file")).expect("remove");
    assert_eq!(guest.ask(Opcode::Lookup, node, &[b".\0"]), Err(STALE));
}

#[test]
fn look_ups_are_given_back_once() {
    let mut guest = Guest::new();
    std::fs::write(guest.tree.join("file"), b"data").expect("write");
    let node = guest.look_up_once(b"file\0");
    for _ in 1..4 {
        assert_eq!(guest.look_up_once(b"file\0"), node);
    }
    guest.forget(node, 1);
    guest.forget(node, 2);
    assert_eq!(guest.size(node), Ok(4));
    guest.forget(node, 1);
    assert_eq!(guest.size(node), Err(STALE));
}

#[test]
fn opening_survives_kills_and_ends_once() {
    let mut guest = Guest::new();
    let mut openings: Vec<(u64, u64, &[u8])> = Vec::new();
    for (name, data) in [(b"a\0", b"of a"), (b"b\0", b"of b"), (b"c\0", b"of c")] {
        let (node, fh) = guest.create(name);
        guest.write(node, fh, data);
        openings.push((node, fh, data));
    }
    for &(node, fh, data) in &openings {
        assert_eq!(guest.read(node, fh), data);
    }
    let (node, _, _) = openings[0];
    let open = OpenIn { flags: O_RDWR | O_TRUNC, open_flags: 0 };
    let body = guest.ask(Opcode::Open, node, &[open.as_bytes()]).expect("OPEN");
    let emptied = OpenOut::read_from_prefix(&body).expect("an opening").0.fh;
    guest.write(node, emptied, b"anew");
    assert_eq!(guest.read(node, emptied), b"anew");
    let in_use = |guest: &Guest| {
        let mut bytes = vec![0; COPIED];
        guest.process().left.area.read_at(OPENINGS_AT, &mut bytes).expect("inside");
        // The first word of a record is its node, and 0 while it is free.
        bytes.chunks_exact(32).filter(|record| record[..8] != [0; 8]).count()
    };
    assert_eq!(in_use(&guest), 4, "one for each request that opened");
    for (node, fh) in openings.iter().map(|(node, fh, _)| (*node, *fh)).chain([(node, emptied)]) {
        let release = ReleaseIn { fh, ..Default::default() };
        guest.ask(Opcode::Release, node, &[release.as_bytes()]).expect("RELEASE");
    }
    assert_eq!(in_use(&guest), 0);
}

#[test]
fn truncating_open_executes_once_across_kills() {
    let mut guest = Guest::new();
    let (node, fh) = guest.create(b"file\0");
    let open = OpenIn { flags: O_RDWR | O_TRUNC, open_flags: 0 };
    let create = CreateIn { flags: O_RDWR | O_TRUNC, mode: 0o100_600, ..Default::default() };
    let requests: [(Opcode, u64, &[&[u8]]); 2] =
        [(Opcode::Open, node, &[open.as_bytes()]), (Opcode::Create, 1, &[create.as_bytes(), b"file\0"])];
    for (opcode, on, parts) in requests {
        guest.write(node, fh, b"before");
        let bytes = guest.encode(opcode, on, parts);
        let area = guest.process().left.copy(&guest.dir.path().join("unused")).area;
        let (_, left) = guest.send(&bytes);
        // Killed after truncating the file, before recording the opening.
        guest.die(Left { area, ..left });
        assert_eq!(guest.size(node), Ok(0));
        guest.write(node, fh, b"since");
        let (_, left) = guest.send(&bytes);
        guest.die(left);
        assert_eq!(guest.read(node, fh), b"since", "{opcode:?}");
        let set = SetattrIn { valid: SetattrValid::SIZE.bits(), ..Default::default() };
        guest.ask(Opcode::Setattr, node, &[set.as_bytes()]).expect("SETATTR");
    }
}

/// The queues stop while the node is looked up; then its attributes would take as long again.
#[test]
fn queue_stop_interrupts_request_under_recovery() {
    const INTERRUPTED: i32 = 4;
    let mut guest = Guest::new();
    let (node, _) = guest.create(b"file\0");
    let left = guest.process().left.share();
    guest.process = None;
    guest.process = Some(Process::start(&guest.tree, left, Duration::from_secs(5)));
    let bytes = guest.encode(Opcode::Getattr, node, &[GetattrIn::default().as_bytes()]);
    let sent = guest.submit(&bytes);
    guest.process().session.interrupt_all();
    assert_eq!(body_of(&sent.wait().0), Err(INTERRUPTED));
}

#[test]
fn ended_session_leaves_nothing_to_the_next() {
    let mut guest = Guest::new();
    let (node, _) = guest.create(b"file\0");
    guest.begin_anew();
    assert!(!guest.process().session.is_ready());
    let init = InitIn { major: 7, minor: 36, flags: u32::MAX, ..Default::default() };
    guest.ask(Opcode::Init, 0, &[init.as_bytes()]).expect("INIT");
    assert_eq!(guest.size(node), Err(STALE));
}
