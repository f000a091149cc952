//! Directories too large to be awaited as a whole.

use std::any::Any;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use tombolo_core::fs::{Attr, Cookie, DirPage, File, NodeId, Op, Opened};
use tombolo_core::{Answer, Result};
use tombolo_host_runtime::promise::Promise;
use tombolo_layer_basic::{Around, Layered, around};
use tombolo_layer_cache::store::StoreOptions;
use tombolo_layer_cache::{Contract, Options, Prefetch};
use tombolo_test_support::{Session, budget, until};

use crate::world::{Cached, Origin, opened_store};

const NAMES: usize = 20_000;

/// Size as other origins report it, which shows that the directory is large.
const SIZE_BYTES: u64 = 32 * NAMES as u64;

/// An origin that returns the first page of a listing, and the others once released. All directories are
/// large.
#[derive(Default)]
struct Slow {
    asked: AtomicU64,
    /// Number of names returned.
    told: Arc<AtomicU64>,
    go_on: Arc<Promise<()>>,
}

impl Around for Slow {
    fn around<T: around::Payload>(&self, call: around::Call, inner: impl FnOnce() -> Answer<T>) -> Answer<T> {
        let told = self.told.clone();
        let count = move |mut answer: T| {
            let any = &mut answer as &mut dyn Any;
            if let Some(attr) = any.downcast_mut::<Attr>() {
                attr.size = SIZE_BYTES;
            } else if let Some(attr) = any.downcast_mut::<Opened>().and_then(|opened| opened.attr.as_mut()) {
                attr.size = SIZE_BYTES;
            }
            if let Some(page) = (&answer as &dyn Any).downcast_ref::<DirPage>() {
                told.fetch_add(page.iter().count() as u64, Ordering::SeqCst);
            }
            answer
        };
        let answer = inner();
        if call.op != Op::Readdir || self.asked.fetch_add(1, Ordering::SeqCst) == 0 {
            return answer.map(count);
        }
        let go_on = self.go_on.clone();
        Answer::later(async move {
            go_on.kept().await;
            answer.resolve().await.map(count)
        })
    }
}

fn page(session: &Session, file: File, cookie: Cookie) -> Result<DirPage> {
    session.readdir(file, cookie, budget(4096, false))
}

#[test]
fn first_names_are_listed_before_the_last_are_fetched() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    make(&origin, NAMES);
    let slow = Arc::new(Slow::default());
    let export = Layered::new(origin.export.clone(), slow.clone());
    let store = opened_store(dir.path(), Default::default());
    let options = Options { attr_refresh: Duration::from_millis(50), ..Options::default() };
    let cache = tombolo_layer_cache::over(&export, store, options).expect("a cache");
    let session = Session::attach(&cache);
    let file = session.open_dir("").expect("open");

    let (sender, first) = mpsc::channel();
    let reader = session.clone();
    std::thread::spawn(move || drop(sender.send(page(&reader, file, Cookie::START))));
    let first = first.recv_timeout(Duration::from_secs(60)).expect("it waits for all").expect("a page");
    assert!(first.iter().count() > 2 && !first.is_end());
    assert!(
        slow.told.load(Ordering::SeqCst) < NAMES as u64,
        "the origin has told all names before one is shown"
    );
    // Change names while the listing is in progress.
    origin.direct.unlink("19999").expect("removed");
    session.put("new", b"");

    slow.go_on.keep(());
    let (mut seen, mut next) = (HashSet::new(), first);
    loop {
        let mut cookie = Cookie::START;
        for entry in next.iter() {
            assert!(seen.insert(entry.name.to_vec()), "{:?} comes twice", entry.name.escape_ascii());
            cookie = entry.cookie;
        }
        if next.is_end() {
            break;
        }
        next = page(&session, file, cookie).expect("a page");
    }
    assert!(slow.asked.load(Ordering::SeqCst) >= 2);
    let missing: Vec<_> = (0..NAMES - 1).filter(|n| !seen.contains(n.to_string().as_bytes())).collect();
    assert!(missing.is_empty(), "{} names are missing", missing.len());
    // A new listing shows another client's change.
    std::thread::sleep(Duration::from_millis(50));
    origin.direct.unlink("7").expect("removed");
    let (mut cookie, mut again) = (Cookie::START, HashSet::new());
    loop {
        let next = page(&session, file, cookie).expect("a page");
        again.extend(next.iter().map(|entry| entry.name.to_vec()));
        cookie = next.iter().last().map_or(cookie, |entry| entry.cookie);
        if next.is_end() {
            break;
        }
    }
    seen.remove(&b"7"[..]);
    assert!(again == seen, "{} names, and not {}", again.len(), seen.len());
}

