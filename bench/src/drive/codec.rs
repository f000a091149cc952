//! Three ways to turn calls into bytes and bytes into replies: ours, plain byte order by hand, and a generic
//! XDR library.

mod by_hand;
pub mod generic;
mod ours;

use std::ops::Range;

use tombolo_wire_nfs3::Fattr3;

use crate::nfs::client::Handle;

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// `wire/xdr` and those on it.
    Ours,
    /// Numbers written to where they belong, and read from where they have to be: the least that can be done.
    Raw,
    /// `nfs3_types`, which derives its codec and goes over `Read` and `Write`.
    Generic,
}

/// What a reply says was read or written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    pub count: u32,
    /// Where in the record the data of a READ lies.
    pub data: Range<usize>,
    /// The file's attributes, as far as the codec makes them ours.
    pub attributes: Option<Fattr3>,
}

impl Codec {
    /// A WRITE, UNSTABLE, by root, with its mark. True when the data was copied behind its head; otherwise it
    /// has to follow.
    pub fn write_call(self, out: &mut Vec<u8>, xid: u32, file: &Handle, offset: u64, data: &[u8]) -> bool {
        let count = u32::try_from(data.len()).unwrap_or(u32::MAX);
        match self {
            Codec::Ours => ours::write_call(out, xid, file, offset, count),
            Codec::Raw => by_hand::write_call(out, xid, file, offset, count),
            Codec::Generic => generic::write_call(out, xid, file, offset, data),
        }
        self == Codec::Generic
    }

    /// A READ by root, with its mark.
    pub fn read_call(self, out: &mut Vec<u8>, xid: u32, file: &Handle, offset: u64, count: u32) {
        match self {
            Codec::Ours => ours::read_call(out, xid, file, offset, count),
            Codec::Raw => by_hand::read_call(out, xid, file, offset, count),
            Codec::Generic => generic::read_call(out, xid, file, offset, count),
        }
    }

    /// What a good reply to a WRITE says, of a record with its mark; `None` of any other.
    pub fn write_reply(self, record: &[u8], xid: u32) -> Option<Moved> {
        match self {
            Codec::Ours => ours::write_reply(record, xid),
            Codec::Raw => by_hand::write_reply(record, xid),
            Codec::Generic => generic::write_reply(record, xid),
        }
    }

    /// What a good reply to a READ says.
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
