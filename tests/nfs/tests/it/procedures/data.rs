//! READ, WRITE, COMMIT.

use tombolo_nfs_tests::client::{Caller, Expect, Transport, mode};
use tombolo_nfs_tests::fixture::{assert_around, assert_unchanged, on_each, weak};
use tombolo_wire_nfs3::args::{MknodKind, StableHow, WriteArgs};
use tombolo_wire_nfs3::{Call, Data, Sattr3, Status, WccData};

const STABLE: [StableHow; 3] = [StableHow::Unstable, StableHow::DataSync, StableHow::FileSync];

/// Returns bytes with a period that is no power of two.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index % 251) as u8).collect()
}

on_each!(read_returns_data_eof_and_attributes, |fixture| {
    let file = fixture.file("file", b"0123456789");
    let middle = fixture.nfs.read(&file, 2, 3).done();
    assert_eq!((middle.bytes.as_slice(), middle.eof), (&b"234"[..], false));
    assert_eq!(middle.attributes.expect("attributes").size, 10);
    for (offset, count, bytes, eof) in [
        (0, 10, &b"0123456789"[..], true),
        (7, 100, b"789", true),
        (10, 5, b"", true),
        (1 << 40, 5, b"", true),
        (0, 0, b"", false),
    ] {
        let read = fixture.nfs.read(&file, offset, count).done();
        assert_eq!((read.bytes.as_slice(), read.eof), (bytes, eof), "{count} bytes at {offset}");
    }
});

on_each!(reads_and_writes_reach_the_fsinfo_maximum, |fixture| {
    for transport in [Transport::Tcp, Transport::Udp] {
        let nfs = fixture.server.nfs_over(transport);
        let info = nfs.fsinfo(&fixture.root).done();
        let (file, bytes) = (fixture.file(&format!("{transport:?}"), b""), pattern(info.write_max as usize));
        let written = nfs.write(&file, 1, &bytes, StableHow::Unstable).done();
        assert_eq!(written.count, info.write_max, "{transport:?}");
        let read = nfs.read(&file, 1, info.read_max).done();
        assert!(read.bytes == bytes && read.eof, "{transport:?}");
    }
});

on_each!(a_write_is_seen_by_another_client_at_once, |fixture| {
    let file = fixture.file("file", b"");
    let other = fixture.server.nfs_over(Transport::Tcp);
    for round in 0..50_u64 {
        let text = format!("round {round}");
        fixture.nfs.write(&file, round * 3, text.as_bytes(), StableHow::Unstable).done();
        let read = other.read(&file, round * 3, 100).done();
        assert_eq!((read.bytes.as_slice(), read.eof), (text.as_bytes(), true));
        assert_eq!(other.getattr(&file).done().size, round * 3 + text.len() as u64);
        other.write(&file, 0, b"*", StableHow::Unstable).done();
        assert_eq!(fixture.nfs.read(&file, 0, 1).done().bytes, b"*");
    }
});

on_each!(read_and_write_refuse_non_files, |fixture| {
    let dir = fixture.dir("dir");
    let link = fixture.nfs.symlink(&fixture.root, b"link", b"dir", mode(0o777)).done().handle();
    let fifo = fixture.nfs.mknod(&fixture.root, b"fifo", MknodKind::Fifo(mode(0o644))).done().handle();
    for (node, status) in [(dir, Status::IsDir), (link, Status::Inval), (fifo, Status::Inval)] {
        assert_eq!(fixture.nfs.read(&node, 0, 10).failed(status), Some(fixture.attr(&node)));
        // The type counts before the offset.
        for offset in [0, u64::MAX - 1] {
            let wcc = fixture.nfs.write(&node, offset, b"x", StableHow::FileSync).failed(status);
            assert_unchanged(fixture, &node, &wcc);
        }
        let wcc = fixture.nfs.commit(&node, 0, 0).failed(status);
        assert_unchanged(fixture, &node, &wcc);
    }
});

