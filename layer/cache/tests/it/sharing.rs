//! A cache that lends to another.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tombolo_core::Error;
use tombolo_core::fs::{Attr, Mode, SetAttr, Timestamp};
use tombolo_layer_cache::store::StoreOptions;
use tombolo_layer_cache::{BorrowOptions, Contract, Options};
use tombolo_test_support::until;

use crate::world::{Cached, LONG, Origin, data_bytes, data_files, options, pattern};

/// Timeouts for the busiest machine.
pub const PATIENT: BorrowOptions = BorrowOptions { patience: Duration::from_secs(60), idle: LONG };

/// Creates an origin whose files are all old enough to be lent.
pub fn old_origin() -> Origin {
    fn earlier(attr: Attr) -> Attr {
        let earlier = |time: Timestamp| Timestamp { secs: time.secs - 3600, ..time };
        Attr { mtime: earlier(attr.mtime), ctime: earlier(attr.ctime), ..attr }
    }
    Origin::new().with_clock(earlier)
}

/// Returns this many files.
fn files(count: u8, len: usize) -> Vec<(String, Vec<u8>)> {
    (0..count).map(|n| (format!("file-{n}"), pattern(len, n))).collect()
}

/// Creates a cache in a directory that lends. Nothing is listed, as listings show other times.
pub fn owner(origin: &Origin, dir: &Path, store: StoreOptions) -> Cached {
    let mut owner = origin.cached_in(dir, options(Contract::Exclusive), store);
    owner.cache.share().expect("a socket");
    owner
}

struct Two {
    origin: Origin,
    dirs: [tempfile::TempDir; 2],
}

impl Two {
    /// Creates two cache directories, and an origin with these files.
    fn new<N: AsRef<str>, B: AsRef<[u8]>>(files: &[(N, B)]) -> Self {
        let two = Self::of(old_origin());
        files.iter().for_each(|(name, bytes)| two.origin.direct.put(name, bytes.as_ref()));
        two
    }

    fn of(origin: Origin) -> Self {
        Self { origin, dirs: [(); 2].map(|()| tempfile::tempdir().expect("a directory")) }
    }

    fn owner(&self) -> Cached {
        owner(&self.origin, self.dirs[0].path(), StoreOptions::default())
    }

    fn borrower(&self, contract: Contract) -> Cached {
        let borrower = self.origin.cached_with(self.dirs[1].path(), options(contract));
        let is_there = borrower.cache.borrow_from(self.dirs[0].path(), PATIENT).expect("a thread");
        assert!(is_there, "there is an owner");
        borrower
    }
}