/// Creates this many files in the root of the origin.
fn make(origin: &Origin, count: usize) {
    for n in 0..count {
        origin.direct.mknod(&n.to_string());
    }
}

#[test]
fn oversized_directory_is_cached_partly_and_listed_fully() {
    const COUNT: usize = 40_000;
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    make(&origin, COUNT);
    let small = StoreOptions { capacity_bytes: 16 << 20, ..StoreOptions::default() };
    let store = opened_store(dir.path(), small);
    let options = Options { attr_refresh: Duration::from_secs(3600), ..Options::default() };
    let cache = tombolo_layer_cache::over(&*origin.export, store.clone(), options).expect("a cache");
    let session = Session::attach(&cache);
    // A name looked up is cached, and shown once.
    session.lookup("39998").expect("there");
    for round in 0..2 {
        let file = session.open_dir("").expect("open");
        let (mut cookie, mut seen, mut pages) = (Cookie::START, HashSet::new(), 0);
        loop {
            let next = page(&session, file, cookie).expect("a page");
            assert!(next.is_end() || !next.is_empty());
            // A reader may continue after any entry.
            pages += 1;
            let taken = if pages % 7 == 0 && !next.is_end() { 3 } else { usize::MAX };
            for entry in next.iter().take(taken) {
                assert!(seen.insert(entry.name.to_vec()), "{:?} comes twice", entry.name.escape_ascii());
                cookie = entry.cookie;
            }
            if next.is_end() {
                break;
            }
        }
        assert_eq!(seen.len(), COUNT + 2, "round {round}");
        session.release(file);
    }
    let kept = store.info().objects;
    assert!((4096..COUNT as u64 / 2).contains(&kept), "{kept} objects are kept");
    for text in ["7", "39999"] {
        session.lookup(text).expect("there");
    }
    assert!(session.lookup("none").is_err());
}

#[test]
fn a_listing_ends_with_the_last_that_reads_it() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    make(&origin, 50_000);
    let slow = Arc::new(Slow::default());
    let export = Layered::new(origin.export.clone(), slow.clone());
    let store = opened_store(dir.path(), Default::default());
    let cache = tombolo_layer_cache::over(&export, store, Options::default()).expect("a cache");
    let session = Session::attach(&cache);
    let file = session.open_dir("").expect("open");
    assert!(!page(&session, file, Cookie::START).expect("a page").is_end());
    session.release(file);
    std::thread::sleep(Duration::from_millis(2500));
    slow.go_on.keep(());
    let mut asked = 0;
    // Wait for the requests in flight.
    while slow.asked.load(Ordering::SeqCst) != asked {
        asked = slow.asked.load(Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(500));
    }
    assert!(slow.told.load(Ordering::SeqCst) < 40_000, "it is listed on for nobody");
}

#[test]
fn listing_shows_every_name_while_others_change_the_directory() {
    const COUNT: usize = 2000;
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    make(&origin, COUNT);
    let options = Options { attr_refresh: Duration::ZERO, prefetch: Prefetch::Off, ..Options::default() };
    let Cached { cache: _cache, session } = origin.cached_with(dir.path(), options, StoreOptions::default());
    let is_over = AtomicBool::new(false);
    let missing = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                origin.direct.put("another", b"");
                // The cache drops its names.
                session.attr(NodeId::ROOT);
                let direct = &origin.direct;
                direct.unlink("another").expect("removed");
                std::thread::sleep(Duration::from_millis(3));
            }
        });
        let missing = (0..20).map(|_| {
            let listed: HashSet<_> = session.names("").into_iter().collect();
            (0..COUNT).filter(|n| !listed.contains(&n.to_string())).count()
        });
        let missing: Vec<_> = missing.collect();
        is_over.store(true, Ordering::SeqCst);
        missing
    });
    assert_eq!(missing, [0; 20], "names are missing in listings");
}

