//! PACK and UNPACK of the side program.
#![expect(clippy::single_range_in_vec_init, reason = "one part is meant")]

use std::ops::Range;

use tombolo_nfs_tests::client::{Expect, Message, Nfs};
use tombolo_nfs_tests::fixture::{on_each, weak};
use tombolo_wire_nfs3::args::StableHow;
use tombolo_wire_nfs3::side::{
    self, COMPRESSED_BYTES_MAX, COMPRESSED_RANGES_MAX, FilePart, PackArgs, PackReply, UnpackArgs, UnpackReply,
};
use tombolo_wire_nfs3::{Data, Fattr3, FileHandleBuf, Reply, Sattr3, Status, WccData};
use tombolo_wire_xdr::{Decode, Decoder, Encoder, List};

fn ask(nfs: &Nfs, file: &FileHandleBuf, parts: &[Range<u64>]) -> Result<(Fattr3, Vec<u8>), Status> {
    let mut listed = Vec::new();
    let mut xdr = Encoder::new(&mut listed);
    for part in parts {
        xdr.value(&Some(FilePart { offset: part.start, count: (part.end - part.start) as u32 }));
    }
    xdr.value(&None::<FilePart>);
    let parts = List::decode(&mut Decoder::new(&listed)).expect("a list");
    let mut message =
        Message::new(7, side::PROGRAM, side::VERSION, side::Procedure::Pack.number(), nfs.caller());
    Encoder::new(&mut message.arguments).value(&PackArgs { file: file.as_handle(), parts });
    match nfs.send(&message).results::<PackReply<'_>>() {
        Reply::Ok(ok) => Ok((ok.attributes, ok.frame.to_vec())),
        Reply::Failed(status, _) => Err(status),
    }
}

/// Builds an UNPACK call.
pub fn unpack(nfs: &Nfs, file: &FileHandleBuf, offset: u64, count: u32, frame: &[u8]) -> Message {
    let procedure = side::Procedure::Unpack.number();
    let mut message = Message::new(7, side::PROGRAM, side::VERSION, procedure, nfs.caller());
    let args = UnpackArgs {
        file: file.as_handle(),
        offset,
        count,
        stable: StableHow::FileSync,
        frame: Data::to_send(frame.len() as u32),
    };
    Encoder::new(&mut message.arguments).value(&args);
    message.arguments.extend(frame);
    message.arguments.resize(message.arguments.len().next_multiple_of(4), 0);
    message
}

fn unpacked(frame: &[u8]) -> Vec<u8> {
    zstd::bulk::decompress(frame, COMPRESSED_BYTES_MAX as usize).expect("a frame")
}

on_each!(packed_ranges_are_in_order_and_smaller, |fixture| {
    let bytes: Vec<u8> = (0..200_000u32).flat_map(|n| (n / 100).to_le_bytes()).collect();
    let file = fixture.file("file", &bytes);
    let parts = [600_000..800_000, 5..6, 0..100_000];
    let (attributes, frame) = ask(&fixture.nfs, &file, &parts).expect("packed");
    assert_eq!(weak(&attributes), weak(&fixture.attr(&file)));
    let wanted: Vec<u8> =
        parts.iter().flat_map(|part| bytes[part.start as usize..part.end as usize].to_vec()).collect();
    assert!(unpacked(&frame) == wanted);
    assert!(frame.len() < wanted.len() / 10, "{} of {}", frame.len(), wanted.len());
});

on_each!(malformed_call_gets_its_error, |fixture| {
    let file = fixture.file("file", b"secret");
    fixture.nfs.setattr(&file, Sattr3 { mode: Some(0o600), ..Sattr3::default() }, None).done();
    assert_eq!(ask(&fixture.as_user(1000), &file, &[0..6]), Err(Status::Acces));
    assert_eq!(ask(&fixture.nfs, &file, &[0..7]), Err(Status::Inval), "past the end");
    assert_eq!(ask(&fixture.nfs, &file, &[u64::MAX - 1..u64::MAX]), Err(Status::Inval));
    assert_eq!(ask(&fixture.nfs, &file, &[]), Err(Status::Inval));
    assert_eq!(ask(&fixture.nfs, &file, &vec![0..1; COMPRESSED_RANGES_MAX + 1]), Err(Status::Inval));
    assert_eq!(ask(&fixture.nfs, &file, &[0..u64::from(COMPRESSED_BYTES_MAX) + 1]), Err(Status::Inval));
    assert_eq!(ask(&fixture.nfs, &fixture.root, &[0..1]), Err(Status::IsDir));
    let (_, frame) = ask(&fixture.nfs, &file, &vec![0..1; COMPRESSED_RANGES_MAX]).expect("packed");
    assert_eq!(unpacked(&frame), vec![b's'; COMPRESSED_RANGES_MAX]);
});

/// Sends an UNPACK of a frame announced as `count` bytes.
fn put(nfs: &Nfs, file: &FileHandleBuf, offset: u64, count: u32, frame: &[u8]) -> UnpackReply {
    nfs.send(&unpack(nfs, file, offset, count, frame)).results()
}

fn frame(bytes: &[u8]) -> Vec<u8> {
    zstd::bulk::compress(bytes, 1).expect("compressed")
}

on_each!(unpack_writes_exactly_the_frame_contents, |fixture| {
    let file = fixture.file("file", b"0123456789");
    let bytes = vec![b'x'; COMPRESSED_BYTES_MAX as usize];
    for (offset, data) in [(5, &b"abc"[..]), (1 << 20, &bytes)] {
        let before = weak(&fixture.attr(&file));
        let ok = put(&fixture.nfs, &file, offset, data.len() as u32, &frame(data)).done();
        assert_eq!((ok.count as usize, ok.committed), (data.len(), StableHow::FileSync));
        assert_eq!(ok.verifier, fixture.nfs.commit(&file, 0, 0).done().verifier);
        let WccData { before: told, after } = ok.file_wcc;
        assert_eq!(told.map(|told| told.size), Some(before.size));
        assert_eq!(after.map(|after| weak(&after)), Some(weak(&fixture.attr(&file))));
    }
    assert_eq!(fixture.nfs.read(&file, 0, 12).done().bytes, b"01234abc89\0\0");
    assert!(fixture.nfs.read(&file, 1 << 20, 1 << 20).done().bytes == bytes);
});

on_each!(invalid_frame_changes_nothing, |fixture| {
    let file = fixture.file("file", b"as it was");
    fixture.nfs.setattr(&file, Sattr3 { mode: Some(0o600), ..Sattr3::default() }, None).done();
    let (good, large) = (frame(b"other"), vec![0; COMPRESSED_BYTES_MAX as usize + 1]);
    put(&fixture.as_user(1000), &file, 0, 5, &good).failed(Status::Acces);
    for (count, frame) in [
        (4, &good[..]),
        (6, &good),
        (0, &good),
        (5, &good[..good.len() - 1]),
        (5, b"no frame"),
        (5, b""),
        (large.len() as u32, &frame(&large)),
        (u32::MAX, &good),
    ] {
        put(&fixture.nfs, &file, 0, count, frame).failed(Status::Inval);
    }
    put(&fixture.nfs, &file, u64::MAX - 2, 5, &good).failed(Status::FBig);
    put(&fixture.nfs, &fixture.root, 0, 5, &good).failed(Status::IsDir);
    assert_eq!(fixture.nfs.read(&file, 0, 100).done().bytes, b"as it was");
});
