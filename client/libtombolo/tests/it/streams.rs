//! Files as streams, and removal of trees.

use std::fs;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{attach, faulty, find, local, memory, name, noise};
use libtombolo::{StreamError, StreamOptions, block_on, remove_tree};
use tempfile::TempDir;
use tombolo_core::Error;
use tombolo_core::fs::Op;
use tombolo_core::fs::{Create, Exclusive, Export, NewMode, OpenFlags};
use tombolo_layer_basic::delay;
use tombolo_layer_basic::fault::{Rule, What, When};

fn writable() -> Create {
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    Create { mode: NewMode::default(), flags, exclusive: Exclusive::Yes }
}

#[test]
fn written_streams_are_read_back_as_streams() {
    let tree = attach(&memory(), "memory");
    for (number, size) in [0, 1, 255 << 10, 256 << 10, (3 << 20) + 17].into_iter().enumerate() {
        let content = noise(size, 5);
        let file = block_on(tree.root().create(name(&number.to_string()).as_name(), writable())).unwrap();
        let written = block_on(file.write_from(10, &mut &content[..], StreamOptions::default())).unwrap();
        assert_eq!(written, size as u64);
        let (mut whole, mut rest) = (Vec::new(), Vec::new());
        // Through an opening with a known size, and one made when the file was empty.
        let again = block_on(find(&tree, &number.to_string()).open(OpenFlags::READ)).unwrap();
        block_on(again.read_to(0, &mut whole, StreamOptions::default())).unwrap();
        let count = block_on(file.read_to(10, &mut rest, StreamOptions::default())).unwrap();
        assert_eq!(count, size as u64);
        assert!(rest == content && (size == 0 || whole[10..] == content && whole[..10] == [0; 10]), "{size}");
    }
}

/// Returns an export whose reads are short, until one fails.
fn halting(failing: u64) -> Arc<dyn Export> {
    let rule = |when, what| Rule { op: Some(Op::Read), when, what };
    let short = rule(When::Always, What::Short(100_000));
    let fails = rule(When::Nth(failing), What::Fail(|| Error::io("on purpose")));
    faulty(Arc::new(memory()), vec![fails, short])
}

#[test]
fn short_read_does_not_end_a_stream() {
    let (size, one_by_one) = (1_000_000, StreamOptions { in_flight: 1, ..StreamOptions::default() });
    // The last fails within a piece: 256 KiB take three reads.
    for failing in [1000, 1, 2, 5] {
        let tree = attach(&*halting(failing), "memory");
        let file = block_on(tree.root().create(name("file").as_name(), writable())).unwrap();
        block_on(file.write_from(0, &mut &noise(size, 4)[..], StreamOptions::default())).unwrap();
        let mut read = Vec::new();
        let outcome = block_on(file.read_to(0, &mut read, one_by_one));
        assert_eq!(outcome.is_ok(), failing == 1000, "{failing}: {outcome:?}");
        assert!(read == noise(size, 4)[..read.len()] && (outcome.is_err() || read.len() == size));
    }
}

#[test]
fn many_reads_are_under_way_at_once() {
    let export = Arc::new(memory());
    let plain = attach(&*export, "memory");
    let file = block_on(plain.root().create(name("file").as_name(), writable())).unwrap();
    let content = noise(4 << 20, 9);
    block_on(file.write_from(0, &mut &content[..], StreamOptions::default())).unwrap();
    let far = attach(&delay::over(export, Duration::from_millis(700)).unwrap(), "memory");
    let file = block_on(find(&far, "file").open(OpenFlags::READ)).unwrap();
    let start = Instant::now();
    let mut read = Vec::new();
    block_on(file.read_to(0, &mut read, StreamOptions::default())).unwrap();
    assert!(read == content);
    // 16 pieces: sequentially they would take 11 s.
    assert!(start.elapsed() < Duration::from_secs(6), "{:?}", start.elapsed());
}

