//! Arbitrary messages. Borrowed parts are leaked, because they must live as long as the test.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use tombolo_core::fs::*;
use tombolo_core::*;
use tombolo_wire_vrpc::*;

/// Draws the fields of a structure or a variant. Up to twelve can be drawn at a time: a semicolon begins
/// another group.
macro_rules! of {
    ($($path:ident)::+ { $($($field:ident: $from:expr),+);+ $(,)? }) => {
        ($(($($from,)+),)+).prop_map(|($(($($field,)+),)+)| $($path)::+ { $($($field,)+)+ })
    };
}

/// Draws the bits of flags.
macro_rules! bits {
    ($flags:ident: $bits:ty) => {
        any::<$bits>().prop_map($flags::from_bits_truncate)
    };
}

pub fn header() -> impl Strategy<Value = Header> {
    let caller = any::<u16>().prop_map(CallerId);
    let want = bits!(Want: u8);
    of!(Header {
        sequence: any::<u64>(),
        caller: caller,
        want: want,
        handles: any::<bool>(),
        quiet: any::<bool>()
    })
}

pub fn bytes(max: usize) -> impl Strategy<Value = &'static [u8]> {
    vec(any::<u8>(), 0..=max).prop_map(|bytes| &*bytes.leak())
}

pub fn name() -> impl Strategy<Value = Name<'static>> {
    let len = prop_oneof![1usize..40, Just(NAME_MAX)];
    len.prop_flat_map(|len| vec(1u8.., len)).prop_filter_map("a name", |bytes| Name::new(bytes.leak()).ok())
}

fn xattr_name() -> impl Strategy<Value = XattrName<'static>> {
    vec(1u8.., 1..=NAME_MAX).prop_map(|bytes| XattrName::new(bytes.leak()).unwrap())
}

pub fn node() -> impl Strategy<Value = NodeId> {
    any::<u64>().prop_map(NodeId)
}

fn notice() -> impl Strategy<Value = Notice> {
    let node = || (1_u64..).prop_map(NodeId);
    let owned = || name().prop_map(|name| name.to_owned());
    prop_oneof![
        node().prop_map(Notice::Attributes),
        (node(), range()).prop_map(|(node, LockRange { start, last })| Notice::Data { node, start, last }),
        of!(Notice::Name { dir: node(), name: owned() }),
        of!(Notice::Gone { node: node(), name: option::of((node(), owned())) }),
        Just(Notice::Everything),
    ]
}

fn version() -> impl Strategy<Value = Version> {
    of!(Version { epoch: any::<u64>(), count: any::<u64>(), slot: any::<u32>() })
}

fn open() -> impl Strategy<Value = OpenId> {
    any::<u64>().prop_map(OpenId)
}

fn file() -> impl Strategy<Value = File> {
    of!(File { node: node(), open: open() })
}

fn mode() -> impl Strategy<Value = Mode> {
    any::<u32>().prop_map(Mode::new)
}

fn new_mode() -> impl Strategy<Value = NewMode> {
    of!(NewMode { mode: mode(), umask: mode() })
}

fn time() -> impl Strategy<Value = Timestamp> {
    of!(Timestamp { secs: any::<i64>(), nanos: 0u32..1_000_000_000 })
}

fn set_time() -> impl Strategy<Value = SetTime> {
    prop_oneof![Just(SetTime::Now), time().prop_map(SetTime::At)]
}

fn file_type() -> impl Strategy<Value = FileType> {
    select(&FileType::ALL[..])
}

fn device() -> impl Strategy<Value = Device> {
    of!(Device { major: any::<u32>(), minor: any::<u32>() })
}

fn set_attr() -> impl Strategy<Value = SetAttr> {
    of!(SetAttr {
        mode: option::of(mode()),
        uid: any::<Option<u32>>(),
        gid: any::<Option<u32>>(),
        size: any::<Option<u64>>(),
        atime: option::of(set_time()),
        mtime: option::of(set_time()),
        guard_ctime: option::of(time()),
        kill_privileges: any::<bool>(),
    })
}

fn reference() -> impl Strategy<Value = Reference> {
    (any::<u64>(), 1u32..1 << 24).prop_filter_map("in its domain", |(at, len)| Reference::new(at, len).ok())
}

fn references() -> impl Strategy<Value = References<'static>> {
    vec(reference(), 1..=REFERENCES_MAX).prop_map(|list| References::new(list.leak()).unwrap())
}

