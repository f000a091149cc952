//! An origin in memory, a cache of it, and a session that changes the origin behind the cache.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tombolo_back_memory::Memory;
use tombolo_core::fs::{Attr, Entry, Export, File, FileSystem, Name, NodeId, OpenFlags, Opened, Volume};
use tombolo_core::{Answer, Ctx, forward};
use tombolo_layer_basic::stats::Counters;
use tombolo_layer_basic::{delay, stats};
use tombolo_layer_cache::store::{OpenError, OriginIdentity, Store, StoreOptions};
use tombolo_layer_cache::{CacheExport, Contract, Options, Policy, Prefetch};
use tombolo_test_support::{Session, once_free, with_session, wrapped};

/// The origin, with a session that bypasses the cache.
pub struct Origin {
    pub export: Arc<dyn Export>,
    pub direct: Session,
    counters: Arc<Counters>,
}

/// A cache with a session and its store.
pub struct Cached {
    pub cache: CacheExport,
    pub session: Session,
    pub store: Arc<Store>,
}

with_session!(Cached);

impl Origin {
    pub fn new() -> Self {
        Self::after(None)
    }

    /// Creates an origin that delays every answer.
    pub fn far(delay: Duration) -> Self {
        Self::after(Some(delay))
    }

    fn after(delay: Option<Duration>) -> Self {
        let memory: Arc<dyn Export> = Arc::new(Memory::default());
        let direct = Session::attach(&*memory);
        let far = match delay {
            Some(time) => Arc::new(delay::over(memory, time).expect("a timer")),
            None => memory,
        };
        Self { direct, ..Self::of(far) }
    }

    /// Wraps an existing export.
    pub fn of(export: Arc<dyn Export>) -> Self {
        let (direct, counters) = (Session::attach(&*export), Counters::new());
        Self { export: Arc::new(stats::over(export, counters.clone())), direct, counters }
    }

    /// Changes the attributes seen through the export by `clock`, except in listings and by `direct`.
    pub fn with_clock(self, clock: fn(Attr) -> Attr) -> Self {
        Self { export: wrapped(self.export, move |inner| Clocked(inner, clock)), ..self }
    }

    /// Returns the cache's number of requests of one operation.
    pub fn asked(&self, operation: &str) -> u64 {
        let all = self.counters.snapshot().operations;
        all.iter().filter(|each| each.name == operation).map(|each| each.count).sum()
    }

    /// Returns the cache's number of requests.
    pub fn asked_in_all(&self) -> u64 {
        let all = self.counters.snapshot().operations;
        // Openings and look-ups may be released at any time.
        all.iter().filter(|each| !["release", "forget"].contains(&&*each.name)).map(|each| each.count).sum()
    }

    /// Makes files of this length, each with another pattern.
    pub fn put_files(&self, count: u8, len: usize) {
        (0..count).for_each(|n| self.direct.put(&format!("file-{n}"), &pattern(len, n)));
    }

    pub fn cached(&self, dir: &Path, contract: Contract) -> Cached {
        self.cached_with(dir, Options { contract, ..Options::default() })
    }

    pub fn cached_with(&self, dir: &Path, policy: impl Into<Policy>) -> Cached {
        self.cached_in(dir, policy, StoreOptions::default())
    }

    pub fn cached_in(&self, dir: &Path, policy: impl Into<Policy>, store: StoreOptions) -> Cached {
        let store = opened_store(dir, store);
        Cached::new(tombolo_layer_cache::over(&*self.export, store.clone(), policy).expect("a cache"), store)
    }
}

impl Cached {
    pub fn new(cache: CacheExport, store: Arc<Store>) -> Self {
        Self { session: Session::attach(&cache), cache, store }
    }
}

/// Returns options with which nothing is prefetched.
pub fn options(contract: Contract) -> Options {
    Options { contract, prefetch: Prefetch::Off, ..Options::default() }
}

/// Returns the size of all data of a cache.
pub fn data_bytes(dir: &Path) -> u64 {
    data_files(dir).iter().map(|path| path.metadata().map_or(0, |file| file.len())).sum()
}

/// Returns options with this maximum age of attributes.
pub fn refresh(attr_refresh: Duration) -> Options {
    Options { attr_refresh, ..Options::default() }
}

/// Lists the data files of a cache.
pub fn data_files(dir: &Path) -> Vec<PathBuf> {
    let folders = std::fs::read_dir(dir.join("objects")).expect("objects").flatten();
    let files = folders.flat_map(|folder| std::fs::read_dir(folder.path()).expect("list").flatten());
    files.map(|file| file.path()).collect()
}

/// Opens the store of a cache of this origin, waiting for the end of its last owner.
pub fn opened_store(dir: &Path, options: StoreOptions) -> Arc<Store> {
    let identity = OriginIdentity { location: "memory:".into(), volume: Volume::default() };
    let open = || Store::open(dir, &identity, options);
    once_free(open, |error| matches!(error, OpenError::InUse { .. })).expect("a store")
}

/// Returns bytes that depend on their offsets: `(at / 7 + at / 4096) as u8 ^ seed`.
pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    const BLOCK: usize = 4096;
    const CYCLE: usize = 7 * 256;
    static CYCLES: [OnceLock<Vec<u8>>; 256] = [const { OnceLock::new() }; 256];
    let cycle = CYCLES[usize::from(seed)]
        .get_or_init(|| (0..CYCLE + BLOCK).map(|at| (at / 7) as u8 ^ seed).collect());
    let mut bytes = Vec::with_capacity(len);
    for from in (0..len).step_by(BLOCK) {
        let place = (from + 7 * (from / BLOCK)) % CYCLE;
        bytes.extend_from_slice(&cycle[place..place + BLOCK.min(len - from)]);
    }
    bytes
}

/// Longer than any test.
pub const LONG: Duration = Duration::from_secs(3600);

/// Waits until present data are old enough to be reused in another life.
pub fn grow_old() {
    std::thread::sleep(Duration::from_millis(2100));
}

/// A session of an origin with another clock in look-ups, opens and getattr.
struct Clocked(Arc<dyn FileSystem>, fn(Attr) -> Attr);

impl FileSystem for Clocked {
    fn lookup(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Entry> {
        let clock = self.1;
        self.0.lookup(cx, parent, name).map(move |entry| Entry { attr: clock(entry.attr), ..entry })
    }

    fn getattr(&self, cx: &Ctx, node: NodeId, file: Option<File>) -> Answer<Attr> {
        self.0.getattr(cx, node, file).map(self.1)
    }

    fn open(&self, cx: &Ctx, node: NodeId, flags: OpenFlags) -> Answer<Opened> {
        let clock = self.1;
        self.0.open(cx, node, flags).map(move |opened| Opened { attr: opened.attr.map(clock), ..opened })
    }

    forward!(to self.0; setattr access readlink create create_unnamed mkdir symlink mknod link unlink rmdir
        rename flush fsync read write readdir statfs syncfs forget release
        profile persistent_handles);
}
