//! Codec by the generic XDR library `nfs3_types`, which passes even file data through `Write` or `Read`.

use std::borrow::Cow;
use std::hint::black_box;
use std::io::Cursor;

use nfs3_types::nfs3::{
    self, Nfs3Result, READ3args, READ3resfail, READ3resok, WRITE3args, WRITE3resfail, WRITE3resok, nfs_fh3,
    stable_how,
};
use nfs3_types::rpc::{
    RPC_VERSION_2, accept_stat_data, auth_unix, call_body, fragment_header, msg_body, opaque_auth,
    reply_body, rpc_msg,
};
use nfs3_types::xdr_codec::{Opaque, Pack, Unpack};

use super::Moved;
use crate::nfs::client::Handle;

const WRITE: u32 = 7;
const READ: u32 = 6;
const MARK_BYTES: usize = 4;

pub fn write_call(out: &mut Vec<u8>, xid: u32, file: &Handle, offset: u64, data: &[u8]) {
    call(out, xid, WRITE, &write_args(file, offset, data));
}

/// Returns the arguments of an unstable WRITE.
pub fn write_args<'a>(file: &Handle, offset: u64, data: &'a [u8]) -> WRITE3args<'a> {
    WRITE3args {
        file: handle(file),
        offset,
        count: data.len() as u32,
        stable: stable_how::UNSTABLE,
        data: Opaque::borrowed(data),
    }
}

pub fn read_call(out: &mut Vec<u8>, xid: u32, file: &Handle, offset: u64, count: u32) {
    call(out, xid, READ, &READ3args { file: handle(file), offset, count });
}

fn handle(file: &Handle) -> nfs_fh3 {
    nfs_fh3 { data: Opaque(Cow::Owned(file.as_handle().as_bytes().to_vec())) }
}

fn call(out: &mut Vec<u8>, xid: u32, procedure: u32, args: &impl Pack) {
    let root = auth_unix { machinename: Opaque::borrowed(b"bench"), ..auth_unix::default() };
    let body = call_body {
        rpcvers: RPC_VERSION_2,
        prog: nfs3::PROGRAM,
        vers: nfs3::VERSION,
        proc: procedure,
        cred: opaque_auth::auth_unix(&root),
        verf: opaque_auth::default(),
    };
    let message = rpc_msg { xid, body: msg_body::CALL(body) };
    let len = message.packed_size() + args.packed_size();
    let mark = fragment_header::new(u32::try_from(len).unwrap_or_default(), true);
    // Writing to memory does not fail.
    let _packed = mark.pack(out).and_then(|_| message.pack(out)).and_then(|_| args.pack(out));
}

pub fn write_reply(record: &[u8], xid: u32) -> Option<Moved> {
    let mut input = open(record, xid)?;
    match Nfs3Result::<WRITE3resok, WRITE3resfail>::unpack(&mut input).ok()?.0 {
        Nfs3Result::Ok(ok) => {
            // The rest of the reply is decoded into the library's types and dropped.
            black_box(&ok.file_wcc);
            Some(Moved { count: ok.count, data: 0..0, attributes: None })
        }
        Nfs3Result::Err(_) => None,
    }
}

/// Decodes a READ reply. The library's copy of the data is ignored: only their range is returned.
pub fn read_reply(record: &[u8], xid: u32) -> Option<Moved> {
    let mut input = open(record, xid)?;
    match Nfs3Result::<READ3resok<'_>, READ3resfail>::unpack(&mut input).ok()?.0 {
        Nfs3Result::Ok(ok) => {
            let end = MARK_BYTES + input.position() as usize;
            let padded = ok.data.len().next_multiple_of(4);
            let start = end.checked_sub(padded)?;
            black_box(&ok.file_attributes);
            Some(Moved { count: ok.count, data: start..start + ok.data.len(), attributes: None })
        }
        Nfs3Result::Err(_) => None,
    }
}

fn open(record: &[u8], xid: u32) -> Option<Cursor<&[u8]>> {
    let mut input = Cursor::new(record.get(MARK_BYTES..)?);
    let message = rpc_msg::unpack(&mut input).ok()?.0;
    match message.body {
        msg_body::REPLY(reply_body::MSG_ACCEPTED(reply))
            if message.xid == xid && matches!(reply.reply_data, accept_stat_data::SUCCESS) =>
        {
            Some(input)
        }
        _ => None,
    }
}
