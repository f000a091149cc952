//! A cache that lends to another.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tombolo_core::Error;
use tombolo_core::fs::{Attr, Mode, SetAttr, Timestamp};
use tombolo_layer_cache::store::StoreOptions;
use tombolo_layer_cache::{BorrowOptions, Contract, Options, Prefetch};
use tombolo_test_support::until;

use crate::world::{Cached, Origin, pattern};

/// Timeouts for the busiest machine.
pub const PATIENT: BorrowOptions =
    BorrowOptions { patience: Duration::from_secs(60), idle: Duration::from_secs(3600) };

/// Returns options without listings, which would show other times.
pub fn options(contract: Contract) -> Options {
    Options { contract, prefetch: Prefetch::Off, ..Options::default() }
}

/// Creates an origin whose files are all old enough to be lent.
pub fn old_origin() -> Origin {
    fn earlier(attr: Attr) -> Attr {
        let earlier = |time: Timestamp| Timestamp { secs: time.secs - 3600, ..time };
        Attr { mtime: earlier(attr.mtime), ctime: earlier(attr.ctime), ..attr }
    }
    Origin::new().with_clock(earlier)
}

/// Creates a cache in a directory that lends.
pub fn owner(origin: &Origin, dir: &Path, store: StoreOptions) -> Cached {
    let mut owner = origin.cached_with(dir, options(Contract::Exclusive), store);
    owner.cache.share().expect("a socket");
    owner
}

fn borrower(origin: &Origin, dir: &Path, from: &Path, contract: Contract) -> Cached {
    let borrower = origin.cached_with(dir, options(contract), StoreOptions::default());
    assert!(borrower.cache.borrow_from(from, PATIENT).expect("a thread"), "there is an owner");
    borrower
}

struct Two {
    origin: Origin,
    dirs: [tempfile::TempDir; 2],
}

impl Two {
    /// Creates two cache directories, and an origin with these files.
    fn new(files: &[(&str, &[u8])]) -> Self {
        Self::of(old_origin(), files)
    }

    fn of(origin: Origin, files: &[(&str, &[u8])]) -> Self {
        files.iter().for_each(|(name, bytes)| origin.direct.put(name, bytes));
        Self { origin, dirs: std::array::from_fn(|_| tempfile::tempdir().expect("a directory")) }
    }

    fn owner(&self) -> Cached {
        owner(&self.origin, self.dirs[0].path(), StoreOptions::default())
    }

    fn borrower(&self, contract: Contract) -> Cached {
        borrower(&self.origin, self.dirs[1].path(), self.dirs[0].path(), contract)
    }
}

#[test]
fn data_cached_by_the_owner_are_not_refetched() {
    let (large, small) = (pattern(5_000_000, 1), pattern(300, 2));
    let two = Two::new(&[("large", &large), ("small", &small)]);
    let (owner, borrower) = (two.owner(), two.borrower(Contract::CloseToOpen));
    assert!(owner.session.get("large").expect("read") == large);
    assert_eq!(owner.session.get("small").expect("read"), small);
    let reads = two.origin.asked("read");
    for _ in 0..2 {
        assert!(borrower.session.get("large").expect("read") == large);
        assert_eq!(borrower.session.get("small").expect("read"), small);
    }
    assert_eq!(two.origin.asked("read"), reads);
    let (lent, borrowed) = (owner.cache.counts(), borrower.cache.counts());
    assert_eq!((borrowed.borrowed_bytes, borrowed.fetched_bytes), (5_000_300, 0));
    assert_eq!(lent.lent_bytes, 5_000_300);
}

#[test]
fn data_missing_at_the_owner_are_fetched_once() {
    let large = pattern(8 << 20, 3);
    let two = Two::new(&[("large", &large)]);
    // Read-ahead would make the result depend on timing.
    let options = Options { ahead_bytes_max: 0, ..options(Contract::Exclusive) };
    let mut owner = two.origin.cached_with(two.dirs[0].path(), options, StoreOptions::default());
    owner.cache.share().expect("a socket");
    let file = owner.session.reader("large");
    for offset in [0, 1 << 20, 5 << 20] {
        owner.session.read(file, offset, 1 << 17).expect("read");
    }
    let had = owner.cache.counts().fetched_bytes;
    let borrower = two.borrower(Contract::CloseToOpen);
    for _ in 0..2 {
        assert!(borrower.session.get("large").expect("read") == large);
    }
    let counts = borrower.cache.counts();
    assert_eq!((counts.borrowed_bytes, counts.borrowed_bytes + counts.fetched_bytes), (had, 8 << 20));
}