/// Returns data of at most 3,500 bytes in the frame, which may also contain a name and items.
fn data() -> impl Strategy<Value = Data<'static>> {
    prop_oneof![
        bytes(3_500).prop_map(Data::Inline),
        reference().prop_map(Data::One),
        references().prop_map(Data::List)
    ]
}

fn destination() -> impl Strategy<Value = Destination<'static>> {
    prop_oneof![
        (0..=FRAME_BYTES as u32).prop_map(|len_bytes| Destination::Inline { len_bytes }),
        reference().prop_map(Destination::One),
        references().prop_map(Destination::List)
    ]
}

fn stability() -> impl Strategy<Value = Stability> {
    select(vec![Stability::Unstable, Stability::DataSync, Stability::FileSync])
}

fn write() -> impl Strategy<Value = Write> {
    of!(Write {
        offset: any::<u64>(),
        stability: stability(),
        kill_privileges: any::<bool>(),
        in_place: any::<bool>(),
        retainable: Just(false),
        by_owner: Just(false),
    })
}

fn create() -> impl Strategy<Value = Create> {
    let exclusive = prop_oneof![
        Just(Exclusive::No),
        Just(Exclusive::Yes),
        any::<[u8; 8]>().prop_map(Exclusive::Verifier)
    ];
    of!(Create { mode: new_mode(), flags: bits!(OpenFlags: u16), exclusive: exclusive })
}

fn budget() -> impl Strategy<Value = DirBudget> {
    let size = || any::<u32>().prop_map(|size| size as usize);
    let align = (0u32..16).prop_map(|shift| 1usize << shift);
    of!(DirBudget { size_bytes: size(), entry_bytes: size(), align: align, plus: any::<bool>() })
}

fn family() -> impl Strategy<Value = LockFamily> {
    select(vec![LockFamily::Posix, LockFamily::Flock])
}

fn range() -> impl Strategy<Value = LockRange> {
    any::<(u64, u64)>().prop_map(|(a, b)| LockRange { start: a.min(b), last: a.max(b) })
}

fn owner() -> impl Strategy<Value = LockOwner> {
    any::<u64>().prop_map(LockOwner)
}

fn lock() -> impl Strategy<Value = Lock> {
    let kind = select(vec![LockKind::Read, LockKind::Write]);
    of!(Lock { family: family(), kind: kind, range: range(), owner: owner(), pid: any::<u32>() })
}

pub fn handle() -> impl Strategy<Value = HandleBytes<'static>> {
    of!(HandleBytes { kind: any::<i32>(), bytes: bytes(HANDLE_BYTES_MAX) })
}

pub fn request() -> BoxedStrategy<Request<'static>> {
    prop_oneof![session_request(), name_request(), file_request(), group_request()].boxed()
}

fn session_request() -> BoxedStrategy<Request<'static>> {
    let groups = vec(any::<u32>(), 0..=GROUPS_MAX).prop_map(|groups| Groups::new(groups.leak()));
    let pairs = vec((node(), any::<u64>()), 1..=FORGETS_MAX);
    prop_oneof![
        Just(Request::Null),
        Just(Request::Profile),
        of!(Request::Caller { uid: any::<u32>(), gid: any::<u32>(), groups: groups }),
        of!(Request::Interrupt { id: any::<u32>() }),
        of!(Request::Forget { forgets: pairs.prop_map(|pairs| Forgets::new(pairs.leak())) }),
    ]
    .boxed()
}

fn name_request() -> BoxedStrategy<Request<'static>> {
    prop_oneof![
        of!(Request::Lookup { parent: node(), name: name() }),
        of!(Request::Unlink { parent: node(), name: name() }),
        of!(Request::Rmdir { parent: node(), name: name() }),
        of!(Request::Setattr { node: node(), open: option::of(open()), set: set_attr() }),
        of!(Request::Access { node: node(), mask: bits!(AccessMask: u8) }),
        of!(Request::Readlink { node: node(), destination: destination() }),
        of!(Request::Create { parent: node(), name: name(), how: create() }),
        of!(Request::CreateUnnamed { parent: node(), how: create() }),
        of!(Request::Mkdir { parent: node(), name: name(), mode: new_mode() }),
        of!(Request::Symlink { parent: node(), name: name(), target: data() }),
        of!(Request::Mknod {
            parent: node(),
            name: name(),
            file_type: file_type(),
            mode: new_mode(),
            rdev: device()
        }),
        of!(Request::Link { node: node(), parent: node(), name: name() }),
        of!(Request::Rename {
            from_parent: node(),
            from: name(),
            to_parent: node(),
            to: name(),
            flags: bits!(RenameFlags: u8)
        }),
    ]
    .boxed()
}