#[test]
fn data_cached_by_the_owner_are_not_refetched() {
    let (large, small) = (pattern(5_000_000, 1), pattern(300, 2));
    let two = Two::new(&[("large", &large), ("small", &small)]);
    let (owner, borrower) = (two.owner(), two.borrower(Contract::CloseToOpen));
    assert!(owner.contents("large") == large);
    assert_eq!(owner.contents("small"), small);
    let reads = two.origin.asked("read");
    for _ in 0..2 {
        assert!(borrower.contents("large") == large);
        assert_eq!(borrower.contents("small"), small);
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
    let mut owner = two.origin.cached_with(two.dirs[0].path(), options);
    owner.cache.share().expect("a socket");
    let file = owner.reader("large");
    for offset in [0, 1 << 20, 5 << 20] {
        owner.read(file, offset, 1 << 17).expect("read");
    }
    let had = owner.cache.counts().fetched_bytes;
    let borrower = two.borrower(Contract::CloseToOpen);
    for _ in 0..2 {
        assert!(borrower.contents("large") == large);
    }
    let counts = borrower.cache.counts();
    assert_eq!((counts.borrowed_bytes, counts.borrowed_bytes + counts.fetched_bytes), (had, 8 << 20));
}

#[test]
fn another_user_s_data_are_not_borrowed() {
    let secret = pattern(100_000, 1);
    let two = Two::new(&[("secret", &secret)]);
    let set = SetAttr { mode: Some(Mode::new(0o600)), uid: Some(7), ..SetAttr::default() };
    two.origin.direct.setattr("secret", set).expect("setattr");
    let (owner, borrower) = (two.owner(), two.borrower(Contract::CloseToOpen));
    assert!(owner.by(7).contents("secret") == secret);
    for _ in 0..2 {
        assert!(matches!(borrower.by(8).get("secret"), Err(Error::AccessDenied)));
        assert!(borrower.by(7).contents("secret") == secret);
    }
    assert_eq!(borrower.cache.counts().fetched_bytes, 0);
}

#[test]
fn another_version_is_not_borrowed() {
    let two = Two::new(&[("file", &pattern(100_000, 1))]);
    let (owner, borrower) = (two.owner(), two.borrower(Contract::CloseToOpen));
    assert!(owner.contents("file") == pattern(100_000, 1));
    assert!(borrower.contents("file") == pattern(100_000, 1));
    two.origin.direct.put("file", &pattern(100_000, 2));
    assert!(borrower.contents("file") == pattern(100_000, 2), "the owner has the old one");
    assert_eq!(borrower.cache.counts().fetched_bytes, 100_000);
}

#[test]
fn data_of_recent_changes_are_not_lent() {
    let two = Two::of(Origin::new());
    let (owner, borrower) = (two.owner(), two.borrower(Contract::CloseToOpen));
    // On a busy machine it may be old on arrival.
    let is_recent = |n: u8| {
        let (name, began) = (format!("file-{n}"), Instant::now());
        two.origin.direct.put(&name, &pattern(1000, n));
        assert_eq!(owner.contents(&name), pattern(1000, n));
        (began.elapsed() < Duration::from_millis(1900)).then_some(name)
    };
    let name = (0..=255).find_map(is_recent).expect("one of many");
    let before = borrower.cache.counts();
    assert_eq!(borrower.contents(&name).len(), 1000);
    let counts = borrower.cache.counts();
    assert_eq!(counts.borrowed_bytes, before.borrowed_bytes, "another change might not show");
    assert_eq!(counts.fetched_bytes, before.fetched_bytes + 1000);
}

#[test]
fn lent_data_are_not_evicted() {
    let files = files(40, 200_000);
    let two = Two::new(&files);
    let store = StoreOptions { capacity_bytes: 1 << 20, ..StoreOptions::default() };
    let owner = owner(&two.origin, two.dirs[0].path(), store);
    let borrower = two.borrower(Contract::Exclusive);
    assert!(owner.contents("file-0") == files[0].1);
    assert!(borrower.contents("file-0") == files[0].1);
    for (name, bytes) in &files[1..] {
        assert!(owner.contents(name) == *bytes);
    }
    let reads = two.origin.asked("read");
    assert!(borrower.contents("file-0") == files[0].1);
    assert!(owner.contents("file-0") == files[0].1);
    assert_eq!(two.origin.asked("read"), reads, "both still have it");

    // Beyond the owner's limit of locked data, the borrower fetches, and the owner's cache stays within its
    // bound.
    for (name, bytes) in &files {
        assert!(owner.contents(name) == *bytes);
        assert!(borrower.contents(name) == *bytes);
    }
    let counts = borrower.cache.counts();
    assert!(counts.fetched_bytes > 0 && counts.borrowed_bytes <= 3 << 18, "{counts:?}");
    owner.cache.flush();
    let kept = data_bytes(two.dirs[0].path());
    assert!(kept <= 1 << 20, "{kept} bytes");
}

#[test]
fn returned_data_can_be_evicted() {
    let files = files(20, 200_000);
    let two = Two::new(&files);
    let store = StoreOptions { capacity_bytes: 1 << 20, ..StoreOptions::default() };
    let owner = owner(&two.origin, two.dirs[0].path(), store);
    for (round, (name, bytes)) in files.iter().enumerate().take(4) {
        let borrower = two.borrower(Contract::Exclusive);
        assert!(owner.contents(name) == *bytes);
        assert!(borrower.contents(name) == *bytes);
        assert_eq!(borrower.cache.counts().borrowed_bytes, 200_000, "round {round}");
        drop(borrower);
    }
    // Idle files are returned.
    let idle = two.origin.cached_with(two.dirs[1].path(), options(Contract::Exclusive));
    let soon = BorrowOptions { idle: Duration::from_millis(100), ..PATIENT };
    assert!(idle.cache.borrow_from(two.dirs[0].path(), soon).expect("a thread"));
    assert!(owner.contents("file-9") == files[9].1);
    assert!(idle.contents("file-9") == files[9].1);
    let read_all = || {
        for (name, bytes) in &files {
            assert!(owner.contents(name) == *bytes);
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
        assert!(owner.contents("one") == one);
        assert!(owner.contents("other") == other);
        assert!(borrower.contents("one") == one);
        borrower
    };
    until("it is read at the origin", || {
        assert!(borrower.contents("one") == one);
        borrower.cache.counts().fetched_bytes == 300_000
    });
    let _owner = two.owner();
    until("it is connected again", || {
        borrower.cache.borrow_from(two.dirs[0].path(), PATIENT).expect("it goes on")
    });
    assert!(borrower.contents("other") == other);
    let counts = borrower.cache.counts();
    assert_eq!((counts.fetched_bytes, counts.borrowed_bytes), (300_000, 600_000));
}

#[test]
fn damaged_block_is_not_lent() {
    use std::os::unix::fs::FileExt;
    let large = pattern(1 << 20, 5);
    let two = Two::new(&[("large", &large)]);
    drop(two.owner().contents("large"));
    for file in data_files(two.dirs[0].path()) {
        let file = std::fs::File::options().write(true).open(file).expect("open");
        file.write_all_at(b"damaged", 300_000).expect("write");
    }
    let (_owner, borrower) = (two.owner(), two.borrower(Contract::Exclusive));
    assert!(borrower.contents("large") == large);
    let counts = borrower.cache.counts();
    assert_eq!((counts.fetched_bytes, counts.borrowed_bytes), (64 << 10, (1 << 20) - (64 << 10)));
}

/// Compares each open with the origin while two caches lend, borrow and restart.
#[test]
fn each_open_of_a_borrower_reads_current_data() {
    let (two, mut random) = (Two::of(old_origin()), fastrand::Rng::with_seed(9));
    let cached = |this: usize| {
        let dirs = [&two.dirs[this], &two.dirs[1 - this]].map(|dir| dir.path());
        let store = StoreOptions { capacity_bytes: 600_000, ..StoreOptions::default() };
        let mut cached = two.origin.cached_in(dirs[0], options(Contract::CloseToOpen), store);
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
        assert!(cache.contents(&name) == files[n], "round {round}: {name}");
    }
    borrowed_bytes += caches.iter().flatten().map(|cached| cached.cache.counts().borrowed_bytes).sum::<u64>();
    assert!(borrowed_bytes > 1 << 20, "{borrowed_bytes}");
}

#[test]
fn owner_restarts_are_invisible_to_readers_of_a_borrower() {
    let files = files(12, 150_000);
    let two = Two::new(&files);
    let store = StoreOptions { capacity_bytes: 1 << 20, ..StoreOptions::default() };
    let borrower = two.origin.cached_in(two.dirs[1].path(), options(Contract::CloseToOpen), store);
    let hasty = BorrowOptions { patience: Duration::from_secs(5), idle: Duration::from_millis(20) };
    borrower.cache.borrow_from(two.dirs[0].path(), hasty).expect("a thread");
    let test = Arc::new(());
    std::thread::scope(|scope| {
        for reader in 0..3 {
            let (files, session, running) = (&files, borrower.session.clone(), Arc::downgrade(&test));
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(reader);
                while running.strong_count() > 0 {
                    let (name, bytes) = &files[random.usize(..files.len())];
                    assert!(session.contents(name) == *bytes, "{name}");
                }
            });
        }
        for _ in 0..4 {
            let owner = owner(&two.origin, two.dirs[0].path(), store);
            files.iter().for_each(|(name, bytes)| assert!(owner.contents(name) == *bytes));
            let before = borrower.cache.counts().borrowed_bytes;
            until("something is borrowed", || borrower.cache.counts().borrowed_bytes > before);
        }
        drop(test);
    });
}
