//! Messages byte by byte, as in RFC 1813; each is also truncated, mutated, and decoded by a foreign codec.

use crate::common::{self, agrees, fattr, list, survives, words};
use crate::oracle::call_agrees;
use nfs3_types::xdr_codec::{Pack, Unpack};
use nfs3_types::{mount as foreign_mount, nfs3 as foreign};
use tombolo_wire_nfs3::args::*;
use tombolo_wire_nfs3::listing::{DirEntry3, DirEntryPlus3, ReaddirOk, ReaddirplusOk};
use tombolo_wire_nfs3::results::*;
use tombolo_wire_nfs3::*;
use tombolo_wire_rpc::AuthFlavor;
use tombolo_wire_xdr::{Decode, Decoder, Encode, Error, List, encoded};

fn handle() -> FileHandle<'static> {
    FileHandle::new(b"\x01\x02\x03\x04\x05").unwrap()
}

const HANDLE: [u32; 3] = [5, 0x0102_0304, 0x0500_0000];
const NAME: [u32; 2] = [3, u32::from_be_bytes(*b"a.c\0")];

fn location() -> DirOpArgs<'static> {
    DirOpArgs { dir: handle(), name: b"a.c" }
}

fn location_words() -> Vec<u32> {
    [&HANDLE[..], &NAME].concat()
}

const FATTR: [u32; 21] = [2, 0o755, 2, 3, 4, 5, 6, 0, 7, 8, 9, 0, 10, 0, 11, 12, 13, 14, 15, 16, 17];

fn wcc() -> WccData {
    let before = WccAttr {
        size: 1,
        mtime: NfsTime3 { seconds: 2, nseconds: 3 },
        ctime: NfsTime3 { seconds: 4, nseconds: 5 },
    };
    WccData { before: Some(before), after: None }
}

const WCC: [u32; 8] = [1, 0, 1, 2, 3, 4, 5, 0];

fn sattr() -> Sattr3 {
    Sattr3 {
        mode: Some(0o644),
        uid: None,
        gid: Some(100),
        size: Some(1 << 32),
        atime: SetTime3::Server,
        mtime: SetTime3::Client(NfsTime3 { seconds: 1, nseconds: 2 }),
    }
}

const SATTR: [u32; 12] = [1, 0o644, 0, 1, 100, 1, 1, 0, 1, 2, 1, 2];

