//! Arbitrary calls and replies. Strategies are boxed: those of unions would not fit on a test's stack.
#![allow(dead_code, reason = "each test takes what it needs")]

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use tombolo_wire_nfs3::args::*;
use tombolo_wire_nfs3::listing::{DirEntry3, DirEntryPlus3, ReaddirOk, ReaddirplusOk};
use tombolo_wire_nfs3::results::*;
use tombolo_wire_nfs3::*;
use tombolo_wire_xdr::{Decode, Decoder, Encode, Encoder, List};

pub fn encoded<T: Encode>(value: &T) -> Vec<u8> {
    let mut bytes = Vec::new();
    value.encode(&mut Encoder::new(&mut bytes));
    bytes
}

/// Values that borrow need bytes that last as long as the test.
pub fn bytes(max: usize) -> impl Strategy<Value = &'static [u8]> {
    vec(any::<u8>(), 0..=max).prop_map(|bytes| &*bytes.leak())
}

pub fn handle() -> BoxedStrategy<FileHandle<'static>> {
    bytes(HANDLE_BYTES_MAX).prop_map(|bytes| FileHandle::new(bytes).unwrap()).boxed()
}

pub fn status() -> impl Strategy<Value = Status> {
    select(Status::ALL)
}

fn file_type() -> impl Strategy<Value = FileType3> {
    select(FileType3::ALL)
}

fn time() -> impl Strategy<Value = NfsTime3> {
    any::<(u32, u32)>().prop_map(|(seconds, nseconds)| NfsTime3 { seconds, nseconds })
}

fn device() -> impl Strategy<Value = SpecData3> {
    any::<(u32, u32)>().prop_map(|(major, minor)| SpecData3 { major, minor })
}

pub fn fattr() -> BoxedStrategy<Fattr3> {
    let numbers = any::<(u32, u32, u32, u32, u64, u64, u64, u64)>();
    (file_type(), numbers, device(), time(), time(), time())
        .prop_map(
            |(file_type, (mode, nlink, uid, gid, size, used, fsid, fileid), rdev, atime, mtime, ctime)| {
                Fattr3 {
                    file_type,
                    mode,
                    nlink,
                    uid,
                    gid,
                    size,
                    used,
                    rdev,
                    fsid,
                    fileid,
                    atime,
                    mtime,
                    ctime,
                }
            },
        )
        .boxed()
}

pub fn post_op_attr() -> BoxedStrategy<PostOpAttr> {
    option::of(fattr()).boxed()
}

pub fn wcc() -> BoxedStrategy<WccData> {
    let before =
        (any::<u64>(), time(), time()).prop_map(|(size, mtime, ctime)| WccAttr { size, mtime, ctime });
    (option::of(before), post_op_attr()).prop_map(|(before, after)| WccData { before, after }).boxed()
}

fn set_time() -> BoxedStrategy<SetTime3> {
    prop_oneof![Just(SetTime3::DontChange), Just(SetTime3::Server), time().prop_map(SetTime3::Client)].boxed()
}

pub fn sattr() -> BoxedStrategy<Sattr3> {
    (any::<(Option<u32>, Option<u32>, Option<u32>, Option<u64>)>(), set_time(), set_time())
        .prop_map(|((mode, uid, gid, size), atime, mtime)| Sattr3 { mode, uid, gid, size, atime, mtime })
        .boxed()
}

fn location() -> BoxedStrategy<DirOpArgs<'static>> {
    (handle(), bytes(300)).prop_map(|(dir, name)| DirOpArgs { dir, name }).boxed()
}

fn create_how() -> BoxedStrategy<CreateHow> {
    prop_oneof![
        sattr().prop_map(CreateHow::Unchecked),
        sattr().prop_map(CreateHow::Guarded),
        any::<[u8; 8]>().prop_map(|verifier| CreateHow::Exclusive(CreateVerifier(verifier))),
    ]
    .boxed()
}

fn mknod_what() -> BoxedStrategy<MknodWhat> {
    let others = [FileType3::Regular, FileType3::Directory, FileType3::Symlink];
    prop_oneof![
        (sattr(), device()).prop_map(|(attributes, device)| MknodWhat::CharDevice(attributes, device)),
        (sattr(), device()).prop_map(|(attributes, device)| MknodWhat::BlockDevice(attributes, device)),
        sattr().prop_map(MknodWhat::Socket),
        sattr().prop_map(MknodWhat::Fifo),
        select(others.to_vec()).prop_map(MknodWhat::Other),
    ]
    .boxed()
}

fn stable() -> impl Strategy<Value = StableHow> {
    select(StableHow::ALL)
}

/// A call and the length of its message. Where a WRITE's data begins is known only once it is encoded.
pub fn call() -> impl Strategy<Value = Call<'static>> {
    prop_oneof![calls_on_nodes(), calls_on_names()]
}

