//! Appending and overlapping writers.

use tombolo_core::fs::OpenFlags;

use crate::clients::pair::{Pair, close, contents};

#[test]
fn appends_of_one_client_go_to_the_end_each() {
    let pair = Pair::new();
    let world = &pair.one;
    let node = world.file_with("log", b"");
    let files: Vec<_> =
        (0..3).map(|_| world.open(node, OpenFlags::WRITE | OpenFlags::APPEND).expect("open")).collect();
    for round in 0..60_usize {
        let line = format!("{round:03}\n");
        let written = world.write(files[round % 3], &Default::default(), line.as_bytes()).expect("write");
        assert_eq!(written.count, 4);
    }
    for file in files {
        close(world, file).expect("closed");
    }
    let expected: String = (0..60).map(|round| format!("{round:03}\n")).collect();
    let theirs = pair.two.lookup(pair.two.dir, "log").expect("the file").node;
    assert_eq!(String::from_utf8_lossy(&contents(&pair.two, theirs).expect("read")), expected);
}

#[test]
fn append_after_foreign_close_goes_to_new_end() {
    let pair = Pair::new();
    pair.one.file_with("log", b"");
    let mut expected = Vec::new();
    for round in 0..20 {
        let world = if round % 2 == 0 { &pair.one } else { &pair.two };
        let node = world.lookup(world.dir, "log").expect("the file").node;
        let file = world.open(node, OpenFlags::WRITE | OpenFlags::APPEND).expect("open");
        let line = format!("line {round}\n");
        world.write(file, &Default::default(), line.as_bytes()).expect("write");
        close(world, file).expect("closed");
        expected.extend(line.into_bytes());
    }
    let node = pair.one.lookup(pair.one.dir, "log").expect("the file").node;
    assert_eq!(
        String::from_utf8_lossy(&contents(&pair.one, node).expect("read")),
        String::from_utf8_lossy(&expected)
    );
}

/// Tests overlapping writes of one client: the server must end with them in the order of issue, however they
/// are sent.
#[test]
fn last_of_overlapping_writes_wins() {
    let pair = Pair::new();
    let world = &pair.one;
    let file = world.file("file");
    let mut expected = Vec::new();
    let mut state = 12345_u64;
    for round in 0..400_u64 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let at = (state >> 33) as usize % 30_000;
        let len = (state >> 13) as usize % 10_000 + 1;
        let bytes = vec![round as u8; len];
        world.put(file, at as u64, &bytes);
        expected.resize(expected.len().max(at + len), 0);
        expected[at..at + len].copy_from_slice(&bytes);
        if round % 37 == 0 {
            let what = tombolo_core::fs::SyncScope::Data;
            world.fs.fsync(&world.cx, file, what).wait().expect("synced");
        }
    }
    close(world, file).expect("closed");
    let theirs = pair.two.lookup(pair.two.dir, "file").expect("the file").node;
    let read = contents(&pair.two, theirs).expect("read");
    assert_eq!(read.len(), expected.len());
    assert!(read == expected, "written over by what came before");
}
