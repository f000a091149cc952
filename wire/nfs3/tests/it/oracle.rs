//! Against a foreign codec (`nfs3_types`): what we encode it decodes, and encodes again to the same bytes. Which field stands where is in
//! `layouts`.

use crate::common::*;
use nfs3_types::xdr_codec::{Pack, Unpack};
use nfs3_types::{mount as foreign_mount, nfs3 as foreign, rpc as foreign_rpc};
use proptest::prelude::*;
use tombolo_wire_nfs3::args::*;
use tombolo_wire_nfs3::results::*;
use tombolo_wire_nfs3::*;
use tombolo_wire_rpc::{
    Accepted, AuthFlavor, AuthStat, AuthSys, CallHeader, Credential, Gids, Rejected, ReplyHeader, Xid,
};

/// The foreign codec takes these bytes for a `T`, all of them, and writes them again.
fn agrees<T: Pack + Unpack>(bytes: &[u8]) -> Result<(), TestCaseError> {
    let mut input = bytes;
    let (value, used) = T::unpack(&mut input).map_err(|error| TestCaseError::fail(format!("{error:?}")))?;
    prop_assert_eq!(used, bytes.len());
    let mut packed = Vec::new();
    value.pack(&mut packed).unwrap();
    prop_assert_eq!(packed, bytes);
    Ok(())
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
