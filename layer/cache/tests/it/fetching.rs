//! Fetching and retention of data.

use std::time::Duration;

use tombolo_layer_cache::store::StoreOptions;
use tombolo_layer_cache::{Contract, Options};
use tombolo_test_support::until;

use crate::world::{Origin, data_bytes, grow_old, pattern};

#[test]
fn one_fetch_serves_all_that_wait() {
    let origin = Origin::far(Duration::from_millis(20));
    let dir = tempfile::tempdir().expect("a directory");
    origin.direct.put("file", &pattern(800_000, 1));
    let cached = origin.cached(dir.path(), Contract::Exclusive);
    cached.lookup("file").expect("found");
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert_eq!(cached.contents("file"), pattern(800_000, 1)));
        }
    });
    assert_eq!(origin.asked("read"), 1);
    assert_eq!(cached.cache.counts().fetched_bytes, 800_000);
}

#[test]
fn a_reader_in_order_finds_the_data_there() {
    let origin = Origin::far(Duration::from_millis(5));
    let dir = tempfile::tempdir().expect("a directory");
    let bytes = pattern(24 << 20, 3);
    origin.direct.put("file", &bytes);
    let cached = origin.cached(dir.path(), Contract::Exclusive);
    let file = cached.reader("file");
    let (mut waits, mut reads) = (0, 0);
    for offset in (0..bytes.len()).step_by(1 << 17) {
        let before = cached.cache.counts().hit_bytes;
        let read = cached.read(file, offset as u64, 1 << 17).expect("read");
        assert!(read == bytes[offset..offset + read.len()]);
        waits += u32::from(cached.cache.counts().hit_bytes == before);
        reads += 1;
        // A reader that processes its data.
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(waits * 2 < reads, "{waits} of {reads} reads waited");
    assert_eq!(cached.cache.counts().fetched_bytes, bytes.len() as u64, "nothing twice, and nothing more");
}

#[test]
fn random_reader_fetches_little_more_than_it_reads() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    let bytes = pattern(32 << 20, 5);
    origin.direct.put("file", &bytes);
    let cached = origin.cached(dir.path(), Contract::Exclusive);
    let file = cached.reader("file");
    for step in 1..=20_u64 {
        let offset = step * 7919 * 4096 % (32 << 20);
        let read = cached.read(file, offset, 4096).expect("read");
        assert!(read == bytes[offset as usize..offset as usize + 4096]);
    }
    let fetched = cached.cache.counts().fetched_bytes;
    assert!(fetched <= 20 * (64 << 10) + (1 << 20), "{fetched} bytes for 20 blocks");
}

#[test]
fn capacity_is_respected_and_reads_are_correct() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    origin.put_files(40, 200_000);
    grow_old();
    let store = StoreOptions { capacity_bytes: 1 << 20, ..StoreOptions::default() };
    let options = Options { contract: Contract::Exclusive, ..Options::default() };
    {
        let cached = origin.cached_in(dir.path(), options, store);
        for round in 0..3 {
            for n in 0..40_u8 {
                let read = cached.contents(&format!("file-{n}"));
                assert!(read == pattern(200_000, n), "round {round}, file {n}");
            }
        }
        cached.cache.flush();
    }
    let kept = || data_bytes(dir.path());
    assert!(kept() > 0 && kept() <= 1 << 20, "{} bytes", kept());
    // A smaller capacity than before.
    let store = StoreOptions { capacity_bytes: 1 << 19, ..store };
    drop(origin.cached_in(dir.path(), options, store));
    assert!(kept() > 0 && kept() <= 1 << 19, "{} bytes of less", kept());
}

#[test]
fn unread_sparse_file_takes_no_space() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    origin.direct.put("hole", b"");
    // The maximum size that the origin allows.
    let Ok(attr) = origin.direct.truncate("hole", 8 << 50) else { return };
    let cached = origin.cached(dir.path(), Contract::Exclusive);
    let file = cached.reader("hole");
    assert_eq!(cached.read(file, attr.size - 10, 100).expect("read"), [0; 10]);
    assert_eq!(cached.read(file, attr.size / 2, 100).expect("read"), [0; 100]);
    assert!(cached.cache.counts().fetched_bytes < 64 << 20);
}

#[test]
fn strided_reader_prefetches_only_its_next_blocks() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    let (size, distance, block) = (64 << 20, 2 << 20, 64 << 10);
    let bytes = pattern(size, 5);
    origin.direct.put("file", &bytes);
    let cached = origin.cached(dir.path(), Contract::Exclusive);
    let file = cached.reader("file");
    let read = |n: usize| {
        let at = n * distance;
        let read = cached.read(file, at as u64, 4096).expect("read");
        assert!(read == bytes[at..at + 4096]);
    };
    (0..8).for_each(read);
    // All eight, the sequential read-ahead of the first, and more of the stride.
    let in_order = 256 << 10;
    until("something comes ahead", || cached.cache.counts().fetched_bytes > 8 * block + in_order);
    (8..size / distance).for_each(read);
    let fetched = cached.cache.counts().fetched_bytes;
    assert!(fetched <= (size / distance) as u64 * block + in_order, "{fetched} bytes: something between");
}
