//! Fixed messages, at least one of every kind, from which `tests/corpus/v1.txt` was recorded.

use tombolo_core::fs::*;
use tombolo_core::*;
use tombolo_wire_vrpc::*;

pub const HEADER: Header = Header {
    sequence: 0x1122_3344_5566_7788,
    caller: CallerId(0x0102),
    want: Want::CHANGE_ATTRS,
    handles: false,
    quiet: false,
};
const PLAIN: Header =
    Header { sequence: 1, caller: CallerId(0), want: Want::empty(), handles: false, quiet: false };

const NODE: NodeId = NodeId(0xa1a2_a3a4_a5a6_a7a8);
const OTHER: NodeId = NodeId(0xb1b2_b3b4_b5b6_b7b8);
const FILE: File = File { node: NODE, open: OpenId(0xc1c2_c3c4_c5c6_c7c8) };
const TARGET: File = File { node: OTHER, open: OpenId(0xd1d2_d3d4_d5d6_d7d8) };
const OFFSET: u64 = 0x0102_0304_0506_0708;
const MODE: NewMode = NewMode { mode: Mode::new(0o4755), umask: Mode::new(0o022) };
const LOCK: Lock = Lock {
    family: LockFamily::Posix,
    kind: LockKind::Write,
    range: LockRange { start: 5, last: u64::MAX },
    owner: LockOwner(0xe1e2_e3e4_e5e6_e7e8),
    pid: 4242,
};

fn name(bytes: &'static [u8]) -> Name<'static> {
    Name::new(bytes).unwrap()
}

fn acl() -> XattrName<'static> {
    XattrName::new(b"system.posix_acl_access").unwrap()
}

fn time(secs: i64, nanos: u32) -> Timestamp {
    Timestamp { secs, nanos }
}

fn reference(address: u64, len_bytes: u32) -> Reference {
    Reference::new(address, len_bytes).unwrap()
}

fn list() -> References<'static> {
    let list = vec![reference(0x0001_0000_0000_2000, 0x1000), reference(0x0001_0000_0000_8000, 0x234)];
    References::new(list.leak()).unwrap()
}

fn one() -> Reference {
    reference(0x0001_0000_0001_0040, 0x10000)
}

/// Returns a name of maximum length.
fn long_name() -> Name<'static> {
    Name::new(&[b'n'; NAME_MAX]).unwrap()
}

pub fn requests() -> Vec<(Header, Request<'static>)> {
    let all = [name_requests(), file_requests(), group_requests()].into_iter().flatten();
    let with_header = |request| match request {
        Request::Open { .. } => (Header { want: Want::all(), ..HEADER }, request),
        _ => (HEADER, request),
    };
    session_requests().into_iter().chain(all.map(with_header)).collect()
}

/// Returns the first request of this kind.
pub fn first(kind: Kind) -> (Header, Request<'static>) {
    requests().into_iter().find(|(_, request)| request.kind() == kind).expect("one of every kind")
}

fn session_requests() -> Vec<(Header, Request<'static>)> {
    vec![
        (PLAIN, Request::Null),
        (HEADER, Request::Null),
        (PLAIN, Request::Profile),
        (HEADER, Request::Caller { uid: 1000, gid: 100, groups: Groups::new(&[]) }),
        (HEADER, Request::Caller { uid: u32::MAX, gid: 1, groups: Groups::new(&[4, 24, 0x8000_0001]) }),
        (PLAIN, Request::Interrupt { id: 0xf1f2_f3f4 }),
        (PLAIN, Request::Forget { forgets: Forgets::one(NODE, 3) }),
        (PLAIN, Request::Forget { forgets: Forgets::new(&[(NODE, 1), (OTHER, u64::MAX), (NodeId(2), 0)]) }),
    ]
}

