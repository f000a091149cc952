//! Walks over a distant tree.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tombolo_core::fs::{AccessMask, Cookie, DirPage, FileType, NodeId};
use tombolo_layer_cache::{Contract, Options, Prefetch};
use tombolo_test_support::{Session, budget, until};

use crate::world::{Origin, options, pattern};

const WIDTH: usize = 4;

/// Creates nested directories.
fn make(session: &Session, parent: NodeId, depth: usize) {
    for n in 0..WIDTH {
        let made = session.dir((parent, &format!("dir-{n}")));
        if depth > 1 {
            make(session, made, depth - 1);
        }
    }
}

fn named(n: usize) -> String {
    format!("file-{n:03}")
}

/// Lists all directories below one, as find(1) does, and returns their number; `waited` counts uncached ones.
fn walk(session: &Session, node: NodeId, waited: &AtomicU64) -> usize {
    let file = session.open_dir(node).expect("open");
    let page = DirPage::new(budget(1 << 16, true));
    let answer = session.fs.readdir(&session.cx, file, Cookie::START, page);
    waited.fetch_add(u64::from(!answer.is_done()), Ordering::Relaxed);
    let page = answer.wait().expect("list");
    assert!(page.is_end());
    session.release(file);
    let names = page.iter().filter(|entry| entry.file_type == Some(FileType::Directory));
    let names = names.filter(|entry| !matches!(entry.name, b"." | b".."));
    let names = names.map(|entry| String::from_utf8(entry.name.to_vec()).expect("a name"));
    names.fold(1, |all, text| {
        let below = session.lookup((node, &text)).expect("there");
        all + walk(session, below.node, waited)
    })
}

#[test]
fn a_walk_finds_most_directories_listed() {
    let (origin, dir) = (Origin::far(Duration::from_millis(10)), tempfile::tempdir().expect("a directory"));
    make(&origin.direct, NodeId::ROOT, 3);
    let all = 1 + 4 + 16 + 64;
    let mut waits = Vec::new();
    for prefetch in [Prefetch::Walk, Prefetch::Off] {
        let options = Options { contract: Contract::Exclusive, prefetch, ..Options::default() };
        let cached = origin.cached_with(&dir.path().join(format!("{prefetch:?}")), options);
        let (before, waited) = (origin.asked("readdir"), AtomicU64::new(0));
        assert_eq!(walk(&cached.session, NodeId::ROOT, &waited), all);
        let listed = origin.asked("readdir") - before;
        assert!(listed <= all as u64 + 16, "{listed} listings of {all} directories");
        let counts = cached.cache.counts();
        let (ahead, used) = (counts.listed_ahead_bytes, counts.listing_used_bytes);
        assert_eq!(ahead > 0, prefetch == Prefetch::Walk);
        assert!(used <= ahead && used >= ahead / 2, "each was looked at: {counts:?}");
        waits.push(waited.into_inner());
    }
    assert_eq!(waits[1], all as u64);
    assert!(waits[0] < waits[1] / 2, "{waits:?}");
}

#[test]
fn one_lookup_prefetches_a_whole_tree_if_wanted() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    make(&origin.direct, NodeId::ROOT, 3);
    let options = Options { contract: Contract::Exclusive, prefetch: Prefetch::Tree, ..Options::default() };
    let cached = origin.cached_with(dir.path(), options);
    assert!(cached.lookup("none").is_err());
    until("all are listed", || origin.asked("readdir") >= 1 + 4 + 16 + 64);
    let waited = AtomicU64::new(0);
    assert_eq!(walk(&cached.session, NodeId::ROOT, &waited), 1 + 4 + 16 + 64);
    assert_eq!(origin.asked("readdir"), 1 + 4 + 16 + 64, "each is listed once");
}

#[test]
fn a_look_into_one_directory_lists_no_other() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    make(&origin.direct, NodeId::ROOT, 2);
    let cached = origin.cached(dir.path(), Contract::Exclusive);
    let below = cached.lookup("dir-1").expect("there").node;
    for node in [below, below] {
        let file = cached.open_dir(node).expect("open");
        cached.readdir(file, Cookie::START, budget(1 << 16, true)).expect("list");
    }
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(origin.asked("readdir"), 1);
}

#[test]
fn sequential_file_reader_finds_most_files_prefetched() {
    let (origin, dir) = (Origin::far(Duration::from_millis(10)), tempfile::tempdir().expect("a directory"));
    let count = 100;
    (0..count).for_each(|n| origin.direct.put(&named(n), &pattern(3000, n as u8)));
    let mut waits = Vec::new();
    for prefetch in [Prefetch::Walk, Prefetch::Off] {
        let options = Options { contract: Contract::Exclusive, prefetch, ..Options::default() };
        let cached = origin.cached_with(&dir.path().join(format!("{prefetch:?}")), options);
        let began = Instant::now();
        for n in 0..count {
            assert_eq!(cached.contents(&named(n)), pattern(3000, n as u8));
        }
        waits.push(began.elapsed());
        let counts = cached.cache.counts();
        assert_eq!(counts.fetched_bytes, 3000 * count as u64, "each is fetched once");
        assert_eq!(counts.guess_used_bytes, counts.guessed_bytes, "what was fetched ahead was read");
        assert_eq!(counts.guessed_bytes > counts.fetched_bytes / 2, prefetch == Prefetch::Walk, "{counts:?}");
    }
    assert!(waits[0] < waits[1] / 2, "{waits:?}");
}