#[test]
fn calls_match_the_rfc_layout() {
    let handle_with = |tail: &[u32]| [&HANDLE[..], tail].concat();
    let place_with = |tail: &[u32]| [&location_words()[..], tail].concat();
    let page = (Cookie3((1 << 32) | 2), CookieVerifier(*b"abcdefgh"));
    let page_words = [1, 2, u32::from_be_bytes(*b"abcd"), u32::from_be_bytes(*b"efgh")];
    let object = handle();
    let table: [(Call<'_>, Vec<u32>); 22] = [
        (Call::Null, vec![]),
        (Call::Getattr(object), HANDLE.to_vec()),
        (
            Call::Setattr(SetattrArgs {
                object,
                attributes: sattr(),
                guard: Some(NfsTime3 { seconds: 7, nseconds: 8 }),
            }),
            handle_with(&[&SATTR[..], &[1, 7, 8]].concat()),
        ),
        (Call::Lookup(location()), location_words()),
        (Call::Access(AccessArgs { object, access: AccessBits::all() }), handle_with(&[0x3f])),
        (Call::Readlink(object), HANDLE.to_vec()),
        (Call::Read(ReadArgs { file: object, offset: 1 << 32, count: 9 }), handle_with(&[1, 0, 9])),
        (
            Call::Write(WriteArgs {
                file: object,
                offset: 2,
                count: 5,
                stable: StableHow::FileSync,
                data: Data::to_send(5),
            }),
            handle_with(&[0, 2, 5, 2, 5]),
        ),
        (
            Call::Create(CreateArgs {
                location: location(),
                how: CreateHow::Exclusive(CreateVerifier([1; 8])),
            }),
            place_with(&[2, 0x0101_0101, 0x0101_0101]),
        ),
        (
            Call::Mkdir(MkdirArgs { location: location(), attributes: Sattr3::default() }),
            place_with(&[0, 0, 0, 0, 0, 0]),
        ),
        (
            Call::Symlink(SymlinkArgs { location: location(), attributes: sattr(), target: b"a.c" }),
            place_with(&[&SATTR[..], &NAME].concat()),
        ),
        (
            Call::Mknod(MknodArgs {
                location: location(),
                what: MknodKind::BlockDevice(Sattr3::default(), SpecData3 { major: 8, minor: 1 }),
            }),
            place_with(&[3, 0, 0, 0, 0, 0, 0, 8, 1]),
        ),
        (Call::Remove(location()), location_words()),
        (Call::Rmdir(location()), location_words()),
        (
            Call::Rename(RenameArgs { from: location(), to: location() }),
            [location_words(), location_words()].concat(),
        ),
        (
            Call::Link(LinkArgs { file: object, link: location() }),
            [HANDLE.to_vec(), location_words()].concat(),
        ),
        (
            Call::Readdir(ReaddirArgs { dir: object, cookie: page.0, verifier: page.1, count: 10 }),
            handle_with(&[&page_words[..], &[10]].concat()),
        ),
        (
            Call::Readdirplus(ReaddirplusArgs {
                dir: object,
                cookie: page.0,
                verifier: page.1,
                dircount: 10,
                maxcount: 11,
            }),
            handle_with(&[&page_words[..], &[10, 11]].concat()),
        ),
        (Call::Fsstat(object), HANDLE.to_vec()),
        (Call::Fsinfo(object), HANDLE.to_vec()),
        (Call::Pathconf(object), HANDLE.to_vec()),
        (Call::Commit(CommitArgs { file: object, offset: 3, count: 4 }), handle_with(&[0, 3, 4])),
    ];
    for (number, (call, layout)) in table.into_iter().enumerate() {
        assert_eq!(call.procedure().number() as usize, number);
        let bytes = words(&layout);
        assert_eq!(encoded(&call), bytes, "{call:?}");
        call_agrees(call);
        let decode = |bytes: &[u8]| match Call::decode(
            call.procedure(),
            &mut Decoder::new(bytes),
            layout.len() * 4 + 8,
        ) {
            Ok(Call::Write(args)) if args.data.len_bytes() as usize > layout.len() * 4 + 8 => {
                panic!("{args:?}")
            }
            decoded => decoded.map(drop),
        };
        survives(&bytes, decode);
        let again = Call::decode(call.procedure(), &mut Decoder::new(&bytes), bytes.len() + 8).unwrap();
        match (call, again) {
            (Call::Write(_), Call::Write(again)) => assert_eq!(encoded(&again), bytes),
            (call, again) => assert_eq!(again, call),
        }
    }
    assert_eq!(Procedure::ALL.len(), 22);
}

#[test]
fn unions_have_every_arm() {
    let how = |how, layout: &[u32]| {
        let bytes = words(layout);
        assert_eq!(encoded(&how), bytes);
        agrees::<foreign::createhow3>(&bytes);
        assert_eq!(CreateHow::decode(&mut Decoder::new(&bytes)), Ok(how));
    };
    how(CreateHow::Unchecked(Sattr3::default()), &[0, 0, 0, 0, 0, 0, 0]);
    how(CreateHow::Guarded(sattr()), &[&[1][..], &SATTR].concat());
    let what = |what, layout: &[u32]| {
        let bytes = words(layout);
        assert_eq!(encoded(&what), bytes);
        call_agrees(Call::Mknod(MknodArgs { location: location(), what }));
        assert_eq!(MknodKind::decode(&mut Decoder::new(&bytes)), Ok(what));
    };
    let device = SpecData3 { major: 5, minor: 6 };
    what(MknodKind::CharDevice(sattr(), device), &[&[4][..], &SATTR, &[5, 6]].concat());
    what(MknodKind::Socket(sattr()), &[&[6][..], &SATTR].concat());
    what(MknodKind::Fifo(sattr()), &[&[7][..], &SATTR].concat());
    what(MknodKind::Other(FileType3::Regular), &[1]);
}

#[test]
fn numbers_that_no_type_names_are_garbage() {
    let garbage = |procedure, layout: &[u32], name, value| {
        let bytes = words(&[&location_words(), layout].concat());
        let error = Call::decode(procedure, &mut Decoder::new(&bytes), bytes.len()).unwrap_err();
        assert_eq!(error, Error::BadEnum { name, value });
    };
    garbage(Procedure::Create, &[3], "createmode3", 3);
    garbage(Procedure::Mknod, &[0], "FileType3", 0);
    garbage(Procedure::Mknod, &[8], "FileType3", 8);
    garbage(Procedure::Mkdir, &[0, 0, 0, 0, 3], "time_how", 3);
    let write = words(&[&HANDLE[..], &[0, 0, 0, 3, 0]].concat());
    let error = Call::decode(Procedure::Write, &mut Decoder::new(&write), write.len()).unwrap_err();
    assert_eq!(error, Error::BadEnum { name: "StableHow", value: 3 });
    let mkdir = words(&[&location_words()[..], &[2]].concat());
    let error = Call::decode(Procedure::Mkdir, &mut Decoder::new(&mkdir), mkdir.len()).unwrap_err();
    assert_eq!(error, Error::BadBool(2));
}

#[test]
fn empty_handles_decode_and_oversized_ones_do_not() {
    let empty = words(&[0, 3, NAME[1]]);
    let call = Call::decode(Procedure::Lookup, &mut Decoder::new(&empty), empty.len()).unwrap();
    assert_eq!(call, Call::Lookup(DirOpArgs { dir: FileHandle::new(b"").unwrap(), name: b"a.c" }));

    let long_name = DirOpArgs { dir: handle(), name: &[b'x'; 256] };
    let bytes = encoded(&long_name);
    let call = Call::decode(Procedure::Lookup, &mut Decoder::new(&bytes), bytes.len());
    assert_eq!(call, Ok(Call::Lookup(long_name)));

    let long_handle = [words(&[65]), vec![7; 68]].concat();
    for &procedure in Procedure::ALL.iter().filter(|&&procedure| procedure != Procedure::Null) {
        let error = Call::decode(procedure, &mut Decoder::new(&long_handle), 72).unwrap_err();
        assert_eq!(error, Error::TooLong { announced: 65, limit: 64 }, "{procedure:?}");
    }
}

#[test]
fn a_write_is_decoded_from_its_head_alone() {
    let head = [vec![0; 40], words(&[&HANDLE[..], &[0, 2, 5, 0, 4097]].concat())].concat();
    let decode = |message_bytes| {
        let mut xdr = Decoder::new(&head);
        xdr.fixed(40).unwrap();
        Call::decode(Procedure::Write, &mut xdr, message_bytes)
    };
    let whole = head.len() + 4100;
    let Ok(Call::Write(args)) = decode(whole) else { panic!() };
    assert_eq!((args.count, args.data.len_bytes()), (5, 4097));
    assert_eq!(args.data.range(whole), Ok(head.len()..head.len() + 4097));
    assert_eq!(decode(whole - 1), Err(Error::Short { missing_bytes: 1 }));
    assert_eq!(decode(head.len()), Err(Error::Short { missing_bytes: 4100 }));
}

/// Asserts the encoding, also against the foreign codec, whose type is `F`.
#[track_caller]
fn reply_is<F, T>(reply: &T, layout: &[u32])
where
    F: Pack + Unpack,
    T: Encode + Decode<'static> + PartialEq + std::fmt::Debug,
{
    let bytes = words(layout);
    common::reply_is(reply, &bytes);
    agrees::<F>(&bytes);
}

fn after(head: &[u32], attr_then: &[u32]) -> Vec<u32> {
    [head, &[1], &FATTR, attr_then].concat()
}

#[test]
fn replies_match_the_rfc_layout() {
    let attributes = Some(fattr());
    assert_eq!(encoded(&fattr()).len(), FATTR_BYTES);
    reply_is::<foreign::GETATTR3res, _>(&GetattrReply::Ok(fattr()), &[&[0][..], &FATTR].concat());
    reply_is::<foreign::GETATTR3res, _>(&GetattrReply::Failed(Status::Stale, ()), &[70]);
    reply_is::<foreign::SETATTR3res, _>(&SetattrReply::Ok(wcc()), &[&[0][..], &WCC].concat());
    reply_is::<foreign::SETATTR3res, _>(
        &SetattrReply::Failed(Status::NotSync, WccData::NONE),
        &[10_002, 0, 0],
    );
    let found = LookupOk { object: handle(), attributes, dir_attributes: None };
    reply_is::<foreign::LOOKUP3res, _>(&LookupReply::Ok(found), &after(&[&[0][..], &HANDLE].concat(), &[0]));
    reply_is::<foreign::LOOKUP3res, _>(&LookupReply::Failed(Status::NoEnt, attributes), &after(&[2], &[]));
    let access = AccessBits::READ | AccessBits::EXECUTE;
    reply_is::<foreign::ACCESS3res, _>(
        &AccessReply::Ok(AccessOk { attributes: None, access }),
        &[0, 0, 0x21],
    );
    reply_is::<foreign::READLINK3res<'_>, _>(
        &ReadlinkReply::Ok(ReadlinkOk { attributes: None, target: b"a.c" }),
        &[0, 0, 3, NAME[1]],
    );
    let made = CreateOk { object: Some(handle()), attributes: None, dir_wcc: wcc() };
    reply_is::<foreign::CREATE3res, _>(&CreateReply::Ok(made), &[&[0, 1][..], &HANDLE, &[0], &WCC].concat());
    let unknown = CreateOk { object: None, attributes, dir_wcc: WccData::NONE };
    reply_is::<foreign::CREATE3res, _>(&CreateReply::Ok(unknown), &after(&[0, 0], &[0, 0]));
    reply_is::<foreign::CREATE3res, _>(
        &CreateReply::Failed(Status::Exist, wcc()),
        &[&[17][..], &WCC].concat(),
    );
    reply_is::<foreign::REMOVE3res, _>(&RemoveReply::Failed(Status::Acces, WccData::NONE), &[13, 0, 0]);
    let both = RenameWcc { from_dir: wcc(), to_dir: WccData::NONE };
    reply_is::<foreign::RENAME3res, _>(&RenameReply::Ok(both), &[&[0][..], &WCC, &[0, 0]].concat());
    reply_is::<foreign::RENAME3res, _>(
        &RenameReply::Failed(Status::XDev, both),
        &[&[18][..], &WCC, &[0, 0]].concat(),
    );
    reply_is::<foreign::LINK3res, _>(
        &LinkReply::Ok(LinkWcc { attributes: None, dir_wcc: wcc() }),
        &[&[0, 0][..], &WCC].concat(),
    );
    let stable = WriteOk {
        file_wcc: WccData::NONE,
        count: 5,
        committed: StableHow::DataSync,
        verifier: WriteVerifier([2; 8]),
    };
    reply_is::<foreign::WRITE3res, _>(&WriteReply::Ok(stable), &[0, 0, 0, 5, 1, 0x0202_0202, 0x0202_0202]);
    let committed = CommitOk { file_wcc: WccData::NONE, verifier: WriteVerifier([2; 8]) };
    reply_is::<foreign::COMMIT3res, _>(&CommitReply::Ok(committed), &[0, 0, 0, 0x0202_0202, 0x0202_0202]);
}

