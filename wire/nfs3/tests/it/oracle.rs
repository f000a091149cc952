//! Against a foreign codec (`nfs3_types`): what we encode it decodes, and encodes again to the same bytes; and the
//! fields it finds are the ones we meant.

use crate::common::*;
use nfs3_types::xdr_codec::{List, Opaque, Pack, Unpack, Void};
use nfs3_types::{mount as foreign_mount, nfs3 as foreign, rpc as foreign_rpc};
use proptest::prelude::*;
use tombolo_wire_nfs3::args::*;
use tombolo_wire_nfs3::listing::{DirEntry3, DirEntryPlus3, ReaddirplusOk};
use tombolo_wire_nfs3::results::*;
use tombolo_wire_nfs3::*;
use tombolo_wire_rpc::{
    Accepted, AuthFlavor, AuthStat, AuthSys, CallHeader, Credential, Gids, Rejected, ReplyHeader, Xid,
};
use tombolo_wire_xdr::{Decode, Decoder};

/// The foreign codec takes these bytes for a `T`, all of them, and writes them again.
fn agrees<T: Pack + Unpack>(bytes: &[u8]) -> Result<(), TestCaseError> {
    let mut input = bytes;
    let (value, used) = T::unpack(&mut input).map_err(|error| TestCaseError::fail(format!("{error:?}")))?;
    prop_assert_eq!(used, bytes.len());
    prop_assert_eq!(packed(&value), bytes);
    Ok(())
}

fn packed(value: &impl Pack) -> Vec<u8> {
    let mut bytes = Vec::new();
    value.pack(&mut bytes).unwrap();
    bytes
}

