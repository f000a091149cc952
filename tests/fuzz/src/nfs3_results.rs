//! Arbitrary bytes as results of any NFS procedure: a client must neither panic nor read out of bounds, and
//! must be able to encode decoded results.

use tombolo_wire_nfs3::attr::{attr, change, fattr3};
use tombolo_wire_nfs3::results::*;
use tombolo_wire_nfs3::status::{from_status, to_status};
use tombolo_wire_nfs3::{Procedure, Reply};

use crate::xdr::decoded;

/// Runs the target.
pub fn run(bytes: &[u8]) {
    let Some((&number, message)) = bytes.split_first() else { return };
    let Some(procedure) = Procedure::from_number(u32::from(number) % 22) else { return };
    match procedure {
        Procedure::Null => {}
        Procedure::Getattr => {
            if let Some(Reply::Ok(fattr)) = decoded::<GetattrReply>(message) {
                let _ = fattr3(&attr(&fattr));
            }
        }
        Procedure::Setattr => {
            if let Some(Reply::Ok(wcc) | Reply::Failed(_, wcc)) = decoded::<SetattrReply>(message) {
                let _ = change(&wcc);
            }
        }
        Procedure::Lookup => {
            if let Some(Reply::Failed(status, _)) = decoded::<LookupReply<'_>>(message) {
                let _ = to_status(&from_status(status));
            }
        }
        Procedure::Access => _ = decoded::<AccessReply>(message),
        Procedure::Readlink => _ = decoded::<ReadlinkReply<'_>>(message),
        Procedure::Read => {
            if let Some(Reply::Ok(read)) = decoded::<ReadReply>(message)
                && let Ok(range) = read.data.range(message.len())
            {
                assert!(message.get(range).is_some());
            }
        }
        Procedure::Write => _ = decoded::<WriteReply>(message),
        Procedure::Create | Procedure::Mkdir | Procedure::Symlink | Procedure::Mknod => {
            _ = decoded::<CreateReply<'_>>(message);
        }
        Procedure::Remove | Procedure::Rmdir => _ = decoded::<RemoveReply>(message),
        Procedure::Rename => _ = decoded::<RenameReply>(message),
        Procedure::Link => _ = decoded::<LinkReply>(message),
        Procedure::Readdir => {
            if let Some(Reply::Ok(page)) = decoded::<ReaddirReply<'_>>(message) {
                assert!(page.entries.into_iter().count() <= message.len() / 24);
            }
        }
        Procedure::Readdirplus => {
            if let Some(Reply::Ok(page)) = decoded::<ReaddirplusReply<'_>>(message) {
                assert!(page.entries.into_iter().count() <= message.len() / 32);
            }
        }
        Procedure::Fsstat => _ = decoded::<FsstatReply>(message),
        Procedure::Fsinfo => _ = decoded::<FsinfoReply>(message),
        Procedure::Pathconf => _ = decoded::<PathconfReply>(message),
        Procedure::Commit => _ = decoded::<CommitReply>(message),
    }
}
