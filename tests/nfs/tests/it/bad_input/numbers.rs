//! Counts, lengths and offsets that no file has.

use tombolo_nfs_tests::client::{Expect, Message, Transport};
use tombolo_nfs_tests::fixture::{assert_one_of, on_each};
use tombolo_wire_nfs3::args::{StableHow, WriteArgs};
use tombolo_wire_nfs3::{Call, Cookie3, CookieVerifier, Data, Sattr3, Status};

use crate::bad_input::{assert_garbage, assert_well};

const ALL: u32 = u32::MAX;

/// Places where an addition overflows, or a sign changes.
const FAR: [u64; 5] = [u64::MAX, u64::MAX - 1, u64::MAX - 4095, 1 << 63, (1 << 63) - 1];

on_each!(read_of_4_gib_returns_the_whole_file, |fixture| {
    let file = fixture.file("file", b"0123456789");
    for transport in [Transport::Tcp, Transport::Udp] {
        let read = fixture.server.nfs_over(transport).read(&file, 0, ALL).done();
        assert_eq!((read.bytes.as_slice(), read.eof), (&b"0123456789"[..], true));
    }
    let big = Sattr3 { size: Some(8 << 30), ..Sattr3::default() };
    fixture.nfs.setattr(&file, big, None).done();
    let read = fixture.nfs.read(&file, 1, ALL).done();
    assert_eq!((read.bytes.len(), read.eof), (1 << 20, false), "as much as FSINFO says");
});

on_each!(read_at_largest_offsets_returns_end_of_file, |fixture| {
    let file = fixture.file("file", b"0123456789");
    for offset in FAR {
        for count in [0, 1, 4096, ALL] {
            let read = fixture.nfs.read(&file, offset, count).done();
            assert!(read.bytes.is_empty() && read.eof, "{count} bytes at {offset}");
        }
    }
    assert_well(fixture);
});

on_each!(write_at_largest_offsets_is_too_large, |fixture| {
    let file = fixture.file("file", b"0123456789");
    for offset in FAR {
        for stable in [StableHow::Unstable, StableHow::FileSync] {
            let reply = fixture.nfs.write(&file, offset, b"data", stable);
            assert_one_of(reply.status().expect("refused"), &[Status::FBig, Status::Inval]);
        }
    }
    assert_eq!(fixture.contents(&file), b"0123456789");
    assert_well(fixture);
});

on_each!(commit_at_largest_offsets_does_no_harm, |fixture| {
    let file = fixture.file("file", b"0123456789");
    for offset in FAR {
        for count in [0, 1, ALL] {
            fixture.nfs.commit(&file, offset, count).done();
        }
    }
    fixture.nfs.commit(&file, 0, ALL).done();
    assert_eq!(fixture.contents(&file), b"0123456789");
});

on_each!(an_impossible_size_is_refused, |fixture| {
    let file = fixture.file("file", b"0123456789");
    for size in FAR.into_iter().filter(|size| *size > i64::MAX as u64) {
        let set = Sattr3 { size: Some(size), ..Sattr3::default() };
        let reply = fixture.nfs.setattr(&file, set, None);
        assert_one_of(reply.status().expect("refused"), &[Status::FBig, Status::Inval]);
    }
    assert_eq!(fixture.attr(&file).size, 10);
});

on_each!(a_write_whose_count_and_data_differ_writes_nothing, |fixture| {
    let file = fixture.file("file", b"0123456789");
    for count in [0, 1, 3, 5, 8, 1 << 20, ALL] {
        let wcc = fixture.nfs.write_counted(&file, 0, count, b"data", StableHow::FileSync);
        let wcc = wcc.failed(Status::Inval);
        assert_eq!(wcc.after, Some(fixture.attr(&file)), "count {count}");
    }
    assert_eq!(fixture.contents(&file), b"0123456789");
});

on_each!(write_shorter_than_its_announced_length_is_garbage, |fixture| {
    let file = fixture.file("file", b"0123456789");
    for len in [5, 4096, 1 << 20, ALL - 3, ALL] {
        let data = Data::to_send(len);
        let (offset, stable) = (0, StableHow::Unstable);
        let call = Call::Write(WriteArgs { file: file.as_handle(), offset, count: len, stable, data });
        let message: Message = fixture.nfs.message(&call, b"data");
        assert_garbage(&fixture.nfs.send(&message));
    }
    assert_eq!(fixture.contents(&file), b"0123456789");
    assert_well(fixture);
});

on_each!(a_listing_of_4_gib_is_a_page, |fixture| {
    let dir = fixture.dir("dir");
    for index in 0..20 {
        fixture.file_in(&dir, &format!("{index}"), b"");
    }
    let (start, none) = (Cookie3(0), CookieVerifier::default());
    for nfs in [fixture.server.nfs(), fixture.server.nfs_over(Transport::Udp)] {
        assert_eq!(nfs.readdir(&dir, start, none, ALL).done().names().len(), 20);
        assert_eq!(nfs.readdirplus(&dir, start, none, ALL, ALL).done().names().len(), 20);
    }
});

// Sets the owner that means "unchanged" to the host: it must not look like success.
on_each!(the_invalid_user_id_owns_nothing, |fixture| {
    let file = fixture.file("file", b"");
    for set in
        [Sattr3 { uid: Some(ALL), ..Sattr3::default() }, Sattr3 { gid: Some(ALL), ..Sattr3::default() }]
    {
        fixture.nfs.setattr(&file, set, None).failed(Status::Inval);
    }
});
