//! Arbitrary bytes as results of any NFS procedure: a client must neither panic nor read out of bounds, and
//! must be able to encode decoded results.

use tombolo_wire_nfs3::attr::{attr, change, fattr3};
use tombolo_wire_nfs3::results::*;
use tombolo_wire_nfs3::status::{from_status, to_status};
use tombolo_wire_nfs3::{Procedure, Reply};
use tombolo_wire_xdr::{Decode, Decoder, Encode, Encoder};

/// Runs the target.
pub fn run(bytes: &[u8]) {
    let Some((&number, message)) = bytes.split_first() else { return };
    let Some(procedure) = Procedure::from_number(u32::from(number) % 22) else { return };
    match procedure {
        Procedure::Null => {}
        Procedure::Getattr => {
            if let Some(Reply::Ok(fattr)) = read::<GetattrReply>(message) {
                let _ = fattr3(&attr(&fattr));
            }
        }
        Procedure::Setattr => {
            if let Some(Reply::Ok(wcc) | Reply::Failed(_, wcc)) = read::<SetattrReply>(message) {
                let _ = change(&wcc);
            }
        }
        Procedure::Lookup => {
            if let Some(Reply::Failed(status, _)) = read::<LookupReply<'_>>(message) {
                let _ = to_status(&from_status(status));
            }
        }
        Procedure::Access => {
            read::<AccessReply>(message);
        }
        Procedure::Readlink => {
            read::<ReadlinkReply<'_>>(message);
        }
        Procedure::Read => {
            if let Some(Reply::Ok(read)) = read::<ReadReply>(message)
                && let Ok(range) = read.data.range(message.len())
            {
                assert!(message.get(range).is_some());
            }
        }
        Procedure::Write => {
            read::<WriteReply>(message);
        }
        Procedure::Create | Procedure::Mkdir | Procedure::Symlink | Procedure::Mknod => {
            read::<CreateReply<'_>>(message);
        }
        Procedure::Remove | Procedure::Rmdir => {
            read::<RemoveReply>(message);
        }
        Procedure::Rename => {
            read::<RenameReply>(message);
        }
        Procedure::Link => {
            read::<LinkReply>(message);
        }
        Procedure::Readdir => {
            if let Some(Reply::Ok(page)) = read::<ReaddirReply<'_>>(message) {
                assert!(page.entries.into_iter().count() <= message.len() / 24);
            }
        }
        Procedure::Readdirplus => {
            if let Some(Reply::Ok(page)) = read::<ReaddirplusReply<'_>>(message) {
                assert!(page.entries.into_iter().count() <= message.len() / 32);
            }
        }
        Procedure::Fsstat => {
            read::<FsstatReply>(message);
        }
        Procedure::Fsinfo => {
            read::<FsinfoReply>(message);
        }
        Procedure::Pathconf => {
            read::<PathconfReply>(message);
        }
        Procedure::Commit => {
            read::<CommitReply>(message);
        }
    }
}

/// Decodes, encodes again, and compares the length with that read.
fn read<'a, T: Decode<'a> + Encode>(message: &'a [u8]) -> Option<T> {
    let mut xdr = Decoder::new(message);
    let value = T::decode(&mut xdr).ok()?;
    let mut again = Vec::new();
    value.encode(&mut Encoder::new(&mut again));
    assert_eq!(again.len(), xdr.position());
    Some(value)
}
