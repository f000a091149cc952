//! Arbitrary messages. Borrowed parts are leaked, because they must live as long as the test.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use tombolo_core::fs::*;
use tombolo_core::*;
use tombolo_wire_vrpc::*;

pub fn header() -> impl Strategy<Value = Header> {
    any::<(u64, u16, u8, bool)>().prop_map(|(sequence, caller, want, handles)| Header {
        sequence,
        caller: CallerId(caller),
        want: Want::from_bits_truncate(want),
        handles,
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
    prop_oneof![
        node().prop_map(Notice::Attributes),
        (node(), any::<(u64, u64)>()).prop_map(|(node, (a, b))| Notice::Data {
            node,
            start: a.min(b),
            last: a.max(b)
        }),
        (node(), name()).prop_map(|(dir, name)| Notice::Name { dir, name: name.to_owned() }),
        (node(), option::of((node(), name()))).prop_map(|(node, name)| Notice::Gone {
            node,
            name: name.map(|(dir, name)| (dir, name.to_owned()))
        }),
        Just(Notice::Everything),
    ]
}

fn version() -> impl Strategy<Value = Version> {
    any::<(u64, u64, u32)>().prop_map(|(epoch, count, slot)| Version { epoch, count, slot })
}

fn open() -> impl Strategy<Value = OpenId> {
    any::<u64>().prop_map(OpenId)
}

fn file() -> impl Strategy<Value = File> {
    (node(), open()).prop_map(|(node, open)| File { node, open })
}

fn mode() -> impl Strategy<Value = Mode> {
    any::<u32>().prop_map(Mode::new)
}

fn new_mode() -> impl Strategy<Value = NewMode> {
    (mode(), mode()).prop_map(|(mode, umask)| NewMode { mode, umask })
}

fn time() -> impl Strategy<Value = Timestamp> {
    (any::<i64>(), 0u32..1_000_000_000).prop_map(|(secs, nanos)| Timestamp { secs, nanos })
}

fn set_time() -> impl Strategy<Value = SetTime> {
    prop_oneof![Just(SetTime::Now), time().prop_map(SetTime::At)]
}

fn file_type() -> impl Strategy<Value = FileType> {
    use FileType::*;
    select(vec![Regular, Directory, Symlink, BlockDevice, CharDevice, Fifo, Socket])
}

fn device() -> impl Strategy<Value = Device> {
    any::<(u32, u32)>().prop_map(|(major, minor)| Device { major, minor })
}

fn set_attr() -> impl Strategy<Value = SetAttr> {
    let ids = any::<(Option<u32>, Option<u32>, Option<u64>, bool)>();
    (option::of(mode()), ids, option::of(set_time()), option::of(set_time()), option::of(time())).prop_map(
        |(mode, (uid, gid, size, kill_privileges), atime, mtime, guard_ctime)| SetAttr {
            mode,
            uid,
            gid,
            size,
            atime,
            mtime,
            guard_ctime,
            kill_privileges,
        },
    )
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
    (any::<(u64, bool, bool)>(), stability()).prop_map(|((offset, kill_privileges, in_place), stability)| {
        Write { offset, stability, kill_privileges, in_place, retainable: false, by_owner: false }
    })
}

fn create() -> impl Strategy<Value = Create> {
    let exclusive = prop_oneof![
        Just(Exclusive::No),
        Just(Exclusive::Yes),
        any::<[u8; 8]>().prop_map(Exclusive::Verifier)
    ];
    (new_mode(), any::<u16>(), exclusive).prop_map(|(mode, flags, exclusive)| Create {
        mode,
        flags: OpenFlags::from_bits_truncate(flags),
        exclusive,
    })
}

fn budget() -> impl Strategy<Value = DirBudget> {
    (any::<(u32, u32, bool)>(), 0u32..16).prop_map(|((size, entry, plus), align)| DirBudget {
        size_bytes: size as usize,
        entry_bytes: entry as usize,
        align: 1usize << align,
        plus,
    })
}

fn family() -> impl Strategy<Value = LockFamily> {
    select(vec![LockFamily::Posix, LockFamily::Flock])
}

fn range() -> impl Strategy<Value = LockRange> {
    any::<(u64, u64)>().prop_map(|(a, b)| LockRange { start: a.min(b), last: a.max(b) })
}

fn lock() -> impl Strategy<Value = Lock> {
    let kind = select(vec![LockKind::Read, LockKind::Write]);
    (family(), kind, range(), any::<(u64, u32)>()).prop_map(|(family, kind, range, (owner, pid))| Lock {
        family,
        kind,
        range,
        owner: LockOwner(owner),
        pid,
    })
}

pub fn handle() -> impl Strategy<Value = HandleBytes<'static>> {
    (any::<i32>(), bytes(HANDLE_BYTES_MAX)).prop_map(|(kind, bytes)| HandleBytes { kind, bytes })
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
        (any::<(u32, u32)>(), groups).prop_map(|((uid, gid), groups)| Request::Caller { uid, gid, groups }),
        any::<u32>().prop_map(|id| Request::Interrupt { id }),
        pairs.prop_map(|pairs| Request::Forget { forgets: Forgets::new(pairs.leak()) }),
    ]
    .boxed()
}