fn calls_on_nodes() -> BoxedStrategy<Call<'static>> {
    prop_oneof![
        Just(Call::Null),
        handle().prop_map(Call::Getattr),
        handle().prop_map(Call::Readlink),
        handle().prop_map(Call::Fsstat),
        handle().prop_map(Call::Fsinfo),
        handle().prop_map(Call::Pathconf),
        (handle(), sattr(), option::of(time()))
            .prop_map(|(object, attributes, guard)| Call::Setattr(SetattrArgs { object, attributes, guard })),
        (handle(), any::<u32>()).prop_map(|(object, access)| {
            Call::Access(AccessArgs { object, access: AccessBits::from_bits_retain(access) })
        }),
        (handle(), any::<(u64, u32)>()).prop_map(|(file, (offset, count))| Call::Read(ReadArgs {
            file,
            offset,
            count
        })),
        (handle(), any::<(u64, u32, u32)>(), stable()).prop_map(|(file, (offset, count, len), stable)| {
            Call::Write(WriteArgs { file, offset, count, stable, data: Data::to_send(len) })
        }),
        (handle(), any::<(u64, [u8; 8], u32)>()).prop_map(|(dir, (cookie, verifier, count))| {
            let (cookie, verifier) = (Cookie3(cookie), CookieVerifier(verifier));
            Call::Readdir(ReaddirArgs { dir, cookie, verifier, count })
        }),
        (handle(), any::<(u64, [u8; 8], u32, u32)>()).prop_map(
            |(dir, (cookie, verifier, dircount, maxcount))| {
                let (cookie, verifier) = (Cookie3(cookie), CookieVerifier(verifier));
                Call::Readdirplus(ReaddirplusArgs { dir, cookie, verifier, dircount, maxcount })
            }
        ),
        (handle(), any::<(u64, u32)>()).prop_map(|(file, (offset, count))| Call::Commit(CommitArgs {
            file,
            offset,
            count
        })),
    ]
    .boxed()
}

fn calls_on_names() -> BoxedStrategy<Call<'static>> {
    prop_oneof![
        location().prop_map(Call::Lookup),
        location().prop_map(Call::Remove),
        location().prop_map(Call::Rmdir),
        (location(), create_how()).prop_map(|(location, how)| Call::Create(CreateArgs { location, how })),
        (location(), sattr())
            .prop_map(|(location, attributes)| Call::Mkdir(MkdirArgs { location, attributes })),
        (location(), sattr(), bytes(100)).prop_map(|(location, attributes, target)| Call::Symlink(
            SymlinkArgs { location, attributes, target }
        )),
        (location(), mknod_what()).prop_map(|(location, what)| Call::Mknod(MknodArgs { location, what })),
        (location(), location()).prop_map(|(from, to)| Call::Rename(RenameArgs { from, to })),
        (handle(), location()).prop_map(|(file, link)| Call::Link(LinkArgs { file, link })),
    ]
    .boxed()
}

pub fn reply<T, F>(
    ok: impl Strategy<Value = T> + 'static,
    failed: impl Strategy<Value = F> + 'static,
) -> BoxedStrategy<Reply<T, F>>
where
    T: std::fmt::Debug + 'static,
    F: std::fmt::Debug + 'static,
{
    prop_oneof![
        ok.prop_map(Reply::Ok),
        (status(), failed).prop_map(|(status, rest)| Reply::Failed(status, rest))
    ]
    .boxed()
}

pub fn lookup_ok() -> BoxedStrategy<LookupOk<'static>> {
    (handle(), post_op_attr(), post_op_attr())
        .prop_map(|(object, attributes, dir_attributes)| LookupOk { object, attributes, dir_attributes })
        .boxed()
}

pub fn access_ok() -> BoxedStrategy<AccessOk> {
    (post_op_attr(), any::<u32>())
        .prop_map(|(attributes, access)| AccessOk {
            attributes,
            access: AccessBits::from_bits_retain(access),
        })
        .boxed()
}

pub fn readlink_ok() -> BoxedStrategy<ReadlinkOk<'static>> {
    (post_op_attr(), bytes(100)).prop_map(|(attributes, target)| ReadlinkOk { attributes, target }).boxed()
}

pub fn read_ok() -> BoxedStrategy<ReadOk> {
    (post_op_attr(), any::<(u32, bool)>())
        .prop_map(|(attributes, (count, eof))| ReadOk::to_send(attributes, count, eof))
        .boxed()
}

pub fn write_ok() -> BoxedStrategy<WriteOk> {
    (wcc(), any::<(u32, [u8; 8])>(), stable())
        .prop_map(|(file_wcc, (count, verifier), committed)| WriteOk {
            file_wcc,
            count,
            committed,
            verifier: WriteVerifier(verifier),
        })
        .boxed()
}