fn call_agrees(call: Call<'_>) -> Result<(), TestCaseError> {
    let mut bytes = encoded(&call);
    match call {
        Call::Null => Ok(()),
        Call::Getattr(_) => agrees::<foreign::GETATTR3args>(&bytes),
        Call::Setattr(_) => agrees::<foreign::SETATTR3args>(&bytes),
        Call::Lookup(_) => agrees::<foreign::LOOKUP3args<'_>>(&bytes),
        Call::Access(_) => agrees::<foreign::ACCESS3args>(&bytes),
        Call::Readlink(_) => agrees::<foreign::READLINK3args>(&bytes),
        Call::Read(_) => agrees::<foreign::READ3args>(&bytes),
        Call::Write(args) => {
            // The foreign one wants the data, too; 64 KiB of it are enough.
            let len = args.data.len_bytes() & 0xffff;
            bytes = encoded(&Call::Write(WriteArgs { data: Data::to_send(len), ..args }));
            bytes.resize(bytes.len() + (len as usize).next_multiple_of(4), 0);
            agrees::<foreign::WRITE3args<'_>>(&bytes)
        }
        Call::Create(_) => agrees::<foreign::CREATE3args<'_>>(&bytes),
        Call::Mkdir(_) => agrees::<foreign::MKDIR3args<'_>>(&bytes),
        Call::Symlink(_) => agrees::<foreign::SYMLINK3args<'_>>(&bytes),
        // It cannot write the void arm.
        Call::Mknod(MknodArgs { what: MknodWhat::Other(_), .. }) => Ok(()),
        Call::Mknod(_) => agrees::<foreign::MKNOD3args<'_>>(&bytes),
        Call::Remove(_) => agrees::<foreign::REMOVE3args<'_>>(&bytes),
        Call::Rmdir(_) => agrees::<foreign::RMDIR3args<'_>>(&bytes),
        Call::Rename(_) => agrees::<foreign::RENAME3args<'_, '_>>(&bytes),
        Call::Link(_) => agrees::<foreign::LINK3args<'_>>(&bytes),
        Call::Readdir(_) => agrees::<foreign::READDIR3args>(&bytes),
        Call::Readdirplus(_) => agrees::<foreign::READDIRPLUS3args>(&bytes),
        Call::Fsstat(_) => agrees::<foreign::FSSTAT3args>(&bytes),
        Call::Fsinfo(_) => agrees::<foreign::FSINFO3args>(&bytes),
        Call::Pathconf(_) => agrees::<foreign::PATHCONF3args>(&bytes),
        Call::Commit(_) => agrees::<foreign::COMMIT3args>(&bytes),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn calls(call in call()) {
        call_agrees(call)?;
    }

    #[test]
    fn replies_about_nodes(
        getattr in reply(fattr(), Just(())),
        setattr in reply(wcc(), wcc()),
        lookup in reply(lookup_ok(), post_op_attr()),
        access in reply(access_ok(), post_op_attr()),
        readlink in reply(readlink_ok(), post_op_attr()),
        fsstat in reply(fsstat_ok(), post_op_attr()),
        fsinfo in reply(fsinfo_ok(), post_op_attr()),
        pathconf in reply(pathconf_ok(), post_op_attr()),
    ) {
        agrees::<foreign::GETATTR3res>(&encoded::<GetattrReply>(&getattr))?;
        agrees::<foreign::SETATTR3res>(&encoded::<SetattrReply>(&setattr))?;
        agrees::<foreign::LOOKUP3res>(&encoded::<LookupReply<'_>>(&lookup))?;
        agrees::<foreign::ACCESS3res>(&encoded::<AccessReply>(&access))?;
        agrees::<foreign::READLINK3res<'_>>(&encoded::<ReadlinkReply<'_>>(&readlink))?;
        agrees::<foreign::FSSTAT3res>(&encoded::<FsstatReply>(&fsstat))?;
        agrees::<foreign::FSINFO3res>(&encoded::<FsinfoReply>(&fsinfo))?;
        agrees::<foreign::PATHCONF3res>(&encoded::<PathconfReply>(&pathconf))?;
    }

    #[test]
    fn replies_about_changes(
        write in reply(write_ok(), wcc()),
        create in reply(create_ok(), wcc()),
        remove in reply(wcc(), wcc()),
        rename in reply(rename_wcc(), rename_wcc()),
        link in reply(link_wcc(), link_wcc()),
        commit in reply(commit_ok(), wcc()),
    ) {
        agrees::<foreign::WRITE3res>(&encoded::<WriteReply>(&write))?;
        let create = encoded::<CreateReply<'_>>(&create);
        agrees::<foreign::CREATE3res>(&create)?;
        agrees::<foreign::MKDIR3res>(&create)?;
        agrees::<foreign::SYMLINK3res>(&create)?;
        agrees::<foreign::MKNOD3res>(&create)?;
        let remove = encoded::<RemoveReply>(&remove);
        agrees::<foreign::REMOVE3res>(&remove)?;
        agrees::<foreign::RMDIR3res>(&remove)?;
        agrees::<foreign::RENAME3res>(&encoded::<RenameReply>(&rename))?;
        agrees::<foreign::LINK3res>(&encoded::<LinkReply>(&link))?;
        agrees::<foreign::COMMIT3res>(&encoded::<CommitReply>(&commit))?;
    }

    #[test]
    fn reads_and_listings(
        attributes in post_op_attr(),
        data in bytes(100),
        readdir in reply(readdir_ok(), post_op_attr()),
        readdirplus in reply(readdirplus_ok(), post_op_attr()),
    ) {
        let head = ReadReply::Ok(ReadOk::to_send(attributes, data.len() as u32, true));
        let padding = &[0; 3][..data.len().wrapping_neg() % 4];
        agrees::<foreign::READ3res<'_>>(&[&encoded(&head), data, padding].concat())?;
        agrees::<foreign::READDIR3res<'_>>(&encoded(&readdir))?;
        agrees::<foreign::READDIRPLUS3res<'_>>(&encoded(&readdirplus))?;
    }

    #[test]
    fn mounts_and_headers(path in bytes(1024), name in bytes(255), handle in handle(), gids: [u32; 16]) {
        let path = mount::DirPath::new(path).unwrap();
        agrees::<foreign_mount::dirpath<'_>>(&encoded(&mount::Call::Mnt(path)))?;
        let flavors = mount::Flavors::new(&[AuthFlavor::SYS, AuthFlavor::NONE]).unwrap();
        agrees::<foreign_mount::mountres3<'_>>(&encoded(&mount::MntReply::Ok(mount::MntOk { handle, flavors })))?;
        let failed = mount::MntReply::Failed(mount::Status::Acces, ());
        agrees::<foreign_mount::mountres3<'_>>(&encoded(&failed))?;
        let client = mount::MountName::new(name).unwrap();
        let mounts = list(&[mount::MountEntry { client, path }; 2]);
        agrees::<foreign_mount::mountlist<'_, '_>>(&encoded(&mounts))?;
        let exports = list(&[mount::ExportEntry { path, groups: list(&[client, client]) }; 2]);
        agrees::<foreign_mount::exports<'_, '_>>(&encoded(&exports))?;

        let gids = Gids::new(&gids).unwrap();
        let sys = AuthSys { stamp: 1, machine: name, uid: 2, gid: 3, gids };
        let header = CallHeader::new(Xid(4), PROGRAM, VERSION, 5, Credential::Sys(sys));
        agrees::<foreign_rpc::rpc_msg<'_, '_>>(&encoded(&header))?;
    }
}

#[test]
fn reply_headers() {
    for status in [
        Accepted::Success,
        Accepted::ProgUnavail,
        Accepted::ProgMismatch { low: 3, high: 4 },
        Accepted::ProcUnavail,
        Accepted::GarbageArgs,
        Accepted::SystemErr,
    ] {
        agrees::<foreign_rpc::rpc_msg<'_, '_>>(&encoded(&ReplyHeader::accept(Xid(1), status))).unwrap();
    }
    for why in [Rejected::RpcMismatch { low: 2, high: 2 }, Rejected::Auth(AuthStat::TooWeak)] {
        agrees::<foreign_rpc::rpc_msg<'_, '_>>(&encoded(&ReplyHeader::reject(Xid(1), why))).unwrap();
    }
}

#[test]
fn every_status_has_the_foreign_number() {
    for &status in Status::ALL {
        agrees::<foreign::nfsstat3>(&encoded(&status)).unwrap();
    }
    for &status in mount::Status::ALL {
        agrees::<foreign_mount::mountstat3>(&encoded(&status)).unwrap();
    }
}

/// Decodes what the foreign codec encodes.
fn decoded<T: Decode<'static>>(value: &impl Pack) -> T {
    let mut xdr = Decoder::new(packed(value).leak());
    let decoded = T::decode(&mut xdr).unwrap();
    xdr.finish().unwrap();
    decoded
}

