//! Comparison with a foreign codec (`nfs3_types`): it decodes our encodings, and re-encodes the same bytes.
//! The order of fields is tested in `layouts`, whose messages are compared as well.

use nfs3_types::{mount as foreign_mount, nfs3 as foreign, rpc as foreign_rpc};
use tombolo_wire_nfs3::args::*;
use tombolo_wire_nfs3::*;
use tombolo_wire_rpc::{
    Accepted, AuthStat, AuthSys, CallHeader, Credential, Gids, Rejected, ReplyHeader, Xid,
};
use tombolo_wire_xdr::encoded;

use crate::common::agrees;

/// Asserts that the foreign codec decodes the same call.
pub fn call_agrees(call: Call<'_>) {
    let mut bytes = encoded(&call);
    match call {
        Call::Null => {}
        Call::Getattr(_) => agrees::<foreign::GETATTR3args>(&bytes),
        Call::Setattr(_) => agrees::<foreign::SETATTR3args>(&bytes),
        Call::Lookup(_) => agrees::<foreign::LOOKUP3args<'_>>(&bytes),
        Call::Access(_) => agrees::<foreign::ACCESS3args>(&bytes),
        Call::Readlink(_) => agrees::<foreign::READLINK3args>(&bytes),
        Call::Read(_) => agrees::<foreign::READ3args>(&bytes),
        Call::Write(args) => {
            // The foreign codec needs the data, too; 64 KiB of them are enough.
            let len = args.data.len_bytes() & 0xffff;
            bytes = encoded(&Call::Write(WriteArgs { data: Data::to_send(len), ..args }));
            bytes.resize(bytes.len() + (len as usize).next_multiple_of(4), 0);
            agrees::<foreign::WRITE3args<'_>>(&bytes)
        }
        Call::Create(_) => agrees::<foreign::CREATE3args<'_>>(&bytes),
        Call::Mkdir(_) => agrees::<foreign::MKDIR3args<'_>>(&bytes),
        Call::Symlink(_) => agrees::<foreign::SYMLINK3args<'_>>(&bytes),
        // The foreign codec cannot encode the void arm.
        Call::Mknod(MknodArgs { what: MknodKind::Other(_), .. }) => {}
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

#[test]
fn call_headers() {
    for gids in [&[][..], &[0; 16]] {
        let gids = Gids::new(gids).unwrap();
        let sys = AuthSys { stamp: 1, machine: b"islet", uid: 2, gid: 3, gids };
        let header = CallHeader::new(Xid(4), PROGRAM, VERSION, 5, Credential::Sys(sys));
        agrees::<foreign_rpc::rpc_msg<'_, '_>>(&encoded(&header));
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
        agrees::<foreign_rpc::rpc_msg<'_, '_>>(&encoded(&ReplyHeader::accept(Xid(1), status)));
    }
    for why in [Rejected::RpcMismatch { low: 2, high: 2 }, Rejected::Auth(AuthStat::TooWeak)] {
        agrees::<foreign_rpc::rpc_msg<'_, '_>>(&encoded(&ReplyHeader::reject(Xid(1), why)));
    }
}

#[test]
fn statuses_match_the_foreign_codec() {
    for &status in Status::ALL {
        agrees::<foreign::nfsstat3>(&encoded(&status));
    }
    for &status in mount::Status::ALL {
        agrees::<foreign_mount::mountstat3>(&encoded(&status));
    }
}