fn name_requests() -> Vec<Request<'static>> {
    let set = SetAttr {
        mode: Some(Mode::new(0o1777)),
        uid: Some(7),
        gid: Some(8),
        size: Some(1 << 40),
        atime: Some(SetTime::Now),
        mtime: Some(SetTime::At(time(-1, 999_999_999))),
        guard_ctime: Some(time(5, 6)),
        kill_privileges: true,
    };
    let create = Create {
        mode: MODE,
        flags: OpenFlags::READ | OpenFlags::WRITE | OpenFlags::KILL_PRIVILEGES,
        exclusive: Exclusive::Verifier(*b"verifier"),
    };
    let short = name(b"exactly 27 bytes in a name!");
    let device = Device { major: 8, minor: 17 };
    vec![
        Request::Lookup { parent: NODE, name: name(b"a") },
        Request::Lookup { parent: NODE, name: short },
        Request::Lookup { parent: NODE, name: name(b"one byte too long for a slot") },
        Request::Lookup { parent: NODE, name: long_name() },
        Request::Setattr { node: NODE, open: Some(FILE.open), set },
        Request::Setattr { node: NODE, open: None, set: SetAttr::default() },
        Request::Access { node: NODE, mask: AccessMask::READ | AccessMask::EXECUTE },
        Request::Readlink { node: NODE, destination: Destination::Inline { len_bytes: 4096 } },
        Request::Create { parent: NODE, name: name(b"new"), how: create },
        Request::Create { parent: NODE, name: long_name(), how: Create::default() },
        Request::CreateUnnamed {
            parent: NODE,
            how: Create { exclusive: Exclusive::Yes, ..Create::default() },
        },
        Request::Mkdir { parent: NODE, name: name(b"dir"), mode: MODE },
        Request::Symlink { parent: NODE, name: name(b"link"), target: Data::Inline(b"../to") },
        Request::Symlink { parent: NODE, name: long_name(), target: Data::One(one()) },
        Request::Mknod {
            parent: NODE,
            name: name(b"sda1"),
            file_type: FileType::BlockDevice,
            mode: MODE,
            rdev: device,
        },
        Request::Link { node: OTHER, parent: NODE, name: name(b"second") },
        Request::Unlink { parent: NODE, name: name(b"old") },
        Request::Unlink { parent: NODE, name: long_name() },
        Request::Rmdir { parent: NODE, name: name(b"dir") },
        Request::Rename {
            from_parent: NODE,
            from: name(b"from"),
            to_parent: OTHER,
            to: long_name(),
            flags: RenameFlags::NO_REPLACE,
        },
    ]
}

fn file_requests() -> Vec<Request<'static>> {
    let write = Write {
        offset: OFFSET,
        stability: Stability::FileSync,
        kill_privileges: true,
        in_place: true,
        retainable: false,
        by_owner: false,
    };
    let fuse = DirBudget { size_bytes: 65_536, entry_bytes: 152, align: 8, plus: true };
    let nfs = DirBudget { size_bytes: 1_000, entry_bytes: 24, align: 4, plus: false };
    let readdir = |cookie, budget, destination| Request::Readdir { file: FILE, cookie, budget, destination };
    vec![
        Request::Getattr { node: NODE, open: None },
        Request::Getattr { node: NODE, open: Some(FILE.open) },
        Request::Open { node: NODE, flags: OpenFlags::all() },
        Request::Release { file: FILE },
        Request::Flush { file: FILE, owner: LOCK.owner },
        Request::Fsync { file: FILE, what: SyncScope::All },
        Request::Fsync { file: FILE, what: SyncScope::Data },
        Request::Read { file: FILE, offset: OFFSET, destination: Destination::Inline { len_bytes: 512 } },
        Request::Read { file: FILE, offset: OFFSET, destination: Destination::One(one()) },
        Request::Read { file: FILE, offset: OFFSET, destination: Destination::List(list()) },
        Request::Write { file: FILE, how: write, data: Data::Inline(b"a few bytes") },
        Request::Write { file: FILE, how: write, data: Data::One(one()) },
        Request::Write { file: FILE, how: Write::default(), data: Data::List(list()) },
        readdir(Cookie::START, fuse, Destination::One(one())),
        readdir(Cookie(9), nfs, Destination::Inline { len_bytes: 4096 }),
        readdir(Cookie(9), nfs, Destination::List(list())),
        Request::Statfs { node: NODE },
        Request::Syncfs,
    ]
}