#[test]
fn another_user_s_data_are_not_borrowed() {
    let secret = pattern(100_000, 1);
    let two = Two::new(&[("secret", &secret)]);
    let node = two.origin.direct.lookup("secret").expect("there").node;
    let set = SetAttr { mode: Some(Mode::new(0o600)), uid: Some(7), ..SetAttr::default() };
    let direct = &two.origin.direct;
    direct.setattr(node, set).expect("setattr");
    let (owner, borrower) = (two.owner(), two.borrower(Contract::CloseToOpen));
    assert!(owner.session.by(7).get("secret").expect("read") == secret);
    for _ in 0..2 {
        assert!(matches!(borrower.session.by(8).get("secret"), Err(Error::AccessDenied)));
        assert!(borrower.session.by(7).get("secret").expect("read") == secret);
    }
    assert_eq!(borrower.cache.counts().fetched_bytes, 0);
}

#[test]
fn another_version_is_not_borrowed() {
    let two = Two::new(&[("file", &pattern(100_000, 1))]);
    let (owner, borrower) = (two.owner(), two.borrower(Contract::CloseToOpen));
    assert!(owner.session.get("file").expect("read") == pattern(100_000, 1));
    assert!(borrower.session.get("file").expect("read") == pattern(100_000, 1));
    two.origin.direct.put("file", &pattern(100_000, 2));
    assert!(borrower.session.get("file").expect("read") == pattern(100_000, 2), "the owner has the old one");
    assert_eq!(borrower.cache.counts().fetched_bytes, 100_000);
}

#[test]
fn data_of_recent_changes_are_not_lent() {
    let two = Two::of(Origin::new(), &[]);
    let (owner, borrower) = (two.owner(), two.borrower(Contract::CloseToOpen));
    // On a busy machine it may be old on arrival.
    let is_recent = |n: u8| {
        let (name, began) = (format!("file-{n}"), Instant::now());
        two.origin.direct.put(&name, &pattern(1000, n));
        assert_eq!(owner.session.get(&name).expect("read"), pattern(1000, n));
        (began.elapsed() < Duration::from_millis(1900)).then_some(name)
    };
    let name = (0..=255).find_map(is_recent).expect("one of many");
    let before = borrower.cache.counts();
    assert_eq!(borrower.session.get(&name).expect("read").len(), 1000);
    let counts = borrower.cache.counts();
    assert_eq!(counts.borrowed_bytes, before.borrowed_bytes, "another change might not show");
    assert_eq!(counts.fetched_bytes, before.fetched_bytes + 1000);
}

#[test]
fn lent_data_are_not_evicted() {
    let names: Vec<String> = (0..40).map(|n| format!("file-{n}")).collect();
    let bytes: Vec<Vec<u8>> = (0..40).map(|n| pattern(200_000, n)).collect();
    let files: Vec<(&str, &[u8])> =
        names.iter().map(|name| &**name).zip(bytes.iter().map(|it| &**it)).collect();
    let two = Two::new(&files);
    let store = StoreOptions { capacity_bytes: 1 << 20, ..StoreOptions::default() };
    let owner = owner(&two.origin, two.dirs[0].path(), store);
    let borrower = two.borrower(Contract::Exclusive);
    assert!(owner.session.get("file-0").expect("read") == bytes[0]);
    assert!(borrower.session.get("file-0").expect("read") == bytes[0]);
    for (name, bytes) in &files[1..] {
        assert!(owner.session.get(name).expect("read") == *bytes);
    }
    let reads = two.origin.asked("read");
    assert!(borrower.session.get("file-0").expect("read") == bytes[0]);
    assert!(owner.session.get("file-0").expect("read") == bytes[0]);
    assert_eq!(two.origin.asked("read"), reads, "both still have it");

    // Beyond the owner's limit of locked data, the borrower fetches, and the owner's cache stays within its
    // bound.
    for (name, bytes) in &files {
        assert!(owner.session.get(name).expect("read") == *bytes);
        assert!(borrower.session.get(name).expect("read") == *bytes);
    }
    let counts = borrower.cache.counts();
    assert!(counts.fetched_bytes > 0 && counts.borrowed_bytes <= 3 << 18, "{counts:?}");
    owner.cache.flush();
    let objects = std::fs::read_dir(two.dirs[0].path().join("objects")).expect("list").flatten();
    let objects = objects.flat_map(|folder| std::fs::read_dir(folder.path()).expect("list").flatten());
    let kept: u64 = objects.map(|file| file.metadata().map_or(0, |file| file.len())).sum();
    assert!(kept <= 1 << 20, "{kept} bytes");
}

