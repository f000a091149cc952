//! Eviction of metadata: state in use stays, and everything else is found again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tombolo_core::Error;
use tombolo_core::fs::{Mode, Op, PersistentHandle};
use tombolo_host_runtime::promise::Promise;
use tombolo_host_runtime::thread_pool::ThreadPoolLimits;
use tombolo_layer_cache::store::StoreOptions;
use tombolo_layer_cache::{Contract, Options};
use tombolo_test_support::{Act, Scripted, Session, until};

use crate::world::{Cached, Origin, options};

/// Creates a cache whose index is always full: each file that is found evicts what is unused, on these
/// threads.
fn cached(origin: &Origin, dir: &std::path::Path, threads: usize) -> Cached {
    let pool = ThreadPoolLimits { threads, ..ThreadPoolLimits::default() };
    let options = Options { pool, ..options(Contract::Exclusive) };
    let full = StoreOptions { capacity_bytes: 4096, memory_bytes: 8192, ..StoreOptions::default() };
    origin.direct.put("other", b"");
    origin.cached_in(dir, options, StoreOptions { index_pause: Duration::ZERO, ..full })
}

/// Evicts what is unused, without threads.
fn evict(session: &Session) {
    let other = session.lookup("other").expect("there").node;
    session.forget(other);
}

#[test]
fn renumbered_file_is_found_by_both_handles() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    origin.direct.put("a", b"bytes");
    let session = cached(&origin, dir.path(), 0);
    let first = session.lookup("a").expect("there").node;
    let first_handle = session.handle_of(first).expect("a handle");
    // The row stays while the session has a look-up, as a kernel has.
    evict(&session);
    assert_eq!(session.lookup("a").expect("there").node, first);
    session.fs.forget(&session.cx, &[(first, 2)]);
    evict(&session);
    let second = session.lookup("a").expect("there").node;
    assert_ne!(second, first);
    let second_handle = session.handle_of(second).expect("a handle");
    assert!(matches!(session.resolve(&first_handle), Err(Error::Stale)), "the file has two numbers");
    session.forget(second);
    for _ in 0..2 {
        for (node, handle) in [(first, &first_handle), (second, &second_handle)] {
            assert_eq!(session.resolve(handle).expect("found again").node, node);
            assert_eq!(session.lookup("a").expect("there").node, node);
            session.fs.forget(&session.cx, &[(node, 2)]);
        }
    }
}

#[test]
fn open_file_stays_one_object_in_memory() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    let session = cached(&origin, dir.path(), 0);
    let names: Vec<_> = (0..32).map(|n| format!("file-{n}")).collect();
    let files: Vec<_> = names.iter().map(|name| session.file(name)).collect();
    for _ in 0..files.len() {
        evict(&session);
    }
    for (name, file) in names.iter().zip(files) {
        assert_eq!(session.attr(name).size, 0);
        session.write_all(file, 0, b"bytes");
        assert_eq!(session.attr(name).size, 5, "{name}");
    }
}

#[test]
fn handle_with_another_files_number_is_stale() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    ["a", "b"].iter().for_each(|name| origin.direct.put(name, b"bytes"));
    let Cached { cache, session, .. } = cached(&origin, dir.path(), 0);
    let [a, b] = ["a", "b"]
        .map(|text| session.handle_of(session.lookup(text).expect("there").node).expect("a handle"));
    let of_number =
        |number: &[u8]| PersistentHandle { kind: a.kind, bytes: [number, &a.bytes[8..]].concat()[..].into() };
    assert!(session.resolve(&a).is_ok());
    assert!(matches!(session.resolve(&of_number(&b.bytes[..8])), Err(Error::Stale)));
    // A number not yet assigned.
    drop(session);
    let session = Session::attach(&cache);
    evict(&session);
    let never_given = (1_u64 << 40).to_le_bytes();
    assert!(matches!(session.resolve(&of_number(&never_given)), Err(Error::Stale)));
}

#[test]
fn late_answer_about_an_evicted_file_is_revalidated() {
    let (mut origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    origin.direct.put("a", b"bytes");
    let (is_begun, go_on) = (Arc::<AtomicBool>::default(), Arc::<Promise<()>>::default());
    let (begun, held) = (is_begun.clone(), go_on.clone());
    origin.export = Scripted::over(origin.export, move |call| {
        match call.op != Op::Lookup || begun.swap(true, Ordering::SeqCst) {
            true => Act::Pass,
            false => Act::Withhold(held.clone()),
        }
    });
    let session = cached(&origin, dir.path(), 0);
    let node = std::thread::scope(|scope| {
        let looks = scope.spawn(|| session.lookup("a"));
        until("the look-up is under way", || is_begun.load(Ordering::SeqCst));
        let node = session.lookup("a").expect("there").node;
        session.chmod(node, 0o600).expect("set");
        session.forget(node);
        evict(&session);
        go_on.keep(());
        looks.join().expect("no panic").expect("there").node
    });
    assert_eq!(session.attr(node).mode, Mode::new(0o600));
}

#[test]
fn eviction_beside_use_hides_no_file() {
    const NAMES: usize = 64;
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    let names: Vec<_> = (0..NAMES).map(|n| format!("file-{n}")).collect();
    names.iter().for_each(|name| origin.direct.put(name, b""));
    let session = cached(&origin, dir.path(), 4);
    let (end, done) = (Instant::now() + Duration::from_secs(2), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while Instant::now() < end {
                    let text = &names[fastrand::usize(..NAMES)];
                    let found = session.lookup(text).expect("it is there");
                    // With few objects in memory, this one is restored from its row.
                    names.iter().take(16).for_each(|other| {
                        let other = session.lookup(other).expect("it is there").node;
                        session.forget(other);
                    });
                    assert_eq!(session.attr(found.node).fileid, found.attr.fileid);
                    session.forget(found.node);
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        scope.spawn(|| {
            while Instant::now() < end {
                assert_eq!(session.names("").len(), NAMES + 1);
            }
        });
    });
    assert!(done.into_inner() > 0);
}
