//! Failing disks, and caches that are too small.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use tombolo_core::Error;
use tombolo_core::fs::{Cookie, Op};
use tombolo_layer_cache::store::StoreOptions;
use tombolo_layer_cache::{Contract, Policy};
use tombolo_test_support::{Act, Scripted, budget, until};

use crate::world::{Origin, data_files, grow_old, options, pattern};

fn index(dir: &Path) -> rusqlite::Connection {
    rusqlite::Connection::open(dir.join("index.db")).expect("the index")
}

/// Ensures that rows lost on a write error do not count as absent names.
#[test]
fn index_write_failures_hide_no_name() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    // More than one part.
    let names: Vec<_> = (0..1500).map(|n| format!("file-{n}")).collect();
    names.iter().for_each(|text| origin.direct.put(text, b""));
    grow_old();
    {
        let cached = origin.cached(dir.path(), Contract::Exclusive);
        cached.cache.flush();
        index(dir.path()).execute_batch("alter table names rename to away").expect("broken");
        assert_eq!(cached.names("").len(), names.len());
        cached.cache.flush();
        index(dir.path()).execute_batch("alter table away rename to names").expect("mended");
        // Cache a fact about the directory without changing it.
        cached.by(1000).lookup("file-0").expect("there");
        cached.cache.flush();
    }
    let cached = origin.cached(dir.path(), Contract::Exclusive);
    assert_eq!(cached.names("").len(), names.len());
    for text in &names {
        assert!(cached.lookup(text).is_ok(), "{text}");
    }
}

/// Ensures that data fetched again after damage do not increase the accounted size.
#[test]
fn data_that_were_damaged_are_counted_once() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    origin.direct.put("file", &pattern(1 << 20, 1));
    grow_old();
    drop(origin.cached(dir.path(), Contract::Exclusive).contents("file"));
    for file in data_files(dir.path()) {
        std::fs::write(file, vec![7; 1 << 20]).expect("write");
    }
    let cached = origin.cached_with(dir.path(), Policy::default());
    assert_eq!(cached.contents("file"), pattern(1 << 20, 1));
    assert_eq!(cached.store.info().kept_bytes, 1 << 20);
}

#[test]
fn look_ups_of_failed_requests_are_released() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    (0..3).for_each(|n| origin.direct.put(&format!("file-{n}"), b""));
    let is_failing = Arc::new(AtomicBool::new(false));
    let fails = is_failing.clone();
    let origin = Origin::of(Scripted::over(origin.export, move |call| {
        let is_failing = call.op == Op::HandleOf && fails.load(Ordering::SeqCst);
        Act::fail_if(is_failing, Error::Io { source: None })
    }));
    let cached = origin.cached(dir.path(), Contract::Exclusive);
    is_failing.store(true, Ordering::SeqCst);
    let before = origin.asked("forget");
    assert!(cached.lookup("file-0").is_err());
    assert_eq!(origin.asked("forget") - before, 1);
    let root = cached.open_dir("").expect("open");
    assert!(cached.readdir(root, Cookie::START, budget(8192, true)).is_err());
    until("all entries are released", || origin.asked("forget") - before >= 4);
}

#[test]
fn tiny_cache_serves_larger_concurrent_reads() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    let size = 3_000_000;
    origin.put_files(4, size);
    for capacity_bytes in [0, 4096, 1 << 20] {
        let store = StoreOptions { capacity_bytes, block_bytes: 4096, ..StoreOptions::default() };
        let cached = origin.cached_in(
            &dir.path().join(capacity_bytes.to_string()),
            options(Contract::Exclusive),
            store,
        );
        let (done, all_done) = mpsc::channel();
        for reader in 0..8_u8 {
            let (session, done) = (cached.session.clone(), done.clone());
            std::thread::spawn(move || {
                let n = reader % 4;
                let read = session.contents(&format!("file-{n}"));
                done.send(read == pattern(size, n)).expect("a receiver");
            });
        }
        for _ in 0..8 {
            let is_right = all_done.recv_timeout(Duration::from_secs(60)).expect("a reader waits for ever");
            assert!(is_right, "{capacity_bytes} bytes");
        }
        let fetched = cached.cache.counts().fetched_bytes / size as u64;
        assert!(fetched <= 32, "{fetched} files were fetched for 8 readers");
    }
}