fn group_requests() -> Vec<Request<'static>> {
    let small = Destination::Inline { len_bytes: 256 };
    let flock =
        Lock { family: LockFamily::Flock, kind: LockKind::Read, range: LockRange::ALL, pid: 0, ..LOCK };
    let set =
        |value, how, kill_set_gid| Request::XattrSet { node: NODE, name: acl(), value, how, kill_set_gid };
    let handle = HandleBytes { kind: -2, bytes: b"\x01\x02\x03\x04\x05\x06\x07\x08\x09" };
    vec![
        Request::XattrGet { node: NODE, name: acl(), destination: small },
        Request::XattrGet { node: NODE, name: acl(), destination: Destination::One(one()) },
        set(Data::Inline(b"value"), XattrSet::Create, true),
        set(Data::One(one()), XattrSet::Replace, false),
        set(Data::Inline(b""), XattrSet::Any, false),
        Request::XattrList { node: NODE, destination: small },
        Request::XattrRemove { node: NODE, name: acl() },
        Request::LockTest { file: FILE, lock: LOCK },
        Request::Lock { file: FILE, lock: LOCK, wait: false },
        Request::Lock { file: FILE, lock: flock, wait: true },
        Request::Unlock { file: FILE, family: LOCK.family, range: LOCK.range, owner: LOCK.owner },
        Request::HandleOf { node: NODE },
        Request::Resolve { handle },
        Request::Parent { node: NODE },
        Request::Allocate { file: FILE, offset: OFFSET, len_bytes: 1 << 33, mode: AllocateMode::all() },
        Request::Seek { file: FILE, offset: OFFSET, whence: Whence::Data },
        Request::Seek { file: FILE, offset: OFFSET, whence: Whence::Hole },
        Request::Copy { from: FILE, from_offset: OFFSET, to: TARGET, to_offset: 7, len_bytes: 1 << 33 },
    ]
}

pub fn attr() -> Attr {
    Attr {
        file_type: FileType::Regular,
        mode: Mode::new(0o4755),
        nlink: 2,
        uid: 3,
        gid: 4,
        size: 0x0506_0708_090a_0b0c,
        blocks: 13,
        block_size: 4096,
        rdev: Device { major: 14, minor: 15 },
        fsid: 16,
        fileid: 17,
        generation: 18,
        atime: time(19, 20),
        mtime: time(-21, 22),
        ctime: time(23, 999_999_999),
        btime: Some(time(25, 26)),
        volatile: false,
    }
}

pub fn replies() -> Vec<(Kind, Outcome<'static>)> {
    let failed = vec![(Kind::Lookup, Err(Status::NotFound)), (Kind::Read, Err(Status::Io))];
    [done_replies(), node_replies(), data_replies(), failed].concat()
}