#[test]
fn stream_errors_identify_the_failed_side() {
    struct Full;
    impl io::Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let rule = Rule { op: Some(Op::Read), when: When::Nth(3), what: What::Fail(|| Error::Stale) };
    let tree = attach(&*faulty(Arc::new(memory()), vec![rule]), "memory");
    let file = block_on(tree.root().create(name("file").as_name(), writable())).unwrap();
    block_on(file.write_from(0, &mut &noise(2 << 20, 2)[..], StreamOptions::default())).unwrap();
    let file = block_on(find(&tree, "file").open(OpenFlags::READ)).unwrap();
    let mut read = Vec::new();
    let failed = block_on(file.read_to(0, &mut read, StreamOptions::default()));
    assert!(matches!(failed, Err(StreamError::File(Error::Stale))), "{failed:?}");
    assert!(read == noise(2 << 20, 2)[..read.len()], "earlier output is a prefix of the file");
    let failed = block_on(file.read_to(0, &mut Full, StreamOptions::default()));
    assert!(matches!(failed, Err(StreamError::Stream(_))), "{failed:?}");
}

#[test]
fn remove_tree_removes_all_descendants_and_nothing_else() {
    let dir = TempDir::new().unwrap();
    fs::create_dir_all(dir.path().join("tree/a/b/c")).unwrap();
    fs::write(dir.path().join("kept"), "x").unwrap();
    for number in 0..3000 {
        fs::write(dir.path().join(format!("tree/a/{number}")), "x").unwrap();
    }
    std::os::unix::fs::symlink("../kept", dir.path().join("tree/link")).unwrap();
    std::os::unix::fs::symlink("..", dir.path().join("tree/a/up")).unwrap();
    let tree = local(dir.path());
    let mut failures = Vec::new();
    let mut failed = |path: &[u8], error: &Error| failures.push(format!("{}: {error}", path.escape_ascii()));
    let removal = block_on(remove_tree(&tree.root(), name("tree").as_name(), b"tree", &mut failed));
    assert_eq!((removal.removed, removal.failed, failures), (3000 + 4 + 2, 0, vec![]));
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["kept"]);
}

/// RFC 1813 §3.3.16: a server may invalidate a directory's cookies when it changes, as each removal does.
#[test]
fn trees_are_removed_despite_invalidated_cookies() {
    let export = Arc::new(memory());
    let dir = attach(&*export, "memory").root().make_dir(name("tree").as_name(), Default::default());
    let dir = dir.wait().unwrap();
    for number in 0..1500 {
        block_on(dir.create(name(&format!("{number:0100}")).as_name(), writable())).unwrap();
    }
    let remove = |when| {
        let rule = Rule { op: Some(Op::Readdir), when, what: What::Fail(|| Error::BadCookie) };
        let mut failures = 0;
        let mut failed = |_: &[u8], _: &Error| failures += 1;
        let root = attach(&*faulty(export.clone(), vec![rule]), "memory").root();
        let removal = block_on(remove_tree(&root, name("tree").as_name(), b"tree", &mut failed));
        (removal.removed, failures)
    };
    // A server that accepts no cookies must not cause endless requests.
    assert_eq!(remove(When::Always), (0, 1));
    // Each listing has a first page and no second one.
    assert_eq!(remove(When::Every(2)), (1501, 0));
}

#[test]
fn failed_removal_is_reported_once_and_others_proceed() {
    let export = Arc::new(memory());
    let plain = attach(&*export, "memory");
    let dir = plain.root().make_dir(name("tree").as_name(), Default::default()).wait().unwrap();
    let below = dir.make_dir(name("below").as_name(), Default::default()).wait().unwrap();
    for number in 0..100 {
        for dir in [&dir, &below] {
            block_on(dir.create(name(&number.to_string()).as_name(), writable())).unwrap();
        }
    }
    let rule = Rule { op: Some(Op::Unlink), when: When::Nth(150), what: What::Fail(|| Error::AccessDenied) };
    let tree = attach(&*faulty(export.clone(), vec![rule]), "memory");
    let mut failures = 0;
    let mut failed = |_: &[u8], _: &Error| failures += 1;
    let removal = block_on(remove_tree(&tree.root(), name("tree").as_name(), b"tree", &mut failed));
    assert_eq!((removal.removed >= 199, failures), (true, 1), "{removal:?}");
    let mut failed = |path: &[u8], error: &Error| panic!("{}: {error}", path.escape_ascii());
    block_on(remove_tree(&plain.root(), name("tree").as_name(), b"tree", &mut failed));
}