fn file_request() -> BoxedStrategy<Request<'static>> {
    let what = select(vec![SyncScope::Data, SyncScope::All, SyncScope::AllWriters]);
    let cookie = any::<u64>().prop_map(Cookie);
    prop_oneof![
        of!(Request::Getattr { node: node(), open: option::of(open()) }),
        of!(Request::Open { node: node(), flags: bits!(OpenFlags: u16) }),
        of!(Request::Release { file: file() }),
        of!(Request::Flush { file: file(), owner: owner() }),
        of!(Request::Fsync { file: file(), what: what }),
        of!(Request::Read { file: file(), offset: any::<u64>(), destination: destination() }),
        of!(Request::Write { file: file(), how: write(), data: data() }),
        of!(Request::Readdir { file: file(), cookie: cookie, budget: budget(), destination: destination() }),
        of!(Request::Statfs { node: node() }),
        Just(Request::Syncfs),
    ]
    .boxed()
}

fn group_request() -> BoxedStrategy<Request<'static>> {
    let how = select(vec![XattrSet::Any, XattrSet::Create, XattrSet::Replace]);
    let whence = select(vec![Whence::Data, Whence::Hole]);
    let number = any::<u64>;
    prop_oneof![
        of!(Request::XattrGet { node: node(), name: xattr_name(), destination: destination() }),
        of!(Request::XattrSet {
            node: node(),
            name: xattr_name(),
            value: data(),
            how: how,
            kill_set_gid: any::<bool>()
        }),
        of!(Request::XattrList { node: node(), destination: destination() }),
        of!(Request::XattrRemove { node: node(), name: xattr_name() }),
        of!(Request::LockTest { file: file(), lock: lock() }),
        of!(Request::Lock { file: file(), lock: lock(), wait: any::<bool>() }),
        of!(Request::Unlock { file: file(), family: family(), range: range(), owner: owner() }),
        of!(Request::HandleOf { node: node() }),
        of!(Request::Resolve { handle: handle() }),
        of!(Request::Parent { node: node() }),
        of!(Request::Allocate {
            file: file(),
            offset: number(),
            len_bytes: number(),
            mode: bits!(AllocateMode: u8)
        }),
        of!(Request::Seek { file: file(), offset: number(), whence: whence }),
        of!(Request::Copy {
            from: file(),
            from_offset: number(),
            to: file(),
            to_offset: number(),
            len_bytes: number()
        }),
        of!(Request::Changes { since: number() }),
        of!(Request::Look { node: node() }),
    ]
    .boxed()
}

pub fn attr() -> BoxedStrategy<Attr> {
    let (short, long) = (any::<u32>, any::<u64>);
    of!(Attr {
        file_type: file_type(), mode: mode(), nlink: short(), uid: short(), gid: short(), size: long(),
        blocks: long(), block_size: short(), rdev: device(), fsid: long(), fileid: long();
        generation: long(), atime: time(), mtime: time(), ctime: time(), btime: option::of(time()),
        volatile: any::<bool>()
    })
    .boxed()
}

fn change() -> BoxedStrategy<Change> {
    let weak = of!(WeakAttr { size: any::<u64>(), mtime: time(), ctime: time() });
    of!(Change { before: option::of(weak), after: option::of(attr()) }).boxed()
}

pub fn entry() -> BoxedStrategy<Entry> {
    of!(Entry { node: node(), attr: attr() }).boxed()
}

fn returned() -> impl Strategy<Value = Returned<'static>> {
    prop_oneof![
        bytes(FRAME_BYTES).prop_map(Returned::Inline),
        any::<u32>().prop_map(|len_bytes| Returned::Placed { len_bytes })
    ]
}

