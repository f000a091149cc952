//! Directories too large to be awaited as a whole.

use std::any::Any;
use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use tombolo_core::Answer;
use tombolo_core::fs::{Attr, Cookie, DirPage, File, NodeId, Op, Opened};
use tombolo_host_runtime::promise::Promise;
use tombolo_layer_basic::{Around, Layered, around};
use tombolo_layer_cache::store::StoreOptions;
use tombolo_layer_cache::{Contract, Options, Prefetch};
use tombolo_test_support::{Session, budget, until};

use crate::world::{Cached, LONG, Origin, options, refresh};

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

fn page(session: &Session, file: File, cookie: Cookie) -> DirPage {
    session.readdir(file, cookie, budget(4096, false)).expect("a page")
}

/// Reads a listing from `page` on to its end, or of each seventh page only the first three names, and returns
/// the names, of which none comes twice.
fn listed(session: &Session, file: File, mut page: DirPage, is_choosy: bool) -> HashSet<Vec<u8>> {
    let (mut seen, mut cookie) = (HashSet::new(), Cookie::START);
    for pages in 1.. {
        assert!(page.is_end() || !page.is_empty());
        // A reader may continue after any entry.
        let taken = if is_choosy && pages % 7 == 0 && !page.is_end() { 3 } else { usize::MAX };
        for entry in page.iter().take(taken) {
            assert!(seen.insert(entry.name.to_vec()), "{:?} comes twice", entry.name.escape_ascii());
            cookie = entry.cookie;
        }
        if page.is_end() {
            break;
        }
        page = self::page(session, file, cookie);
    }
    seen
}

/// Creates a cache of an origin whose listings are slow.
fn slow(origin: &mut Origin, dir: &Path, options: Options) -> (Cached, Arc<Slow>) {
    let slow = Arc::new(Slow::default());
    origin.export = Arc::new(Layered::new(origin.export.clone(), slow.clone()));
    (origin.cached_with(dir, options), slow)
}

