//! Tombolo's codec as its NFS client uses it: header and arguments in a buffer, file data separate.

use tombolo_wire_nfs3::args::{ReadArgs, StableHow, WriteArgs};
use tombolo_wire_nfs3::results::{ReadReply, WriteReply};
use tombolo_wire_nfs3::{Call, Data, PROGRAM, Reply, VERSION};
use tombolo_wire_rpc::{Accepted, CallHeader, Mark, ReplyBody, ReplyHeader, Xid};
use tombolo_wire_xdr::{Decoder, Encoder, padded};

use super::Moved;
use crate::nfs::client::{Handle, root};

pub fn write_call(out: &mut Vec<u8>, xid: u32, file: &Handle, offset: u64, count: u32) {
    let data = Data::to_send(count);
    let args = WriteArgs { file: file.as_handle(), offset, count, stable: StableHow::Unstable, data };
    call(out, xid, &Call::Write(args), padded(count as usize));
}

pub fn read_call(out: &mut Vec<u8>, xid: u32, file: &Handle, offset: u64, count: u32) {
    call(out, xid, &Call::Read(ReadArgs { file: file.as_handle(), offset, count }), 0);
}

fn call(out: &mut Vec<u8>, xid: u32, args: &Call<'_>, data_bytes: usize) {
    let at = out.len();
    out.extend_from_slice(&[0; Mark::BYTES]);
    let mut xdr = Encoder::new(out);
    xdr.value(&CallHeader::new(Xid(xid), PROGRAM, VERSION, args.procedure().number(), root()));
    xdr.value(args);
    let len = xdr.position() + data_bytes;
    if let (Some(mark), Some(place)) = (Mark::whole(len), out.get_mut(at..at + Mark::BYTES)) {
        place.copy_from_slice(&mark.to_bytes());
    }
}

pub fn write_reply(record: &[u8], xid: u32) -> Option<Moved> {
    let (mut xdr, _) = open(record, xid)?;
    match xdr.value::<WriteReply>().ok()? {
        Reply::Ok(ok) => Some(Moved { count: ok.count, data: 0..0, attributes: ok.file_wcc.after }),
        Reply::Failed(..) => None,
    }
}

pub fn read_reply(record: &[u8], xid: u32) -> Option<Moved> {
    let (mut xdr, message_bytes) = open(record, xid)?;
    match xdr.value::<ReadReply>().ok()? {
        Reply::Ok(ok) => {
            let data = ok.data.range(message_bytes).ok()?;
            let data = data.start + Mark::BYTES..data.end + Mark::BYTES;
            Some(Moved { count: ok.count, data, attributes: ok.attributes })
        }
        Reply::Failed(..) => None,
    }
}

fn open(record: &[u8], xid: u32) -> Option<(Decoder<'_>, usize)> {
    let message = record.get(Mark::BYTES..)?;
    let mut xdr = Decoder::new(message);
    let header: ReplyHeader<'_> = xdr.value().ok()?;
    let good = matches!(header.body, ReplyBody::Accepted { status: Accepted::Success, .. });
    (good && header.xid == Xid(xid)).then_some((xdr, message.len()))
}
