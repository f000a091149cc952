//! Eviction of metadata: state in use stays, and everything else is found again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tombolo_core::fs::{Entry, Mode, NodeId, Op, PersistentHandle, SetAttr};
use tombolo_core::{Answer, Error, Result};
use tombolo_host_runtime::promise::Promise;
use tombolo_host_runtime::thread_pool::ThreadPoolLimits;
use tombolo_layer_basic::{Around, Layered, around};
use tombolo_layer_cache::store::StoreOptions;
use tombolo_layer_cache::{Contract, Options, Prefetch};

use crate::world::{Cached, Origin, Session, attach};

/// Creates a cache whose index is always full: each file that is found evicts what is unused, on these
/// threads.
fn cached(origin: &Origin, dir: &std::path::Path, threads: usize) -> Cached {
    let (contract, prefetch) = (Contract::Exclusive, Prefetch::Off);
    let pool = ThreadPoolLimits { threads, ..ThreadPoolLimits::default() };
    let options = Options { contract, prefetch, pool, ..Options::default() };
    let full = StoreOptions { capacity_bytes: 4096, memory_bytes: 8192, ..StoreOptions::default() };
    origin.direct.put("other", b"");
    origin.cached_with(dir, options, StoreOptions { index_pause: Duration::ZERO, ..full })
}

/// Evicts what is unused, without threads.
fn evict(session: &Session) {
    let other = session.lookup("other").expect("there").node;
    forget(session, other);
}

fn forget(session: &Session, node: NodeId) {
    session.fs.forget(&session.cx, &[(node, 1)]);
}

fn handle_of(session: &Session, node: NodeId) -> PersistentHandle {
    let handles = session.fs.persistent_handles().expect("handles");
    handles.handle_of(&session.cx, node).wait().expect("a handle")
}

fn resolve(session: &Session, handle: &PersistentHandle) -> Result<Entry> {
    session.fs.persistent_handles().expect("handles").resolve(&session.cx, handle).wait()
}

#[test]
fn renumbered_file_is_found_by_both_handles() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    origin.direct.put("a", b"bytes");
    let Cached { cache: _cache, session } = cached(&origin, dir.path(), 0);
    let first = session.lookup("a").expect("there").node;
    let first_handle = handle_of(&session, first);
    // The row stays while the session has a look-up, as a kernel has.
    evict(&session);
    assert_eq!(session.lookup("a").expect("there").node, first);
    session.fs.forget(&session.cx, &[(first, 2)]);
    evict(&session);
    let second = session.lookup("a").expect("there").node;
    assert_ne!(second, first);
    let second_handle = handle_of(&session, second);
    assert!(matches!(resolve(&session, &first_handle), Err(Error::Stale)), "the file has two numbers");
    forget(&session, second);
    for _ in 0..2 {
        for (node, handle) in [(first, &first_handle), (second, &second_handle)] {
            assert_eq!(resolve(&session, handle).expect("found again").node, node);
            assert_eq!(session.lookup("a").expect("there").node, node);
            session.fs.forget(&session.cx, &[(node, 2)]);
        }
    }
}

#[test]
fn handle_with_another_files_number_is_stale() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    ["a", "b"].iter().for_each(|name| origin.direct.put(name, b"bytes"));
    let Cached { cache, session } = cached(&origin, dir.path(), 0);
    let [a, b] = ["a", "b"].map(|text| handle_of(&session, session.lookup(text).expect("there").node));
    let of_number =
        |number: &[u8]| PersistentHandle { kind: a.kind, bytes: [number, &a.bytes[8..]].concat()[..].into() };
    assert!(resolve(&session, &a).is_ok());
    assert!(matches!(resolve(&session, &of_number(&b.bytes[..8])), Err(Error::Stale)));
    // A number not yet assigned.
    drop(session);
    let session = attach(&cache);
    evict(&session);
    let never_given = (1_u64 << 40).to_le_bytes();
    assert!(matches!(resolve(&session, &of_number(&never_given)), Err(Error::Stale)));
}

/// An origin that delays the reply to the first look-up.
#[derive(Default)]
struct Late {
    is_begun: AtomicBool,
    go_on: Arc<Promise<()>>,
}

impl Around for Late {
    fn around<T: around::Payload>(&self, call: around::Call, inner: impl FnOnce() -> Answer<T>) -> Answer<T> {
        let answer = inner();
        if call.op != Op::Lookup || self.is_begun.swap(true, Ordering::SeqCst) {
            return answer;
        }
        let go_on = self.go_on.clone();
        Answer::later(async move {
            go_on.kept().await;
            answer.resolve().await
        })
    }
}

#[test]
fn late_answer_about_an_evicted_file_is_revalidated() {
    let (mut origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    origin.direct.put("a", b"bytes");
    let late = Arc::new(Late::default());
    origin.export = Arc::new(Layered::new(origin.export, late.clone()));
    let Cached { cache: _cache, session } = cached(&origin, dir.path(), 0);
    let node = std::thread::scope(|scope| {
        let looks = scope.spawn(|| session.lookup("a"));
        while !late.is_begun.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let node = session.lookup("a").expect("there").node;
        let set = SetAttr { mode: Some(Mode::new(0o600)), ..SetAttr::default() };
        session.fs.setattr(&session.cx, node, None, &set).wait().expect("set");
        forget(&session, node);
        evict(&session);
        late.go_on.keep(());
        looks.join().expect("no panic").expect("there").node
    });
    let attr = session.fs.getattr(&session.cx, node, None).wait().expect("there");
    assert_eq!(attr.mode, Mode::new(0o600));
}

#[test]
fn eviction_beside_use_hides_no_file() {
    const NAMES: usize = 64;
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    let names: Vec<_> = (0..NAMES).map(|n| format!("file-{n}")).collect();
    names.iter().for_each(|name| origin.direct.put(name, b""));
    let Cached { cache: _cache, session } = cached(&origin, dir.path(), 4);
    let (until, done) = (Instant::now() + Duration::from_secs(2), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while Instant::now() < until {
                    let text = &names[fastrand::usize(..NAMES)];
                    let found = session.lookup(text).expect("it is there");
                    // With few objects in memory, this one is restored from its row.
                    names.iter().take(16).for_each(|other| {
                        let other = session.lookup(other).expect("it is there").node;
                        forget(&session, other);
                    });
                    let attr = session.fs.getattr(&session.cx, found.node, None).wait().expect("it is known");
                    assert_eq!(attr.fileid, found.attr.fileid);
                    forget(&session, found.node);
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        scope.spawn(|| {
            while Instant::now() < until {
                assert_eq!(session.list().len(), NAMES + 1);
            }
        });
    });
    assert!(done.into_inner() > 0);
}
