//! NFS calls answered with the same replies always: what the callers and the network cost.

use std::io;

use tombolo_wire_nfs3::mount::{self, Flavors, MntOk, MntReply};
use tombolo_wire_nfs3::results::{GetattrReply, LookupOk, LookupReply};
use tombolo_wire_nfs3::{Fattr3, FileHandle, FileType3, NfsTime3, PROGRAM, Procedure, SpecData3};
use tombolo_wire_rpc::{Accepted, AuthFlavor, CallHeader, Mark, ReplyHeader, Xid};
use tombolo_wire_xdr::{Decoder, Encoder};

use super::super::Stream;
use super::super::client::Records;

/// Bytes of one read.
const READ_BYTES: usize = 256 << 10;
/// Bytes of a call that are looked at: its header.
const HEAD_BYTES: usize = 128;
/// The handle of everything.
const HANDLE: &[u8] = b"nullnull";
/// The attributes of everything.
const ATTRIBUTES: Fattr3 = Fattr3 {
    file_type: FileType3::Regular,
    mode: 0o644,
    nlink: 1,
    uid: 0,
    gid: 0,
    size: 0,
    used: 0,
    rdev: SpecData3 { major: 0, minor: 0 },
    fsid: 1,
    fileid: 1,
    atime: EPOCH,
    mtime: EPOCH,
    ctime: EPOCH,
};
const EPOCH: NfsTime3 = NfsTime3 { seconds: 0, nseconds: 0 };

/// Answers until the client leaves.
pub fn converse(mut stream: Stream) -> io::Result<()> {
    let mut records = Records::new(HEAD_BYTES);
    let mut buffer = vec![0; READ_BYTES];
    let mut replies = Vec::new();
    loop {
        let got = match stream.read(&mut buffer)? {
            0 => return Ok(()),
            count => count,
        };
        records.feed(&buffer[..got], |call| answer(call.head, &mut replies))?;
        stream.write_all(&replies)?;
        replies.clear();
    }
}

fn answer(call: &[u8], replies: &mut Vec<u8>) -> io::Result<()> {
    let mut xdr = Decoder::new(call);
    let not_served = |error| io::Error::new(io::ErrorKind::InvalidData, error);
    let header = CallHeader::receive(&mut xdr).map_err(not_served)?;
    let at = replies.len();
    replies.extend_from_slice(&[0; Mark::BYTES]);
    let mut out = Encoder::new(replies);
    results(header.program, header.procedure, header.xid, &mut out);
    if let (Some(mark), Some(place)) = (Mark::whole(out.position()), replies.get_mut(at..at + Mark::BYTES)) {
        place.copy_from_slice(&mark.to_bytes());
    }
    Ok(())
}

fn results(program: u32, procedure: u32, xid: Xid, out: &mut Encoder<'_>) {
    let nfs = Procedure::from_number(procedure).filter(|_| program == PROGRAM);
    let mount = mount::Procedure::from_number(procedure).filter(|_| program == mount::PROGRAM);
    let Some(handle) = FileHandle::new(HANDLE) else { return };
    let served = matches!(nfs, Some(Procedure::Null | Procedure::Getattr | Procedure::Lookup))
        || matches!(mount, Some(mount::Procedure::Null | mount::Procedure::Mnt));
    let status = if served { Accepted::Success } else { Accepted::ProcUnavail };
    out.value(&ReplyHeader::accept(xid, status));
    match (nfs, mount) {
        (Some(Procedure::Getattr), _) => out.value(&GetattrReply::Ok(ATTRIBUTES)),
        (Some(Procedure::Lookup), _) => {
            out.value(&LookupReply::Ok(LookupOk { object: handle, attributes: None, dir_attributes: None }))
        }
        (_, Some(mount::Procedure::Mnt)) => {
            // One is not too many.
            let Some(flavors) = Flavors::new(&[AuthFlavor::SYS]) else { return };
            out.value(&MntReply::Ok(MntOk { handle, flavors }))
        }
        _ => out,
    };
}