/// Creates directories with this many files each in the root of the origin.
fn make_directories(origin: &Origin, dirs: usize, files: usize) {
    for dir in 0..dirs {
        let parent = origin.direct.dir(&format!("dir-{dir}"));
        for file in 0..files {
            origin.direct.mknod((parent, &format!("file-{file}")));
        }
    }
}

#[test]
fn index_stays_within_its_quarter() {
    const CAPACITY: u64 = 3 << 20;
    let (dirs, files) = (60, 100);
    for contract in [Contract::CloseToOpen, Contract::Exclusive] {
        let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
        make_directories(&origin, dirs, files);
        let small = StoreOptions { capacity_bytes: CAPACITY, ..StoreOptions::default() };
        let attr_refresh = Duration::from_secs(3600);
        let options = Options { contract, attr_refresh, prefetch: Prefetch::Off, ..Options::default() };
        let store = opened_store(dir.path(), small);
        let cache = tombolo_layer_cache::over(&*origin.export, store.clone(), options).expect("a cache");
        let session = Session::attach(&cache);
        // An open file, a file with a look-up, and the handle of an unused one.
        let first = session.lookup("dir-0").expect("there");
        let in_first = |text: &str| session.lookup((first.node, text)).expect("there");
        let (open, known, left) = (in_first("file-0"), in_first("file-1"), in_first("file-2"));
        let file = session.reader(open.node);
        let handle = session.handle_of(left.node).expect("a handle");
        session.fs.forget(&session.cx, &[(open.node, 1), (left.node, 1)]);
        let mut relisted = 0;
        for round in 0..2 {
            for n in 0..dirs {
                let node = session.lookup(&format!("dir-{n}")).expect("there").node;
                assert_eq!(session.names(node).len(), files, "round {round}, directory {n}");
                session.forget(node);
                let asked = origin.asked("readdir");
                assert_eq!(session.names("").len(), dirs);
                relisted += u32::from(origin.asked("readdir") > asked);
            }
            store.info();
            // Of the file alone, which gets rows from the database's log later.
            let size = std::fs::metadata(dir.path().join("index.db")).expect("an index").len();
            assert!(size < CAPACITY / 4 * 3 / 2, "{contract:?}: the index has {size} bytes");
        }
        let kept = store.info().objects;
        assert!(kept > 500, "too little is kept: {kept} objects");
        // A directory in constant use stays listed, although it was listed first.
        assert!(relisted <= 10, "{contract:?}: the root was listed {relisted} times");
        session.read(file, 0, 1).expect("it is open");
        session.attr(known.node);
        // Eviction goes on in the background.
        until("enough is evicted", || {
            session.names("");
            store.info().objects < (dirs * files) as u64 / 2
        });
        // The handle leads to the file with its former number.
        let found = session.resolve(&handle).expect("found again");
        assert_eq!((found.node, found.attr.fileid), (left.node, left.attr.fileid));
    }
}

#[test]
fn a_full_index_passes_listings_and_look_ups_through() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    make_directories(&origin, 8, 100);
    let none = StoreOptions { capacity_bytes: 4096, ..StoreOptions::default() };
    let store = opened_store(dir.path(), none);
    let cache =
        tombolo_layer_cache::over(&*origin.export, store.clone(), Options::default()).expect("a cache");
    let session = Session::attach(&cache);
    for _ in 0..3 {
        assert_eq!(session.names("").len(), 8);
        for n in 0..8 {
            let node = session.lookup(&format!("dir-{n}")).expect("there").node;
            assert_eq!(session.names(node).len(), 100);
            session.lookup((node, "file-7")).expect("there");
            assert!(session.lookup((node, "none")).is_err());
        }
    }
    let kept = store.info().objects;
    assert!(kept < 200, "{kept} objects are kept");
}
