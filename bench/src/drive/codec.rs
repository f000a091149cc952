//! Three codecs of calls and replies: the product's, manual byte order conversion, and a generic XDR library.

mod by_hand;
pub mod generic;
mod ours;

use std::ops::Range;

use tombolo_wire_nfs3::Fattr3;

use crate::nfs::client::Handle;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// The product's `wire/xdr` and the crates over it.
    Ours,
    /// Numbers converted in place: the minimal work.
    Raw,
    /// `nfs3_types`, whose derived codec uses `Read` and `Write`.
    Generic,
}

/// Result of a READ or WRITE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    pub count: u32,
    /// Range of the data in the record.
    pub data: Range<usize>,
    /// Attributes of the file, if the codec converts them to our type.
    pub attributes: Option<Fattr3>,
}

impl Codec {
    /// Encodes an unstable WRITE by root, with its record mark. Returns `true` if it includes the data;
    /// otherwise they must follow.
    pub fn write_call(self, out: &mut Vec<u8>, xid: u32, file: &Handle, offset: u64, data: &[u8]) -> bool {
        let count = u32::try_from(data.len()).unwrap_or(u32::MAX);
        match self {
            Codec::Ours => ours::write_call(out, xid, file, offset, count),
            Codec::Raw => by_hand::write_call(out, xid, file, offset, count),
            Codec::Generic => generic::write_call(out, xid, file, offset, data),
        }
        self == Codec::Generic
    }

    /// Encodes a READ by root, with its record mark.
    pub fn read_call(self, out: &mut Vec<u8>, xid: u32, file: &Handle, offset: u64, count: u32) {
        match self {
            Codec::Ours => ours::read_call(out, xid, file, offset, count),
            Codec::Raw => by_hand::read_call(out, xid, file, offset, count),
            Codec::Generic => generic::read_call(out, xid, file, offset, count),
        }
    }

    /// Decodes a successful reply to a WRITE, with its record mark; `None` for any other record.
    pub fn write_reply(self, record: &[u8], xid: u32) -> Option<Moved> {
        match self {
            Codec::Ours => ours::write_reply(record, xid),
            Codec::Raw => by_hand::write_reply(record, xid),
            Codec::Generic => generic::write_reply(record, xid),
        }
    }

    /// Decodes a successful reply to a READ.
    pub fn read_reply(self, record: &[u8], xid: u32) -> Option<Moved> {
        match self {
            Codec::Ours => ours::read_reply(record, xid),
            Codec::Raw => by_hand::read_reply(record, xid),
            Codec::Generic => generic::read_reply(record, xid),
        }
    }
}

#[cfg(test)]
mod tests {
    use tombolo_wire_nfs3::args::StableHow;
    use tombolo_wire_nfs3::results::{ReadOk, ReadReply, WriteOk, WriteReply};
    use tombolo_wire_nfs3::{FileHandle, WccData, WriteVerifier};
    use tombolo_wire_rpc::{Mark, ReplyHeader, Xid};
    use tombolo_wire_xdr::Encoder;

    use super::*;

    const ALL: [Codec; 3] = [Codec::Ours, Codec::Raw, Codec::Generic];

    fn handle(bytes: usize) -> Handle {
        FileHandle::new(&vec![7; bytes]).unwrap().to_owned()
    }

    #[test]
    fn codecs_encode_the_same_calls() {
        for file in [handle(16), handle(29), handle(64)] {
            let calls = ALL.map(|codec| {
                let (mut write, mut read) = (Vec::new(), Vec::new());
                let data = [5; 10];
                if !codec.write_call(&mut write, 77, &file, 1 << 33, &data) {
                    write.extend(data);
                    write.extend([0; 2]);
                }
                codec.read_call(&mut read, 78, &file, 99, 4096);
                (write, read)
            });
            assert_eq!(calls[0], calls[1]);
            assert_eq!(calls[0], calls[2]);
        }
    }

    #[test]
    fn codecs_decode_the_same_replies() {
        let written = WriteReply::Ok(WriteOk {
            file_wcc: WccData::NONE,
            count: 10,
            committed: StableHow::Unstable,
            verifier: WriteVerifier::default(),
        });
        let read = ReadReply::Ok(ReadOk::to_send(None, 6, true));
        let record = |encode: &dyn Fn(&mut Encoder<'_>)| {
            let mut record = vec![0; Mark::BYTES];
            let mut xdr = Encoder::new(&mut record);
            xdr.value(&ReplyHeader::success(Xid(77)));
            encode(&mut xdr);
            xdr.raw(&[9; 6]).raw(&[0; 2]);
            let len = xdr.position();
            record[..Mark::BYTES].copy_from_slice(&Mark::whole(len).unwrap().to_bytes());
            record
        };
        let written = record(&|xdr| {
            xdr.value(&written);
        });
        let read = record(&|xdr| {
            xdr.value(&read);
        });
        for codec in ALL {
            assert_eq!(codec.write_reply(&written, 77).unwrap().count, 10, "{codec:?}");
            assert_eq!(codec.write_reply(&written, 78), None, "{codec:?}");
            let moved = codec.read_reply(&read, 77).unwrap();
            assert_eq!((moved.count, &read[moved.data]), (6, &[9; 6][..]), "{codec:?}");
        }
    }
}
