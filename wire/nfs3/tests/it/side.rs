//! Messages of the side program, word by word.

use crate::common::{list, reply_is, survives, words};
use proptest::prelude::*;
use tombolo_wire_nfs3::args::{AccessBits, StableHow};
use tombolo_wire_nfs3::listing::{DirEntry3, DirEntryPlus3, ReaddirplusOk, ReaddirplusReply};
use tombolo_wire_nfs3::side::{
    Call, DigestsArgs, DigestsOk, DigestsReply, FilePart, LeaseArgs, LeaseOk, LeaseOperation, LeaseReply,
    LeaseState, LendArgs, ListArgs, ListReply, ListedDir, PROGRAM, PackArgs, PackOk, PackReply, Procedure,
    UnpackArgs,
};
use tombolo_wire_nfs3::{
    Cookie3, CookieVerifier, Data, FATTR_BYTES, Fattr3, FileHandle, NfsTime3, Reply, Status, WccAttr,
};
use tombolo_wire_xdr::{Decode, Decoder, encoded};

/// Asserts the encoding, and that it alone decodes, to the same arguments.
#[track_caller]
fn call_is(call: Call<'_>, layout: &[u32]) {
    let bytes = words(layout);
    assert_eq!(encoded(&call), bytes);
    assert_eq!(Call::decode(call.procedure(), &mut Decoder::new(&bytes)), Ok(call));
    survives(&bytes, |bytes| Call::decode(call.procedure(), &mut Decoder::new(bytes)).map(drop));
}

const FILE: u32 = u32::from_be_bytes(*b"file");

fn file() -> FileHandle<'static> {
    FileHandle::new(b"file").unwrap()
}

/// Returns attributes with their encoding.
fn attributes() -> (Fattr3, Vec<u8>) {
    let bytes = words(&[1].repeat(FATTR_BYTES / 4));
    (Fattr3::decode(&mut Decoder::new(&bytes)).unwrap(), bytes)
}

#[test]
fn its_number_is_of_the_range_that_users_define() {
    assert!((0x2000_0000..0x4000_0000).contains(&PROGRAM));
}

#[test]
fn arguments_of_list() {
    let args = ListArgs {
        dir: FileHandle::new(b"\x01\x02\x03\x04\x05").unwrap(),
        cookie: Cookie3(6),
        verifier: CookieVerifier([7; 8]),
        bytes_max: 8,
        with_subtree: true,
        access: AccessBits::READ | AccessBits::LOOKUP,
    };
    let layout = [5, 0x0102_0304, 0x0500_0000, 0, 6, 0x0707_0707, 0x0707_0707, 8, 1, 3];
    call_is(Call::List(args), &layout);
    assert_eq!(Procedure::from_number(99), None);
}

#[test]
fn words_of_digests() {
    call_is(Call::Digests(DigestsArgs { file: file(), offset: 1 << 32, count: 5 }), &[4, FILE, 1, 0, 5]);
    let (attributes, fattr) = attributes();
    let reply: DigestsReply<'_> = Reply::Ok(DigestsOk { attributes, digests: &[7; 32] });
    reply_is(&reply, &[words(&[0]), fattr, words(&[32]), vec![7; 32]].concat());
}

#[test]
fn arguments_of_lend() {
    let time = |seconds| NfsTime3 { seconds, nseconds: seconds + 1 };
    let args = LendArgs {
        export: FileHandle::new(b"root").unwrap(),
        kind: 3,
        file: file(),
        version: WccAttr { size: 4, mtime: time(5), ctime: time(7) },
        offset: 9,
        count: 10,
    };
    let root = u32::from_be_bytes(*b"root");
    call_is(Call::Lend(args), &[4, root, 3, 4, FILE, 0, 4, 5, 6, 7, 8, 0, 9, 10]);
}