#[test]
fn listings_match_the_rfc_layout() {
    let entry = DirEntry3 { fileid: (1 << 32) | 2, name: b"a.c", cookie: Cookie3((3 << 32) | 4) };
    let (dir_attributes, verifier) = (None, CookieVerifier(*b"abcdefgh"));
    let head = [0, 0, u32::from_be_bytes(*b"abcd"), u32::from_be_bytes(*b"efgh")];
    let entry_words = [&[1, 1, 2][..], &NAME, &[3, 4]].concat();
    let page = ReaddirOk { dir_attributes, verifier, entries: list(&[entry]), eof: true };
    reply_is::<foreign::READDIR3res<'_>, _>(
        &ReaddirReply::Ok(page),
        &[&head[..], &entry_words, &[0, 1]].concat(),
    );
    let plus = DirEntryPlus3 { entry, attributes: Some(fattr()), handle: Some(handle()) };
    let page = ReaddirplusOk { dir_attributes, verifier, entries: list(&[plus]), eof: false };
    let plus_words = [&entry_words[..], &[1], &FATTR, &[1], &HANDLE].concat();
    reply_is::<foreign::READDIRPLUS3res<'_>, _>(
        &ReaddirplusReply::Ok(page),
        &[&head[..], &plus_words, &[0, 0]].concat(),
    );
}