#[test]
fn returned_data_can_be_evicted() {
    let names: Vec<String> = (0..20).map(|n| format!("file-{n}")).collect();
    let bytes: Vec<Vec<u8>> = (0..20).map(|n| pattern(200_000, n)).collect();
    let files: Vec<(&str, &[u8])> =
        names.iter().map(|name| &**name).zip(bytes.iter().map(|it| &**it)).collect();
    let two = Two::new(&files);
    let store = StoreOptions { capacity_bytes: 1 << 20, ..StoreOptions::default() };
    let owner = owner(&two.origin, two.dirs[0].path(), store);
    for (round, (name, bytes)) in files.iter().enumerate().take(4) {
        let borrower = two.borrower(Contract::Exclusive);
        assert!(owner.session.get(name).expect("read") == *bytes);
        assert!(borrower.session.get(name).expect("read") == *bytes);
        assert_eq!(borrower.cache.counts().borrowed_bytes, 200_000, "round {round}");
        drop(borrower);
    }
    // Idle files are returned.
    let idle =
        two.origin.cached_with(two.dirs[1].path(), options(Contract::Exclusive), StoreOptions::default());
    let soon = BorrowOptions { idle: Duration::from_millis(100), ..PATIENT };
    assert!(idle.cache.borrow_from(two.dirs[0].path(), soon).expect("a thread"));
    assert!(owner.session.get("file-9").expect("read") == bytes[9]);
    assert!(idle.session.get("file-9").expect("read") == bytes[9]);
    let read_all = || {
        for (name, bytes) in &files {
            assert!(owner.session.get(name).expect("read") == *bytes);
        }
    };
    // The connection may end a little later.
    until("all is evicted in turn", || {
        let before = two.origin.asked("read");
        read_all();
        two.origin.asked("read") - before >= 20
    });
}

#[test]
fn borrower_reads_origin_while_its_owner_is_down() {
    let (one, other) = (pattern(300_000, 1), pattern(300_000, 2));
    let two = Two::new(&[("one", &one), ("other", &other)]);
    let borrower = {
        let (owner, borrower) = (two.owner(), two.borrower(Contract::Exclusive));
        assert!(owner.session.get("one").expect("read") == one);
        assert!(owner.session.get("other").expect("read") == other);
        assert!(borrower.session.get("one").expect("read") == one);
        borrower
    };
    until("it is read at the origin", || {
        assert!(borrower.session.get("one").expect("read") == one);
        borrower.cache.counts().fetched_bytes == 300_000
    });
    let _owner = two.owner();
    until("it is connected again", || {
        borrower.cache.borrow_from(two.dirs[0].path(), PATIENT).expect("it goes on")
    });
    assert!(borrower.session.get("other").expect("read") == other);
    let counts = borrower.cache.counts();
    assert_eq!((counts.fetched_bytes, counts.borrowed_bytes), (300_000, 600_000));
}