#[test]
fn lease_word_by_word() {
    let args = LeaseArgs { file: file(), act: LeaseOperation::GiveBack, epoch: 7 << 32 | 8 };
    call_is(Call::Lease(args), &[4, FILE, 2, 7, 8]);
    let unknown = words(&[4, FILE, 3, 7, 8]);
    assert!(Call::decode(Procedure::Lease, &mut Decoder::new(&unknown)).is_err());
    let reply: LeaseReply = Reply::Ok(LeaseOk { state: LeaseState::Recalled, epoch: 9, time_ms: 10 });
    reply_is(&reply, &words(&[0, 1, 0, 9, 10]));
    let reply = LeaseReply::Failed(Status::NotSupp, ());
    assert_eq!(encoded(&reply), words(&[10004]));
}

#[test]
fn words_of_pack() {
    let parts = [FilePart { offset: 1 << 32, count: 5 }, FilePart { offset: 6, count: 7 }];
    let args = PackArgs { file: file(), parts: list(&parts) };
    call_is(Call::Pack(args), &[4, FILE, 1, 1, 0, 5, 1, 0, 6, 7, 0]);
    let (attributes, fattr) = attributes();
    let reply: PackReply<'_> = Reply::Ok(PackOk { attributes, frame: &[7; 5] });
    reply_is(&reply, &[words(&[0]), fattr, words(&[5]), vec![7; 5], vec![0; 3]].concat());
}

#[test]
fn words_of_unpack() {
    let frame = Data::to_send(5);
    let args = UnpackArgs { file: file(), offset: 1 << 32, count: 9, stable: StableHow::DataSync, frame };
    let bytes = encoded(&Call::Unpack(args));
    assert_eq!(bytes, words(&[4, FILE, 1, 0, 9, 1, 5]));
    let whole = [bytes.clone(), b"frame".to_vec(), vec![0; 3]].concat();
    let Ok(Call::Unpack(received)) = Call::decode(Procedure::Unpack, &mut Decoder::new(&whole)) else {
        panic!("no UNPACK")
    };
    assert_eq!(received.frame.range(whole.len()), Ok(bytes.len()..bytes.len() + 5));
    assert_eq!(UnpackArgs { frame, ..received }, args);
    survives(&bytes, |bytes| Call::decode(Procedure::Unpack, &mut Decoder::new(bytes)).map(drop));
}

fn page<'a>(entries: &[DirEntryPlus3<'static>], eof: bool) -> ReaddirplusReply<'a> {
    let (dir_attributes, verifier) = (None, CookieVerifier([3; 8]));
    Reply::Ok(ReaddirplusOk { dir_attributes, verifier, entries: list(entries), eof })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Decodes all encoded directories, and refuses truncated ones.
    #[test]
    fn list_replies_round_trip_and_refuse_truncation(dirs in proptest::collection::vec((1u8..64, 0u32..64, 0usize..4, any::<bool>()), 0..4)) {
        let handle = |len: u8| FileHandle::new(&[9; 64][..usize::from(len)]).unwrap();
        let entry = DirEntryPlus3 {
            entry: DirEntry3 { fileid: 1, name: b"name", cookie: Cookie3(2) },
            attributes: None,
            handle: FileHandle::new(b"handle"),
        };
        let listed: Vec<ListedDir<'static>> = dirs
            .iter()
            .map(|&(len, access, entries, eof)| {
                let dir = FileHandle::new(vec![9; usize::from(len)].leak()).unwrap();
                ListedDir { dir, access: AccessBits::from_bits_retain(access), page: page(&vec![entry; entries], eof) }
            })
            .collect();
        let bytes = encoded(&list(&listed));
        let read: Vec<_> = ListReply::decode(&mut Decoder::new(&bytes)).unwrap().into_iter().collect();
        prop_assert_eq!(&read, &listed);
        for (listed, (len, ..)) in read.iter().zip(&dirs) {
            prop_assert_eq!(listed.dir, handle(*len));
        }
        survives(&bytes, |bytes| ListReply::decode(&mut Decoder::new(bytes)).map(drop));
    }
}

#[test]
fn failed_list_is_a_failed_readdirplus() {
    let page = ReaddirplusReply::Failed(Status::Acces, None);
    let listed = ListedDir { dir: FileHandle::new(b"dir!").unwrap(), access: AccessBits::empty(), page };
    let bytes = encoded(&list(&[listed]));
    assert_eq!(bytes, words(&[1, 4, u32::from_be_bytes(*b"dir!"), 0, 13, 0, 0]));
}