#[test]
fn a_reader_of_one_file_has_no_other_fetched() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    (0..10).for_each(|n| origin.direct.put(&named(n), &pattern(3000, n as u8)));
    // Too recent to be cached, so each open reads it again.
    let cached = origin.cached(dir.path(), Contract::CloseToOpen);
    (0..3).for_each(|_| assert_eq!(cached.contents(&named(4)).len(), 3000));
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!((cached.cache.counts().fetched_bytes, cached.cache.counts().guessed_bytes), (9000, 0));
}

#[test]
fn after_two_names_of_a_directory_all_are_known() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    (0..100).for_each(|n| origin.direct.put(&named(n), b""));
    let cached = origin.cached(dir.path(), Contract::Exclusive);
    (0..2).for_each(|n| assert!(cached.lookup(&named(n)).is_ok()));
    let asks = || {
        let before = origin.asked_in_all();
        (0..100).for_each(|n| assert!(cached.lookup(&named(n)).is_ok()));
        assert!(cached.lookup("none").is_err());
        origin.asked_in_all() - before
    };
    // Wait for the listing.
    until("it is listed", || asks() == 0);
    assert_eq!(origin.asked("readdir"), 1);
}

#[test]
fn a_path_through_small_directories_asks_once_for_each() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    make(&origin.direct, NodeId::ROOT, 3);
    let cached = origin.cached(dir.path(), Contract::Exclusive);
    let look = |parent, text: &str| cached.lookup((parent, text));
    let first = look(NodeId::ROOT, "dir-1").expect("there").node;
    let second = look(first, "dir-2").expect("there").node;
    look(second, "dir-3").expect("there");
    assert_eq!((origin.asked("lookup"), origin.asked("readdir")), (1, 2));
    // The listing shows all present and absent names.
    assert!(look(second, "dir-0").is_ok() && look(second, "none").is_err() && look(first, "none").is_err());
    assert_eq!((origin.asked("lookup"), origin.asked("readdir")), (1, 2));
}

#[test]
fn abandoned_walk_wastes_few_listings() {
    let (origin, dir) = (Origin::far(Duration::from_millis(5)), tempfile::tempdir().expect("a directory"));
    make(&origin.direct, NodeId::ROOT, 1);
    let long = |n: usize| format!("{n:0200}");
    for n in 0..WIDTH {
        let parent = origin.direct.lookup(&format!("dir-{n}")).expect("there").node;
        for n in 0..20 {
            origin.direct.dir((parent, &long(n)));
        }
    }
    let cached = origin.cached(dir.path(), Contract::Exclusive);
    for node in [NodeId::ROOT, cached.lookup("dir-0").expect("there").node] {
        let file = cached.open_dir(node).expect("open");
        cached.readdir(file, Cookie::START, budget(1 << 16, true)).expect("list");
    }
    until("something is listed ahead", || cached.cache.counts().listed_ahead_bytes > 0);
    let counts = cached.cache.counts();
    let (ahead, used) = (counts.listed_ahead_bytes, counts.listing_used_bytes);
    assert!(used < ahead, "not all of it was looked at: {counts:?}");
}

#[test]
fn lookups_in_consecutive_directories_are_a_walk() {
    let (origin, dir) = (Origin::far(Duration::from_millis(5)), tempfile::tempdir().expect("a directory"));
    make(&origin.direct, NodeId::ROOT, 3);
    let cached = origin.cached(dir.path(), Contract::Exclusive);
    // Look-ups of all cached names, as by git status.
    fn look(session: &Session, parent: NodeId, depth: usize) {
        for n in 0..WIDTH {
            let below = session.lookup((parent, &format!("dir-{n}"))).expect("there");
            if depth > 1 {
                look(session, below.node, depth - 1);
            }
        }
    }
    look(&cached, NodeId::ROOT, 3);
    let asked = origin.asked("lookup");
    assert!(asked < 60, "{asked} of 84 names were looked up at the origin");
}

#[test]
fn concurrent_lookups_of_a_file_get_one_number() {
    let (origin, dir) = (Origin::far(Duration::from_millis(5)), tempfile::tempdir().expect("a directory"));
    (0..20).for_each(|n| origin.direct.put(&named(n), b""));
    let cached = origin.cached_with(dir.path(), options(Contract::Exclusive));
    let meet = || (0..20).map(|n| cached.lookup(&named(n)).expect("there").node).collect::<Vec<_>>();
    std::thread::scope(|scope| {
        let met: Vec<_> = (0..8).map(|_| scope.spawn(meet)).collect();
        let met: Vec<_> = met.into_iter().map(|met| met.join().expect("met")).collect();
        met.iter().for_each(|numbers| assert_eq!(*numbers, met[0]));
    });
}

#[test]
fn a_listing_does_not_undo_what_is_changed_meanwhile() {
    let (origin, dir) = (Origin::far(Duration::from_millis(10)), tempfile::tempdir().expect("a directory"));
    (0..20).for_each(|n| origin.direct.put(&named(n), b""));
    for round in 0..10 {
        let cached = origin.cached(&dir.path().join(round.to_string()), Contract::Exclusive);
        let (session, kept, gone) = (&cached.session, format!("kept-{round}"), named(round as usize));
        let looks = || {
            assert_eq!(session.get(&kept).expect("it was made"), b"here");
            assert!(session.lookup(&gone).is_err(), "it was removed");
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(4 * round));
                session.put(&kept, b"here");
                session.unlink(&gone).expect("unlink");
                // A look-up would repair errors of a listing.
                (0..50).filter(|_| round % 2 == 1).for_each(|_| looks());
            });
            let _ = walk(session, NodeId::ROOT, &AtomicU64::new(0));
        });
        // With a cached permission for the new version, the cached names are used.
        session.access("", AccessMask::READ | AccessMask::EXECUTE).expect("the superuser");
        looks();
    }
}