fn name_request() -> BoxedStrategy<Request<'static>> {
    let make = (node(), name(), file_type(), new_mode(), device());
    let two = (node(), name(), node(), name(), any::<u8>());
    prop_oneof![
        (node(), name()).prop_map(|(parent, name)| Request::Lookup { parent, name }),
        (node(), name()).prop_map(|(parent, name)| Request::Unlink { parent, name }),
        (node(), name()).prop_map(|(parent, name)| Request::Rmdir { parent, name }),
        (node(), option::of(open()), set_attr()).prop_map(|(node, open, set)| Request::Setattr {
            node,
            open,
            set
        }),
        (node(), any::<u8>())
            .prop_map(|(node, mask)| Request::Access { node, mask: AccessMask::from_bits_truncate(mask) }),
        (node(), destination()).prop_map(|(node, destination)| Request::Readlink { node, destination }),
        (node(), name(), create()).prop_map(|(parent, name, how)| Request::Create { parent, name, how }),
        (node(), create()).prop_map(|(parent, how)| Request::CreateUnnamed { parent, how }),
        (node(), name(), new_mode()).prop_map(|(parent, name, mode)| Request::Mkdir { parent, name, mode }),
        (node(), name(), data()).prop_map(|(parent, name, target)| Request::Symlink { parent, name, target }),
        make.prop_map(|(parent, name, file_type, mode, rdev)| Request::Mknod {
            parent,
            name,
            file_type,
            mode,
            rdev
        }),
        (node(), node(), name()).prop_map(|(node, parent, name)| Request::Link { node, parent, name }),
        two.prop_map(|(from_parent, from, to_parent, to, flags)| Request::Rename {
            from_parent,
            from,
            to_parent,
            to,
            flags: RenameFlags::from_bits_truncate(flags)
        }),
    ]
    .boxed()
}

fn file_request() -> BoxedStrategy<Request<'static>> {
    let what = select(vec![SyncScope::Data, SyncScope::All]);
    prop_oneof![
        (node(), option::of(open())).prop_map(|(node, open)| Request::Getattr { node, open }),
        (node(), any::<u16>())
            .prop_map(|(node, flags)| Request::Open { node, flags: OpenFlags::from_bits_truncate(flags) }),
        file().prop_map(|file| Request::Release { file }),
        (file(), any::<u64>()).prop_map(|(file, owner)| Request::Flush { file, owner: LockOwner(owner) }),
        (file(), what).prop_map(|(file, what)| Request::Fsync { file, what }),
        (file(), any::<u64>(), destination()).prop_map(|(file, offset, destination)| Request::Read {
            file,
            offset,
            destination
        }),
        (file(), write(), data()).prop_map(|(file, how, data)| Request::Write { file, how, data }),
        (file(), any::<u64>(), budget(), destination()).prop_map(|(file, cookie, budget, destination)| {
            Request::Readdir { file, cookie: Cookie(cookie), budget, destination }
        }),
        node().prop_map(|node| Request::Statfs { node }),
        Just(Request::Syncfs),
    ]
    .boxed()
}

fn group_request() -> BoxedStrategy<Request<'static>> {
    let how = select(vec![XattrSet::Any, XattrSet::Create, XattrSet::Replace]);
    let whence = select(vec![Whence::Data, Whence::Hole]);
    prop_oneof![
        (node(), xattr_name(), destination()).prop_map(|(node, name, destination)| Request::XattrGet {
            node,
            name,
            destination
        }),
        (node(), xattr_name(), data(), how, any::<bool>()).prop_map(
            |(node, name, value, how, kill_set_gid)| Request::XattrSet {
                node,
                name,
                value,
                how,
                kill_set_gid
            }
        ),
        (node(), destination()).prop_map(|(node, destination)| Request::XattrList { node, destination }),
        (node(), xattr_name()).prop_map(|(node, name)| Request::XattrRemove { node, name }),
        (file(), lock()).prop_map(|(file, lock)| Request::LockTest { file, lock }),
        (file(), lock(), any::<bool>()).prop_map(|(file, lock, wait)| Request::Lock { file, lock, wait }),
        (file(), family(), range(), any::<u64>()).prop_map(|(file, family, range, owner)| Request::Unlock {
            file,
            family,
            range,
            owner: LockOwner(owner)
        }),
        node().prop_map(|node| Request::HandleOf { node }),
        handle().prop_map(|handle| Request::Resolve { handle }),
        node().prop_map(|node| Request::Parent { node }),
        (file(), any::<(u64, u64, u8)>()).prop_map(|(file, (offset, len_bytes, mode))| Request::Allocate {
            file,
            offset,
            len_bytes,
            mode: AllocateMode::from_bits_truncate(mode)
        }),
        (file(), any::<u64>(), whence).prop_map(|(file, offset, whence)| Request::Seek {
            file,
            offset,
            whence
        }),
        (file(), file(), any::<(u64, u64, u64)>()).prop_map(
            |(from, to, (from_offset, to_offset, len_bytes))| {
                Request::Copy { from, from_offset, to, to_offset, len_bytes }
            }
        ),
        any::<u64>().prop_map(|since| Request::Changes { since }),
        node().prop_map(|node| Request::Look { node }),
    ]
    .boxed()
}