fn foreign_time(seconds: u32) -> foreign::nfstime3 {
    foreign::nfstime3 { seconds, nseconds: seconds + 1 }
}

fn our_time(seconds: u32) -> NfsTime3 {
    NfsTime3 { seconds, nseconds: seconds + 1 }
}

fn foreign_fattr() -> foreign::fattr3 {
    foreign::fattr3 {
        type_: foreign::ftype3::NF3SOCK,
        mode: 1,
        nlink: 2,
        uid: 3,
        gid: 4,
        size: 5,
        used: 6,
        rdev: foreign::specdata3 { specdata1: 7, specdata2: 8 },
        fsid: 9,
        fileid: 10,
        atime: foreign_time(11),
        mtime: foreign_time(13),
        ctime: foreign_time(15),
    }
}

fn our_fattr() -> Fattr3 {
    Fattr3 {
        file_type: FileType3::Socket,
        mode: 1,
        nlink: 2,
        uid: 3,
        gid: 4,
        size: 5,
        used: 6,
        rdev: SpecData3 { major: 7, minor: 8 },
        fsid: 9,
        fileid: 10,
        atime: our_time(11),
        mtime: our_time(13),
        ctime: our_time(15),
    }
}

#[test]
fn attributes_are_where_the_foreign_codec_puts_them() {
    assert_eq!(decoded::<Fattr3>(&foreign_fattr()), our_fattr());
    let before = foreign::wcc_attr { size: 1, mtime: foreign_time(2), ctime: foreign_time(4) };
    let wcc = foreign::wcc_data {
        before: foreign::Nfs3Option::Some(before),
        after: foreign::Nfs3Option::Some(foreign_fattr()),
    };
    let before = WccAttr { size: 1, mtime: our_time(2), ctime: our_time(4) };
    assert_eq!(decoded::<WccData>(&wcc), WccData { before: Some(before), after: Some(our_fattr()) });
    let sattr = foreign::sattr3 {
        mode: foreign::Nfs3Option::Some(1),
        uid: foreign::Nfs3Option::Some(2),
        gid: foreign::Nfs3Option::None,
        size: foreign::Nfs3Option::Some(3),
        atime: foreign::set_atime::SET_TO_CLIENT_TIME(foreign_time(4)),
        mtime: foreign::set_mtime::SET_TO_SERVER_TIME,
    };
    let ours = Sattr3 {
        mode: Some(1),
        uid: Some(2),
        gid: None,
        size: Some(3),
        atime: SetTime3::Client(our_time(4)),
        mtime: SetTime3::Server,
    };
    assert_eq!(decoded::<Sattr3>(&sattr), ours);
    assert_eq!(
        decoded::<GetattrReply>(&foreign::GETATTR3res::Ok(foreign::GETATTR3resok {
            obj_attributes: foreign_fattr()
        })),
        Reply::Ok(our_fattr())
    );
    let stale = foreign::GETATTR3res::Err((foreign::nfsstat3::NFS3ERR_STALE, Void));
    assert_eq!(decoded::<GetattrReply>(&stale), Reply::Failed(Status::Stale, ()));
}