#[test]
fn damaged_block_is_not_lent() {
    use std::os::unix::fs::FileExt;
    let large = pattern(1 << 20, 5);
    let two = Two::new(&[("large", &large)]);
    drop(two.owner().session.get("large").expect("read"));
    let objects = std::fs::read_dir(two.dirs[0].path().join("objects")).expect("list").flatten();
    for file in objects.flat_map(|folder| std::fs::read_dir(folder.path()).expect("list").flatten()) {
        let file = std::fs::File::options().write(true).open(file.path()).expect("open");
        file.write_all_at(b"damaged", 300_000).expect("write");
    }
    let (_owner, borrower) = (two.owner(), two.borrower(Contract::Exclusive));
    assert!(borrower.session.get("large").expect("read") == large);
    let counts = borrower.cache.counts();
    assert_eq!((counts.fetched_bytes, counts.borrowed_bytes), (64 << 10, (1 << 20) - (64 << 10)));
}

/// Compares each open with the origin while two caches lend, borrow and restart.
#[test]
fn each_open_of_a_borrower_reads_current_data() {
    let (two, mut random) = (Two::new(&[]), fastrand::Rng::with_seed(9));
    let cached = |this: usize| {
        let dirs = [&two.dirs[this], &two.dirs[1 - this]].map(|dir| dir.path());
        let store = StoreOptions { capacity_bytes: 600_000, ..StoreOptions::default() };
        let mut cached = two.origin.cached_with(dirs[0], options(Contract::CloseToOpen), store);
        cached.cache.share().expect("a socket");
        cached.cache.borrow_from(dirs[1], PATIENT).expect("a thread");
        cached
    };
    let mut caches = [Some(cached(0)), Some(cached(1))];
    let mut files: Vec<Vec<u8>> = vec![Vec::new(); 6];
    let mut borrowed_bytes = 0;
    for round in 0..600 {
        let (n, which) = (random.usize(..files.len()), random.usize(..2));
        let name = format!("file-{n}");
        if files[n].is_empty() || random.u8(..10) == 0 {
            files[n] = pattern(random.usize(1..300_000), random.u8(..));
            two.origin.direct.put(&name, &files[n]);
        }
        if random.u8(..50) == 0 {
            borrowed_bytes += caches[which].take().map_or(0, |cached| cached.cache.counts().borrowed_bytes);
            caches[which] = Some(cached(which));
        }
        let cache = caches[which].as_ref().expect("one");
        assert!(cache.session.get(&name).expect("read") == files[n], "round {round}: {name}");
    }
    borrowed_bytes += caches.iter().flatten().map(|cached| cached.cache.counts().borrowed_bytes).sum::<u64>();
    assert!(borrowed_bytes > 1 << 20, "{borrowed_bytes}");
}

#[test]
fn owner_restarts_are_invisible_to_readers_of_a_borrower() {
    let names: Vec<String> = (0..12).map(|n| format!("file-{n}")).collect();
    let bytes: Vec<Vec<u8>> = (0..12).map(|n| pattern(150_000, n)).collect();
    let files: Vec<(&str, &[u8])> =
        names.iter().map(|name| &**name).zip(bytes.iter().map(|it| &**it)).collect();
    let two = Two::new(&files);
    let store = StoreOptions { capacity_bytes: 1 << 20, ..StoreOptions::default() };
    let borrower = two.origin.cached_with(two.dirs[1].path(), options(Contract::CloseToOpen), store);
    let hasty = BorrowOptions { patience: Duration::from_secs(5), idle: Duration::from_millis(20) };
    borrower.cache.borrow_from(two.dirs[0].path(), hasty).expect("a thread");
    let test = Arc::new(());
    std::thread::scope(|scope| {
        for reader in 0..3 {
            let (files, session, running) = (&files, borrower.session.clone(), Arc::downgrade(&test));
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(reader);
                while running.strong_count() > 0 {
                    let (name, bytes) = files[random.usize(..files.len())];
                    assert!(session.get(name).expect("read") == bytes, "{name}");
                }
            });
        }
        for _ in 0..4 {
            let owner = owner(&two.origin, two.dirs[0].path(), store);
            files.iter().for_each(|(name, bytes)| assert!(owner.session.get(name).expect("read") == *bytes));
            let before = borrower.cache.counts().borrowed_bytes;
            until("something is borrowed", || borrower.cache.counts().borrowed_bytes > before);
        }
        drop(test);
    });
}