pub fn attr() -> BoxedStrategy<Attr> {
    let numbers = any::<(u32, u32, u32, u32)>();
    let longs = any::<(u64, u64, u64, u64, u64)>();
    let times = ([time(), time(), time()], option::of(time()));
    (file_type(), mode(), numbers, longs, device(), times, any::<bool>())
        .prop_map(
            |(file_type, mode, (nlink, uid, gid, block_size), longs, rdev, (times, btime), volatile)| {
                let [atime, mtime, ctime] = times;
                let (size, blocks, fsid, fileid, generation) = longs;
                Attr {
                    file_type,
                    mode,
                    nlink,
                    uid,
                    gid,
                    size,
                    blocks,
                    block_size,
                    rdev,
                    fsid,
                    fileid,
                    generation,
                    atime,
                    mtime,
                    ctime,
                    btime,
                    volatile,
                }
            },
        )
        .boxed()
}

fn change() -> BoxedStrategy<Change> {
    let weak =
        (any::<u64>(), time(), time()).prop_map(|(size, mtime, ctime)| WeakAttr { size, mtime, ctime });
    (option::of(weak), option::of(attr())).prop_map(|(before, after)| Change { before, after }).boxed()
}

pub fn entry() -> BoxedStrategy<Entry> {
    (node(), attr()).prop_map(|(node, attr)| Entry { node, attr }).boxed()
}

fn returned() -> impl Strategy<Value = Returned<'static>> {
    prop_oneof![
        bytes(FRAME_BYTES).prop_map(Returned::Inline),
        any::<u32>().prop_map(|len_bytes| Returned::Placed { len_bytes })
    ]
}

fn session() -> impl Strategy<Value = Session> {
    (any::<(bool, bool, u32, u64, u32)>(), any::<(u32, [u8; 16], u32, u16)>()).prop_map(
        |((checks, read_only, name_max, file_size_max, time_granularity_ns), rest)| {
            let (offers, volume, transfer_bytes_max, callers_max) = rest;
            let permission_check = if checks { PermissionCheck::BackEnd } else { PermissionCheck::Caller };
            Session {
                profile: Profile {
                    permission_check,
                    read_only,
                    name_max,
                    file_size_max,
                    time_granularity_ns,
                    writes_by_owner: false,
                },
                offers: Offers::from_bits_truncate(offers),
                volume: Volume(volume),
                transfer_bytes_max: transfer_bytes_max.max(TRANSFER_BYTES_MIN),
                callers_max: callers_max.max(1),
            }
        },
    )
}

fn stat_fs() -> impl Strategy<Value = StatFs> {
    any::<(u32, [u64; 5], u32)>().prop_map(
        |(block_size, [blocks, blocks_free, blocks_available, files, files_free], name_max)| StatFs {
            block_size,
            blocks,
            blocks_free,
            blocks_available,
            files,
            files_free,
            name_max,
        },
    )
}

/// Returns an answer, and a kind of request to which it belongs.
pub fn reply() -> BoxedStrategy<(Kind, Outcome<'static>)> {
    let failed = (select(Kind::ALL), select(Status::ALL)).prop_map(|(kind, status)| (kind, Err(status)));
    prop_oneof![node_reply(), data_reply(), failed].boxed()
}

fn node_reply() -> BoxedStrategy<(Kind, Outcome<'static>)> {
    prop_oneof![
        (entry(), option::of(handle()))
            .prop_map(|(entry, handle)| (Kind::Lookup, Ok(Reply::Entry(entry, handle)))),
        attr().prop_map(|attr| (Kind::Getattr, Ok(Reply::Attr(attr)))),
        (attr(), change()).prop_map(|(attr, change)| (Kind::Setattr, Ok(Reply::Setattr(attr, change)))),
        (entry(), change(), option::of(handle()))
            .prop_map(|(entry, dir, handle)| (Kind::Link, Ok(Reply::Made(Made { entry, dir }, handle)))),
        (entry(), open(), change(), option::of(handle())).prop_map(|(entry, open, dir, handle)| {
            (Kind::Create, Ok(Reply::Created(Created { entry, open, dir }, handle)))
        }),
        change().prop_map(|change| (Kind::Rmdir, Ok(Reply::Change(change)))),
        (change(), change())
            .prop_map(|(from_dir, to_dir)| (Kind::Rename, Ok(Reply::Renamed(Renamed { from_dir, to_dir })))),
        (open(), option::of(attr()))
            .prop_map(|(open, attr)| (Kind::Open, Ok(Reply::Opened(Opened { open, attr })))),
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