fn session() -> impl Strategy<Value = Session> {
    let profile = of!(Profile {
        permission_check: select(vec![PermissionCheck::BackEnd, PermissionCheck::Caller]),
        read_only: any::<bool>(),
        name_max: any::<u32>(),
        file_size_max: any::<u64>(),
        time_granularity_ns: any::<u32>(),
        writes_by_owner: Just(false),
    });
    of!(Session {
        profile: profile,
        offers: bits!(Offers: u32),
        volume: any::<[u8; 16]>().prop_map(Volume),
        transfer_bytes_max: TRANSFER_BYTES_MIN..,
        callers_max: 1_u16..,
    })
}

fn stat_fs() -> impl Strategy<Value = StatFs> {
    let long = any::<u64>;
    of!(StatFs {
        block_size: any::<u32>(),
        blocks: long(),
        blocks_free: long(),
        blocks_available: long(),
        files: long(),
        files_free: long(),
        name_max: any::<u32>(),
    })
}

/// Returns an answer, and a kind of request to which it belongs.
pub fn reply() -> BoxedStrategy<(Kind, Outcome<'static>)> {
    let failed = (select(Kind::ALL), select(Status::ALL)).prop_map(|(kind, status)| (kind, Err(status)));
    prop_oneof![node_reply(), data_reply(), failed].boxed()
}

fn node_reply() -> BoxedStrategy<(Kind, Outcome<'static>)> {
    let made = of!(Made { entry: entry(), dir: change() });
    let created = of!(Created { entry: entry(), open: open(), dir: change() });
    let renamed = of!(Renamed { from_dir: change(), to_dir: change() });
    let opened = of!(Opened { open: open(), attr: option::of(attr()) });
    prop_oneof![
        (entry(), option::of(handle()))
            .prop_map(|(entry, handle)| (Kind::Lookup, Ok(Reply::Entry(entry, handle)))),
        attr().prop_map(|attr| (Kind::Getattr, Ok(Reply::Attr(attr)))),
        (attr(), change()).prop_map(|(attr, change)| (Kind::Setattr, Ok(Reply::Setattr(attr, change)))),
        (made, option::of(handle())).prop_map(|(made, handle)| (Kind::Link, Ok(Reply::Made(made, handle)))),
        (created, option::of(handle()), any::<bool>()).prop_map(|(created, handle, is_prompt)| {
            (Kind::Create, Ok(Reply::Created(created, handle, is_prompt)))
        }),
        change().prop_map(|change| (Kind::Rmdir, Ok(Reply::Change(change)))),
        renamed.prop_map(|renamed| (Kind::Rename, Ok(Reply::Renamed(renamed)))),
        (opened, any::<bool>())
            .prop_map(|(opened, is_prompt)| (Kind::Open, Ok(Reply::Opened(opened, is_prompt)))),
    ]
    .boxed()
}

fn data_reply() -> BoxedStrategy<(Kind, Outcome<'static>)> {
    let written = (any::<u32>(), stability(), change());
    prop_oneof![
        Just((Kind::Null, Ok(Reply::Done))),
        session().prop_map(|session| (Kind::Profile, Ok(Reply::Session(session)))),
        (returned(), any::<bool>()).prop_map(|(data, eof)| (Kind::Read, Ok(Reply::Read(data, eof)))),
        (returned(), any::<bool>())
            .prop_map(|(listing, end)| (Kind::Readdir, Ok(Reply::Readdir(listing, end)))),
        returned().prop_map(|bytes| (Kind::XattrGet, Ok(Reply::Bytes(bytes)))),
        written.prop_map(|(count, stability, file)| {
            (Kind::Write, Ok(Reply::Written(Written { count: count as usize, stability, file })))
        }),
        stat_fs().prop_map(|stat| (Kind::Statfs, Ok(Reply::StatFs(stat)))),
        option::of(lock()).prop_map(|lock| (Kind::LockTest, Ok(Reply::Conflict(lock)))),
        handle().prop_map(|handle| (Kind::HandleOf, Ok(Reply::Handle(handle)))),
        any::<u64>().prop_map(|offset| (Kind::Seek, Ok(Reply::Offset(offset)))),
        (any::<u64>(), vec(notice(), 0..12), any::<bool>()).prop_map(|(last, list, is_complete)| {
            (Kind::Changes, Ok(Reply::Changes(last, NoticeList::new(list.leak()), is_complete)))
        }),
        (option::of(version()), attr())
            .prop_map(|(version, attr)| { (Kind::Look, Ok(Reply::Looked(version, attr))) }),
    ]
    .boxed()
}