#[test]
fn first_names_are_listed_before_the_last_are_fetched() {
    let (mut origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    make(&origin, NAMES);
    let (cached, slow) = slow(&mut origin, dir.path(), refresh(Duration::from_millis(50)));
    let file = cached.open_dir("").expect("open");

    let (sender, first) = mpsc::channel();
    let reader = cached.session.clone();
    std::thread::spawn(move || drop(sender.send(page(&reader, file, Cookie::START))));
    let first = first.recv_timeout(Duration::from_secs(60)).expect("it waits for all");
    assert!(first.iter().count() > 2 && !first.is_end());
    assert!(
        slow.told.load(Ordering::SeqCst) < NAMES as u64,
        "the origin has told all names before one is shown"
    );
    // Change names while the listing is in progress.
    origin.direct.unlink("19999").expect("removed");
    cached.put("new", b"");

    slow.go_on.keep(());
    let mut seen = listed(&cached, file, first, false);
    assert!(slow.asked.load(Ordering::SeqCst) >= 2);
    let missing: Vec<_> = (0..NAMES - 1).filter(|n| !seen.contains(n.to_string().as_bytes())).collect();
    assert!(missing.is_empty(), "{} names are missing", missing.len());
    // A new listing shows another client's change.
    std::thread::sleep(Duration::from_millis(50));
    origin.direct.unlink("7").expect("removed");
    let again = listed(&cached, file, page(&cached, file, Cookie::START), false);
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
    let cached = origin.cached_in(dir.path(), refresh(LONG), small);
    // A name looked up is cached, and shown once.
    cached.lookup("39998").expect("there");
    for round in 0..2 {
        let file = cached.open_dir("").expect("open");
        let seen = listed(&cached, file, page(&cached, file, Cookie::START), true);
        assert_eq!(seen.len(), COUNT + 2, "round {round}");
        cached.release(file);
    }
    let kept = cached.store.info().objects;
    assert!((4096..COUNT as u64 / 2).contains(&kept), "{kept} objects are kept");
    for text in ["7", "39999"] {
        cached.lookup(text).expect("there");
    }
    assert!(cached.lookup("none").is_err());
}

#[test]
fn a_listing_ends_with_the_last_that_reads_it() {
    let (mut origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    make(&origin, 50_000);
    let (cached, slow) = slow(&mut origin, dir.path(), Options::default());
    let file = cached.open_dir("").expect("open");
    assert!(!page(&cached, file, Cookie::START).is_end());
    cached.release(file);
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
    let options = Options { prefetch: Prefetch::Off, ..refresh(Duration::ZERO) };
    let cached = origin.cached_with(dir.path(), options);
    let is_over = AtomicBool::new(false);
    let missing = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                origin.direct.put("another", b"");
                // The cache drops its names.
                cached.attr(NodeId::ROOT);
                let direct = &origin.direct;
                direct.unlink("another").expect("removed");
                std::thread::sleep(Duration::from_millis(3));
            }
        });
        let missing = (0..20).map(|_| {
            let listed: HashSet<_> = cached.names("").into_iter().collect();
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
        let options = Options { attr_refresh: LONG, ..options(contract) };
        let cached = origin.cached_in(dir.path(), options, small);
        // An open file, a file with a look-up, and the handle of an unused one.
        let first = cached.lookup("dir-0").expect("there");
        let in_first = |text: &str| cached.lookup((first.node, text)).expect("there");
        let (open, known, left) = (in_first("file-0"), in_first("file-1"), in_first("file-2"));
        let file = cached.reader(open.node);
        let handle = cached.handle_of(left.node).expect("a handle");
        cached.fs.forget(&cached.cx, &[(open.node, 1), (left.node, 1)]);
        let mut relisted = 0;
        for round in 0..2 {
            for n in 0..dirs {
                let node = cached.lookup(&format!("dir-{n}")).expect("there").node;
                assert_eq!(cached.names(node).len(), files, "round {round}, directory {n}");
                cached.forget(node);
                let asked = origin.asked("readdir");
                assert_eq!(cached.names("").len(), dirs);
                relisted += u32::from(origin.asked("readdir") > asked);
            }
            cached.store.info();
            // Of the file alone, which gets rows from the database's log later.
            let size = std::fs::metadata(dir.path().join("index.db")).expect("an index").len();
            assert!(size < CAPACITY / 4 * 3 / 2, "{contract:?}: the index has {size} bytes");
        }
        let kept = cached.store.info().objects;
        assert!(kept > 500, "too little is kept: {kept} objects");
        // A directory in constant use stays listed, although it was listed first.
        assert!(relisted <= 10, "{contract:?}: the root was listed {relisted} times");
        cached.read(file, 0, 1).expect("it is open");
        cached.attr(known.node);
        // Eviction goes on in the background.
        until("enough is evicted", || {
            cached.names("");
            cached.store.info().objects < (dirs * files) as u64 / 2
        });
        // The handle leads to the file with its former number.
        let found = cached.resolve(&handle).expect("found again");
        assert_eq!((found.node, found.attr.fileid), (left.node, left.attr.fileid));
    }
}

#[test]
fn a_full_index_passes_listings_and_look_ups_through() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    make_directories(&origin, 8, 100);
    let none = StoreOptions { capacity_bytes: 4096, ..StoreOptions::default() };
    let cached = origin.cached_in(dir.path(), Options::default(), none);
    for _ in 0..3 {
        assert_eq!(cached.names("").len(), 8);
        for n in 0..8 {
            let node = cached.lookup(&format!("dir-{n}")).expect("there").node;
            assert_eq!(cached.names(node).len(), 100);
            cached.lookup((node, "file-7")).expect("there");
            assert!(cached.lookup((node, "none")).is_err());
        }
    }
    let kept = cached.store.info().objects;
    assert!(kept < 200, "{kept} objects are kept");
}