fn done_replies() -> Vec<(Kind, Outcome<'static>)> {
    let profile = Profile {
        permission_check: PermissionCheck::BackEnd,
        read_only: true,
        name_max: 255,
        file_size_max: i64::MAX as u64,
        time_granularity_ns: 1,
        writes_by_owner: false,
    };
    let session = Session {
        profile,
        offers: Offers::XATTRS | Offers::RANGES,
        volume: Volume(*b"0123456789abcdef"),
        transfer_bytes_max: 1 << 20,
        callers_max: 256,
    };
    let done = [
        Kind::Null,
        Kind::Caller,
        Kind::Interrupt,
        Kind::Forget,
        Kind::Access,
        Kind::Release,
        Kind::Flush,
        Kind::Fsync,
        Kind::Syncfs,
        Kind::XattrSet,
        Kind::XattrRemove,
        Kind::Lock,
        Kind::Unlock,
        Kind::Allocate,
    ];
    let mut all: Vec<(Kind, Outcome<'static>)> = done.map(|kind| (kind, Ok(Reply::Done))).to_vec();
    all.push((Kind::Profile, Ok(Reply::Session(session))));
    all
}

fn node_replies() -> Vec<(Kind, Outcome<'static>)> {
    let before = WeakAttr { size: 1, mtime: time(2, 3), ctime: time(-4, 5) };
    let full = Change { before: Some(before), after: Some(attr()) };
    let after = Change { before: None, after: Some(attr()) };
    let dir = Attr { file_type: FileType::Directory, btime: None, ..attr() };
    let entry = Entry { node: NODE, attr: dir };
    let none = Change::default();
    let open = FILE.open;
    vec![
        (Kind::Lookup, Ok(Reply::Entry(entry, None))),
        (Kind::Resolve, Ok(Reply::Entry(entry, None))),
        (Kind::Parent, Ok(Reply::Entry(entry, None))),
        (Kind::Getattr, Ok(Reply::Attr(attr()))),
        (Kind::Setattr, Ok(Reply::Setattr(attr(), none))),
        (Kind::Setattr, Ok(Reply::Setattr(attr(), full))),
        (Kind::Mkdir, Ok(Reply::Made(Made { entry, dir: full }, None))),
        (Kind::Symlink, Ok(Reply::Made(Made { entry, dir: none }, None))),
        (Kind::Mknod, Ok(Reply::Made(Made { entry, dir: after }, None))),
        (Kind::Link, Ok(Reply::Made(Made { entry, dir: none }, None))),
        (Kind::Create, Ok(Reply::Created(Created { entry, open, dir: none }, None, false))),
        (Kind::CreateUnnamed, Ok(Reply::Created(Created { entry, open, dir: full }, None, false))),
        (Kind::Unlink, Ok(Reply::Change(none))),
        (Kind::Rmdir, Ok(Reply::Change(full))),
        (Kind::Rename, Ok(Reply::Renamed(Renamed { from_dir: full, to_dir: after }))),
        (Kind::Rename, Ok(Reply::Renamed(Renamed::default()))),
        (Kind::Open, Ok(Reply::Opened(Opened { open, attr: None }, false))),
        (Kind::Open, Ok(Reply::Opened(Opened { open, attr: Some(attr()) }, false))),
    ]
}

fn data_replies() -> Vec<(Kind, Outcome<'static>)> {
    let entry = Entry { node: NODE, attr: attr() };
    let unknown =
        DirEntry { name: b"unknown type", fileid: 3, file_type: None, cookie: Cookie(u64::MAX), entry: None };
    let listing = listing(&[(DOTS, None), (listed(&entry), None), (unknown, None)]);
    let change = Change { before: None, after: Some(attr()) };
    let written = Written { count: 0x1_0000, stability: Stability::DataSync, file: change };
    let stat = StatFs {
        block_size: 4096,
        blocks: 2,
        blocks_free: 3,
        blocks_available: 4,
        files: 5,
        files_free: 6,
        name_max: 255,
    };
    let placed = Returned::Placed { len_bytes: 0x1234 };
    vec![
        (Kind::Read, Ok(Reply::Read(placed, false))),
        (Kind::Read, Ok(Reply::Read(Returned::Inline(b"small data"), true))),
        (Kind::Read, Ok(Reply::Read(Returned::Inline(b""), true))),
        (Kind::Write, Ok(Reply::Written(written))),
        (Kind::Readdir, Ok(Reply::Readdir(Returned::Inline(listing), true))),
        (Kind::Readdir, Ok(Reply::Readdir(placed, false))),
        (Kind::Readlink, Ok(Reply::Bytes(Returned::Inline(b"../target")))),
        (Kind::XattrGet, Ok(Reply::Bytes(placed))),
        (Kind::XattrList, Ok(Reply::Bytes(Returned::Inline(b"user.a\0user.b\0")))),
        (Kind::Statfs, Ok(Reply::StatFs(stat))),
        (Kind::LockTest, Ok(Reply::Conflict(None))),
        (Kind::LockTest, Ok(Reply::Conflict(Some(LOCK)))),
        (Kind::HandleOf, Ok(Reply::Handle(HandleBytes { kind: 1, bytes: b"handle" }))),
        (Kind::Seek, Ok(Reply::Offset(OFFSET))),
        (Kind::Copy, Ok(Reply::Offset(1 << 33))),
    ]
}

pub const DOTS: DirEntry<'static> =
    DirEntry { name: b"..", fileid: 1, file_type: Some(FileType::Directory), cookie: Cookie(1), entry: None };

fn listed(entry: &Entry) -> DirEntry<'_> {
    DirEntry {
        name: b"file",
        fileid: 17,
        file_type: Some(FileType::Regular),
        cookie: Cookie(2),
        entry: Some(entry),
    }
}

/// Encodes the entries as a listing, with their handles.
pub fn listing(entries: &[(DirEntry<'_>, Option<HandleBytes<'_>>)]) -> &'static [u8] {
    let mut memory = vec![0; FRAME_BYTES];
    let mut frame = FrameBuf::new(&mut memory);
    let mut writer = listing::ListingWriter::new(&mut frame);
    assert!(entries.iter().all(|(entry, handle)| writer.push_with(entry, *handle)));
    frame.as_bytes().to_vec().leak()
}

