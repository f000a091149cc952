//! Appending and overlapping writers.

use tombolo_core::fs::{OpenFlags, SyncScope};
use tombolo_wire_nfs3::Procedure;

use crate::clients::pair::{Pair, close};

/// A server that was killed has left unstable data at the NFS server. The next one gets the file by its
/// handle, and has to sync data that it has not written.
#[test]
fn first_sync_of_resolved_file_covers_its_predecessor() {
    let pair = Pair::new();
    let world = &pair.two;
    let handles = world.handles();
    let found = world.lookup("file");
    assert!(found.is_err(), "unknown to this client");
    let theirs = pair.one.file_with("file", b"contents");
    let others = pair.one.handles();
    let handle = others.handle_of(&pair.one.cx, theirs).wait().expect("a handle");

    let node = handles.resolve(&world.cx, &handle).wait().expect("the file").node;
    let commits_of = |flags, sync: &dyn Fn(tombolo_core::fs::File)| {
        let before = pair.server.count_of(Procedure::Commit);
        let file = world.open(node, flags).expect("open");
        sync(file);
        close(world, file).expect("closed");
        pair.server.count_of(Procedure::Commit) - before
    };
    assert_eq!(commits_of(OpenFlags::READ, &|_| {}), 0, "a reader's close costs nothing");
    let fsync = |file| world.fs.fsync(&world.cx, file, SyncScope::Data).wait().expect("synced");
    assert_eq!(commits_of(OpenFlags::READ, &fsync), 1);
    assert_eq!(commits_of(OpenFlags::READ, &fsync), 0, "no other has written since, as far as is known");
}

#[test]
fn appends_of_one_client_go_to_the_end_each() {
    let pair = Pair::new();
    let world = &pair.one;
    let node = world.file_with("log", b"");
    let files: Vec<_> =
        (0..3).map(|_| world.open(node, OpenFlags::WRITE | OpenFlags::APPEND).expect("open")).collect();
    for round in 0..60_usize {
        let line = format!("{round:03}\n");
        let written = world.write_as(files[round % 3], &Default::default(), line.as_bytes()).expect("write");
        assert_eq!(written.count, 4);
    }
    for file in files {
        close(world, file).expect("closed");
    }
    let expected: String = (0..60).map(|round| format!("{round:03}\n")).collect();
    assert_eq!(String::from_utf8_lossy(&pair.two.contents("log")), expected);
}

#[test]
fn append_after_foreign_close_goes_to_new_end() {
    let pair = Pair::new();
    pair.one.file_with("log", b"");
    let mut expected = String::new();
    for round in 0..20 {
        let world = if round % 2 == 0 { &pair.one } else { &pair.two };
        let file = world.open("log", OpenFlags::WRITE | OpenFlags::APPEND).expect("open");
        let line = format!("line {round}\n");
        world.write_as(file, &Default::default(), line.as_bytes()).expect("write");
        close(world, file).expect("closed");
        expected.push_str(&line);
    }
    assert_eq!(String::from_utf8_lossy(&pair.one.contents("log")), expected);
}

/// Tests overlapping writes of one client: the server must end with them in the order of issue, however they
/// are sent.
#[test]
fn last_of_overlapping_writes_wins() {
    let pair = Pair::new();
    let world = &pair.one;
    let file = world.file("file");
    let mut expected = Vec::new();
    let mut rng = fastrand::Rng::with_seed(12345);
    for round in 0..400_u64 {
        let (at, len) = (rng.usize(..30_000), rng.usize(1..=10_000));
        let bytes = vec![round as u8; len];
        world.write_all(file, at as u64, &bytes);
        expected.resize(expected.len().max(at + len), 0);
        expected[at..at + len].copy_from_slice(&bytes);
        if round % 37 == 0 {
            let what = tombolo_core::fs::SyncScope::Data;
            world.fs.fsync(&world.cx, file, what).wait().expect("synced");
        }
    }
    close(world, file).expect("closed");
    let read = pair.two.contents("file");
    assert_eq!(read.len(), expected.len());
    assert!(read == expected, "written over by what came before");
}