pub fn create_ok() -> BoxedStrategy<CreateOk<'static>> {
    (option::of(handle()), post_op_attr(), wcc())
        .prop_map(|(object, attributes, dir_wcc)| CreateOk { object, attributes, dir_wcc })
        .boxed()
}

pub fn rename_wcc() -> BoxedStrategy<RenameWcc> {
    (wcc(), wcc()).prop_map(|(from_dir, to_dir)| RenameWcc { from_dir, to_dir }).boxed()
}

pub fn link_wcc() -> BoxedStrategy<LinkWcc> {
    (post_op_attr(), wcc()).prop_map(|(attributes, dir_wcc)| LinkWcc { attributes, dir_wcc }).boxed()
}

fn entry() -> BoxedStrategy<DirEntry3<'static>> {
    (any::<u64>(), bytes(40), any::<u64>())
        .prop_map(|(fileid, name, cookie)| DirEntry3 { fileid, name, cookie: Cookie3(cookie) })
        .boxed()
}

pub fn entries() -> impl Strategy<Value = Vec<DirEntry3<'static>>> {
    vec(entry(), 0..6)
}

pub fn entries_plus() -> impl Strategy<Value = Vec<DirEntryPlus3<'static>>> {
    let plus = (entry(), post_op_attr(), option::of(handle()))
        .prop_map(|(entry, attributes, handle)| DirEntryPlus3 { entry, attributes, handle });
    vec(plus, 0..6)
}

/// A list that lasts as long as the test.
pub fn list<T: Encode + Decode<'static>>(items: &[T]) -> List<'static, T> {
    let mut bytes = Vec::new();
    let mut xdr = Encoder::new(&mut bytes);
    for item in items {
        xdr.bool(true).value(item);
    }
    xdr.bool(false);
    List::decode(&mut Decoder::new(bytes.leak())).unwrap()
}

pub fn readdir_ok() -> BoxedStrategy<ReaddirOk<'static>> {
    (post_op_attr(), any::<([u8; 8], bool)>(), entries())
        .prop_map(|(dir_attributes, (verifier, eof), entries)| ReaddirOk {
            dir_attributes,
            verifier: CookieVerifier(verifier),
            entries: list(&entries),
            eof,
        })
        .boxed()
}

pub fn readdirplus_ok() -> BoxedStrategy<ReaddirplusOk<'static>> {
    (post_op_attr(), any::<([u8; 8], bool)>(), entries_plus())
        .prop_map(|(dir_attributes, (verifier, eof), entries)| ReaddirplusOk {
            dir_attributes,
            verifier: CookieVerifier(verifier),
            entries: list(&entries),
            eof,
        })
        .boxed()
}

pub fn fsstat_ok() -> BoxedStrategy<FsstatOk> {
    (post_op_attr(), any::<([u64; 6], u32)>())
        .prop_map(|(attributes, (numbers, invarsec))| {
            let [total_bytes, free_bytes, available_bytes, total_files, free_files, available_files] =
                numbers;
            FsstatOk {
                attributes,
                total_bytes,
                free_bytes,
                available_bytes,
                total_files,
                free_files,
                available_files,
                invarsec,
            }
        })
        .boxed()
}

pub fn fsinfo_ok() -> BoxedStrategy<FsinfoOk> {
    (post_op_attr(), any::<([u32; 8], u64)>(), time())
        .prop_map(|(attributes, (numbers, file_size_max), time_delta)| {
            let [
                read_max,
                read_preferred,
                read_multiple,
                write_max,
                write_preferred,
                write_multiple,
                readdir,
                bits,
            ] = numbers;
            FsinfoOk {
                attributes,
                read_max,
                read_preferred,
                read_multiple,
                write_max,
                write_preferred,
                write_multiple,
                readdir_preferred: readdir,
                file_size_max,
                time_delta,
                properties: Properties::from_bits_retain(bits),
            }
        })
        .boxed()
}

pub fn pathconf_ok() -> BoxedStrategy<PathconfOk> {
    (post_op_attr(), any::<(u32, u32, [bool; 4])>())
        .prop_map(|(attributes, (link_max, name_max, bools))| {
            let [no_trunc, chown_restricted, case_insensitive, case_preserving] = bools;
            PathconfOk {
                attributes,
                link_max,
                name_max,
                no_trunc,
                chown_restricted,
                case_insensitive,
                case_preserving,
            }
        })
        .boxed()
}

pub fn commit_ok() -> BoxedStrategy<CommitOk> {
    (wcc(), any::<[u8; 8]>())
        .prop_map(|(file_wcc, verifier)| CommitOk { file_wcc, verifier: WriteVerifier(verifier) })
        .boxed()
}