/// Returns version 1's messages about the last name of a node, which kernels are notified of.
pub fn with_last_names() -> Both {
    let name = Name::new(b"a name").expect("a name").to_owned();
    let list = vec![Notice::Gone { node: NODE, name: Some((NodeId::ROOT, name)) }];
    let answer = Reply::Changes(OFFSET, NoticeList::new(list.leak()), true);
    (Vec::new(), vec![(Kind::Changes, Ok(answer))])
}

/// Returns version 1's messages about change notifications.
pub fn with_changes() -> Both {
    let name = |text: &'static str| Name::new(text.as_bytes()).expect("a name").to_owned();
    let list = vec![
        Notice::Attributes(NODE),
        Notice::Data { node: NODE, start: 7, last: u64::MAX },
        Notice::Name { dir: NODE, name: name("a name") },
        Notice::Gone { node: NODE, name: None },
        Notice::Everything,
    ];
    let answers = [(OFFSET, list, true), (1, vec![Notice::Everything], false)];
    let answers = answers.into_iter().map(|(last, list, is_complete)| {
        (Kind::Changes, Ok(Reply::Changes(last, NoticeList::new(list.leak()), is_complete)))
    });
    (vec![(HEADER, Request::Changes { since: OFFSET })], answers.collect())
}

/// Returns version 1's messages about versions of nodes.
pub fn with_versions() -> Both {
    let version = Version { epoch: 0xE0E1_E2E3_E4E5_E6E7, count: OFFSET, slot: 0xC0C1_C2C3 };
    let answers = [Some(version), None].map(|version| (Kind::Look, Ok(Reply::Looked(version, attr()))));
    (vec![(HEADER, Request::Look { node: NODE })], answers.into())
}

/// Returns version 1's messages about volatile files.
pub fn with_volatile() -> Both {
    let answers = [attr().btime, None].map(|btime| Attr { volatile: true, btime, ..attr() });
    (Vec::new(), answers.map(|attr| (Kind::Getattr, Ok(Reply::Attr(attr)))).into())
}

/// Returns version 1's quiet requests, and answers with prompt openings.
pub fn with_quiet() -> Both {
    let header = Header { quiet: true, ..HEADER };
    let how = Write { offset: OFFSET, ..Write::default() };
    let requests = vec![
        (header, Request::Write { file: FILE, how, data: Data::Inline(b"quiet") }),
        (header, Request::Release { file: FILE }),
    ];
    let (entry, open) = (Entry { node: NODE, attr: attr() }, FILE.open);
    let handle = HandleBytes { kind: 7, bytes: b"handle" };
    let created = Created { entry, open, dir: Change::default() };
    let answers = vec![
        (Kind::Create, Ok(Reply::Created(created, Some(handle), true))),
        (Kind::Open, Ok(Reply::Opened(Opened { open, attr: Some(attr()) }, true))),
    ];
    (requests, answers)
}

/// Requests, and answers.
pub type Both = (Vec<(Header, Request<'static>)>, Vec<(Kind, Outcome<'static>)>);

/// Returns requests for handles, and answers that contain them.
pub fn with_handles() -> Both {
    let header = Header { handles: true, ..HEADER };
    let requests = vec![
        (header, Request::Lookup { parent: NODE, name: name(b"a") }),
        (
            Header { want: Want::all(), ..header },
            Request::Mkdir { parent: NODE, name: name(b"a"), mode: MODE },
        ),
    ];
    let entry = Entry { node: NODE, attr: attr() };
    let handle = HandleBytes { kind: 1, bytes: b"twenty bytes of data" };
    let after = Change { before: None, after: Some(attr()) };
    let open = OpenId(0xc1c2_c3c4_c5c6_c7c8);
    let listed = listed(&entry);
    let dots = DirEntry { name: b"..", entry: None, ..listed };
    let listing = listing(&[(dots, None), (listed, Some(handle)), (listed, None)]);
    let replies = vec![
        (Kind::Lookup, Ok(Reply::Entry(entry, Some(handle)))),
        (Kind::Resolve, Ok(Reply::Entry(entry, Some(HandleBytes { kind: -1, bytes: b"" })))),
        (Kind::Mkdir, Ok(Reply::Made(Made { entry, dir: after }, Some(handle)))),
        (Kind::Create, Ok(Reply::Created(Created { entry, open, dir: after }, Some(handle), false))),
        (Kind::Readdir, Ok(Reply::Readdir(Returned::Inline(listing), true))),
    ];
    (requests, replies)
}