on_each!(write_is_as_stable_as_requested_and_returns_wcc, |fixture| {
    let file = fixture.file("file", b"");
    let mut verifiers = Vec::new();
    for (index, stable) in STABLE.into_iter().enumerate() {
        let before = fixture.attr(&file);
        let written = fixture.nfs.write(&file, 4 * index as u64, b"data", stable).done();
        assert_eq!(written.count, 4);
        assert!(written.committed >= stable, "{:?} for {stable:?}", written.committed);
        assert_around(fixture, &file, &before, &written.file_wcc);
        verifiers.push(written.verifier);
    }
    verifiers.dedup();
    assert_eq!(verifiers.len(), 1, "nothing was lost: one verifier");
    assert_eq!(fixture.contents(&file), b"datadatadata");
});

on_each!(empty_write_changes_nothing, |fixture| {
    let file = fixture.file("file", b"abc");
    let before = fixture.attr(&file);
    let written = fixture.nfs.write(&file, 100, b"", StableHow::Unstable).done();
    assert_eq!((written.count, fixture.attr(&file)), (0, before));
});

on_each!(a_write_in_fragments_of_one_byte_is_written, |fixture| {
    let (file, bytes) = (fixture.file("file", b""), pattern(20_000));
    let (count, stable) = (bytes.len() as u32, StableHow::FileSync);
    let data = Data::to_send(count);
    let call = Call::Write(WriteArgs { file: file.as_handle(), offset: 0, count, stable, data });
    let message = fixture.nfs.message(&call, &bytes);
    let mut stream = fixture.server.stream();
    stream.send_in_fragments(&message.to_bytes(), 1).expect("sent");
    let answer = stream.answer();
    assert_eq!((answer.xid, answer.status()), (message.xid, Ok(())));
    assert!(fixture.contents(&file) == bytes);
});

on_each!(write_by_another_user_drops_set_user_id, |fixture| {
    let file = fixture.file("file", b"abc");
    fixture.nfs.setattr(&file, mode(0o6777), None).done();
    fixture.as_user(1000).write(&file, 0, b"x", StableHow::FileSync).done();
    assert_eq!(fixture.attr(&file).mode, 0o777);
});

// Tests Linux's rule since 6.2: without group execute, writers of the file's group keep the bit.
on_each!(writes_by_other_groups_drop_set_group_id, |fixture| {
    let owner = Sattr3 { uid: Some(500), gid: Some(700), ..Sattr3::default() };
    let cut = Sattr3 { size: Some(1), ..Sattr3::default() };
    let member = Caller::User { uid: 1000, gid: 1000, groups: vec![5, 700] };
    let primary = Caller::User { uid: 1000, gid: 700, groups: vec![] };
    let other = Caller::User { uid: 1000, gid: 1000, groups: vec![0, 5] };
    let expected = [(member, 0o2666), (primary, 0o2666), (Caller::ROOT, 0o2666), (other, 0o666)];
    for (number, (caller, kept)) in expected.into_iter().enumerate() {
        let file = fixture.file(&format!("file-{number}"), b"abc");
        let nfs = fixture.nfs.as_caller(caller.clone());
        let reset = || {
            fixture.nfs.setattr(&file, owner, None).done();
            fixture.nfs.setattr(&file, mode(0o2666), None).done();
        };
        reset();
        nfs.write(&file, 0, b"x", StableHow::FileSync).done();
        assert_eq!(fixture.attr(&file).mode, kept, "a write by {caller:?}");
        reset();
        nfs.setattr(&file, cut, None).done();
        assert_eq!(fixture.attr(&file).mode, kept, "a cut by {caller:?}");
    }
});

on_each!(commit_returns_the_verifier_of_the_writes, |fixture| {
    let file = fixture.file("file", b"");
    let written = fixture.nfs.write(&file, 0, b"data", StableHow::Unstable).done();
    let before = fixture.attr(&file);
    for (offset, count) in [(0, 0), (0, 4), (2, 1), (1 << 40, 0)] {
        let ok = fixture.nfs.commit(&file, offset, count).done();
        assert_eq!(ok.verifier, written.verifier);
        assert_eq!(ok.file_wcc, WccData { before: Some(weak(&before)), after: Some(before) });
    }
});