#[test]
fn file_system_replies_match_the_rfc_layout() {
    let fsstat = FsstatOk {
        attributes: None,
        total_bytes: 1,
        free_bytes: 2,
        available_bytes: 3,
        total_files: 4,
        free_files: 5,
        available_files: 6,
        invarsec: 7,
    };
    reply_is::<foreign::FSSTAT3res, _>(
        &FsstatReply::Ok(fsstat),
        &[0, 0, 0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 7],
    );
    let fsinfo = FsinfoOk {
        attributes: None,
        read_max: 1,
        read_preferred: 2,
        read_multiple: 3,
        write_max: 4,
        write_preferred: 5,
        write_multiple: 6,
        readdir_preferred: 7,
        file_size_max: 8,
        time_delta: NfsTime3 { seconds: 9, nseconds: 10 },
        properties: Properties::all(),
    };
    reply_is::<foreign::FSINFO3res, _>(
        &FsinfoReply::Ok(fsinfo),
        &[0, 0, 1, 2, 3, 4, 5, 6, 7, 0, 8, 9, 10, 0x1b],
    );
    let pathconf = PathconfOk {
        attributes: None,
        link_max: 1,
        name_max: 255,
        no_trunc: true,
        chown_restricted: false,
        case_insensitive: false,
        case_preserving: true,
    };
    reply_is::<foreign::PATHCONF3res, _>(&PathconfReply::Ok(pathconf), &[0, 0, 1, 255, 1, 0, 0, 1]);
    reply_is::<foreign::PATHCONF3res, _>(&PathconfReply::Failed(Status::BadHandle, None), &[10_001, 0]);
}