#[test]
fn numbers_are_where_the_foreign_codec_puts_them() {
    let fsstat = foreign::FSSTAT3resok {
        obj_attributes: foreign::Nfs3Option::None,
        tbytes: 1,
        fbytes: 2,
        abytes: 3,
        tfiles: 4,
        ffiles: 5,
        afiles: 6,
        invarsec: 7,
    };
    let ours = decoded::<FsstatOk>(&fsstat);
    assert_eq!((ours.total_bytes, ours.free_bytes, ours.available_bytes), (1, 2, 3));
    assert_eq!((ours.total_files, ours.free_files, ours.available_files, ours.invarsec), (4, 5, 6, 7));
    let fsinfo = foreign::FSINFO3resok {
        obj_attributes: foreign::Nfs3Option::None,
        rtmax: 1,
        rtpref: 2,
        rtmult: 3,
        wtmax: 4,
        wtpref: 5,
        wtmult: 6,
        dtpref: 7,
        maxfilesize: 8,
        time_delta: foreign_time(9),
        properties: foreign::FSF3_LINK | foreign::FSF3_CANSETTIME,
    };
    let ours = decoded::<FsinfoOk>(&fsinfo);
    assert_eq!((ours.read_max, ours.read_preferred, ours.read_multiple), (1, 2, 3));
    assert_eq!((ours.write_max, ours.write_preferred, ours.write_multiple), (4, 5, 6));
    assert_eq!((ours.readdir_preferred, ours.file_size_max, ours.time_delta), (7, 8, our_time(9)));
    assert_eq!(ours.properties, Properties::LINK | Properties::CAN_SET_TIME);
    let pathconf = foreign::PATHCONF3resok {
        obj_attributes: foreign::Nfs3Option::None,
        linkmax: 1,
        name_max: 2,
        no_trunc: true,
        chown_restricted: false,
        case_insensitive: true,
        case_preserving: false,
    };
    let ours = decoded::<PathconfOk>(&pathconf);
    assert_eq!((ours.link_max, ours.name_max), (1, 2));
    assert_eq!((ours.no_trunc, ours.chown_restricted), (true, false));
    assert_eq!((ours.case_insensitive, ours.case_preserving), (true, false));
}

#[test]
fn entries_are_where_the_foreign_codec_puts_them() {
    let entry = |fileid, name: &'static [u8]| foreign::entryplus3 {
        fileid,
        name: name.into(),
        cookie: fileid + 1,
        name_attributes: foreign::Nfs3Option::Some(foreign_fattr()),
        name_handle: foreign::Nfs3Option::Some(foreign::nfs_fh3 { data: Opaque::borrowed(b"handle") }),
    };
    let page = foreign::READDIRPLUS3resok {
        dir_attributes: foreign::Nfs3Option::None,
        cookieverf: foreign::cookieverf3(*b"verifier"),
        reply: foreign::dirlistplus3 { entries: List(vec![entry(1, b"a"), entry(3, b"bcdef")]), eof: true },
    };
    let ours = decoded::<ReaddirplusOk<'_>>(&page);
    assert_eq!((ours.verifier, ours.eof), (CookieVerifier(*b"verifier"), true));
    let expected = |fileid, name| DirEntryPlus3 {
        entry: DirEntry3 { fileid, name, cookie: Cookie3(fileid + 1) },
        attributes: Some(our_fattr()),
        handle: FileHandle::new(b"handle"),
    };
    let entries: Vec<_> = ours.entries.into_iter().collect();
    assert_eq!(entries, [expected(1, b"a"), expected(3, b"bcdef")]);
}

#[test]
fn a_write_is_where_the_foreign_codec_puts_it() {
    let write = foreign::WRITE3args {
        file: foreign::nfs_fh3 { data: Opaque::borrowed(b"handle") },
        offset: 1,
        count: 2,
        stable: foreign::stable_how::DATA_SYNC,
        data: Opaque::borrowed(b"hello"),
    };
    let bytes = packed(&write);
    let Ok(Call::Write(args)) = Call::decode(Procedure::Write, &mut Decoder::new(&bytes), bytes.len()) else {
        panic!()
    };
    assert_eq!((args.file, args.offset, args.count), (FileHandle::new(b"handle").unwrap(), 1, 2));
    assert_eq!(args.stable, StableHow::DataSync);
    assert_eq!(bytes[args.data.range(bytes.len()).unwrap()], *b"hello");
}