#[test]
fn read_header_ends_where_data_begin() {
    let reply = ReadReply::Ok(ReadOk::to_send(None, 5, true));
    let head = words(&[0, 0, 5, 1, 5]);
    assert_eq!(encoded(&reply), head);
    agrees::<foreign::READ3res<'_>>(&[&head[..], b"hello\0\0\0"].concat());
    survives(&head, |bytes| ReadReply::decode(&mut Decoder::new(bytes)).map(drop));
    let Ok(ReadReply::Ok(read)) = ReadReply::decode(&mut Decoder::new(&head)) else { panic!() };
    assert_eq!((read.count, read.eof, read.data.range(head.len() + 8)), (5, true, Ok(20..25)));
    assert!(read.data.range(head.len() + 7).is_err(), "the padding is missing");
}

#[test]
fn an_unknown_status_is_garbage() {
    for number in [3, 4, 72, 10_000, 10_009, u32::MAX] {
        let bytes = words(&[number, 0, 0]);
        let error = LookupReply::decode(&mut Decoder::new(&bytes)).unwrap_err();
        assert_eq!(error, Error::BadEnum { name: "Status", value: number });
    }
}

#[test]
fn mount_messages_match_the_rfc_layout() {
    let path = mount::DirPath::new(b"/a.c").unwrap();
    let path_words = [4, u32::from_be_bytes(*b"/a.c")];
    assert_eq!(encoded(&mount::Call::Mnt(path)), words(&path_words));
    agrees::<foreign_mount::dirpath<'_>>(&words(&path_words));
    for call in [mount::Call::Mnt(path), mount::Call::Umnt(path)] {
        let decode = |bytes: &[u8]| mount::Call::decode(call.procedure(), &mut Decoder::new(bytes)).map(drop);
        assert_eq!(mount::Call::decode(call.procedure(), &mut Decoder::new(&words(&path_words))), Ok(call));
        survives(&words(&path_words), decode);
    }
    for call in [mount::Call::Null, mount::Call::Dump, mount::Call::UmntAll, mount::Call::Export] {
        assert_eq!(encoded(&call), b"");
        assert_eq!(mount::Call::decode(call.procedure(), &mut Decoder::new(b"")), Ok(call));
    }
    let root = mount::MntOk { handle: handle(), flavors: mount::Flavors::new(&[AuthFlavor::SYS]).unwrap() };
    reply_is::<foreign_mount::mountres3<'_>, _>(
        &mount::MntReply::Ok(root),
        &[&[0][..], &HANDLE, &[1, 1]].concat(),
    );
    reply_is::<foreign_mount::mountres3<'_>, _>(&mount::MntReply::Failed(mount::Status::NoEnt, ()), &[2]);

    let groups: List<'_, mount::MountName<'_>> = list(&[mount::MountName::new(b"a.c").unwrap()]);
    let exports: mount::ExportReply<'_> = list(&[mount::ExportEntry { path, groups }]);
    reply_is::<foreign_mount::exports<'_, '_>, _>(
        &exports,
        &[&[1][..], &path_words, &[1], &NAME, &[0, 0]].concat(),
    );
    let client = mount::MountName::new(b"a.c").unwrap();
    let mounts: mount::DumpReply<'_> = list(&[mount::MountEntry { client, path }]);
    reply_is::<foreign_mount::mountlist<'_, '_>, _>(&mounts, &[&[1][..], &NAME, &path_words, &[0]].concat());
}

#[test]
fn paths_and_names_of_mount_have_their_limits() {
    let path_of = |len: usize| [words(&[len as u32]), vec![b'x'; len.next_multiple_of(4)]].concat();
    let bytes = path_of(1024);
    assert!(mount::Call::decode(mount::Procedure::Mnt, &mut Decoder::new(&bytes)).is_ok());
    for procedure in [mount::Procedure::Mnt, mount::Procedure::Umnt] {
        let error = mount::Call::decode(procedure, &mut Decoder::new(&path_of(1025))).unwrap_err();
        assert_eq!(error, Error::TooLong { announced: 1025, limit: 1024 });
    }
    let flavors = words(&[&[0][..], &HANDLE, &[u32::MAX]].concat());
    assert!(mount::MntReply::decode(&mut Decoder::new(&flavors)).is_err());
}
