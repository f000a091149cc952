//! An origin in memory, a cache of it, write-back over the cache, and sessions of each.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tombolo_back_memory::Memory;
use tombolo_core::Identity;
use tombolo_core::fs::{Export, Volume};
use tombolo_layer_basic::stats::{self, Counters};
use tombolo_layer_cache::store::{OpenError, OriginIdentity, Store, StoreOptions};
use tombolo_layer_cache::{CacheExport, Contract};
use tombolo_layer_idmap::{self as idmap, IdMap, Ids};
use tombolo_layer_write_back::{Options, WriteBackExport};
use tombolo_test_support::{Session, image, once_free, with_session};

/// The origin.
pub struct Origin {
    pub direct: Session,
    /// Counts of the proxy's requests.
    pub counters: Arc<Counters>,
    /// The export that the proxy uses.
    pub export: Arc<dyn Export>,
    dir: TempDir,
}

/// A proxy of the origin.
pub struct Proxy {
    pub session: Session,
    pub write_back: WriteBackExport,
    pub cache: CacheExport,
}

with_session!(Proxy);

/// Returns options with which changes are sent only on request.
pub fn on_request() -> Options {
    let never = Duration::from_secs(3600);
    Options { idle: never, delay_max: never, ..Options::default() }
}

impl Origin {
    pub fn new() -> Self {
        Self::with(|memory| memory)
    }

    /// Creates an origin that the proxy uses through a layer.
    pub fn with(layer: impl FnOnce(Arc<dyn Export>) -> Arc<dyn Export>) -> Self {
        let memory: Arc<dyn Export> = Arc::new(Memory::default());
        let direct = Session::attach(&*memory);
        let counters = Counters::new();
        let export = Arc::new(stats::over(layer(memory), counters.clone()));
        Self { direct, counters, export, dir: tempfile::tempdir().expect("a directory") }
    }

    /// Creates an origin that knows only the users and groups in `ranges`, and takes others for `nobody`.
    pub fn squashing(ranges: &[&str], nobody: u32) -> Self {
        Self::with(|inner| {
            let ranges = || ranges.iter().map(|range| range.parse().expect("a range")).collect();
            let ids = || Ids::new(ranges(), nobody).expect("a map");
            Arc::new(idmap::over(inner, IdMap { users: ids(), groups: ids() }))
        })
    }

    /// Starts a proxy that sends changes only on request.
    pub fn proxy(&self) -> Proxy {
        self.proxy_with(on_request())
    }

    pub fn proxy_with(&self, options: Options) -> Proxy {
        let identity = OriginIdentity { location: "memory:".into(), volume: Volume::default() };
        let store = || Store::open(&self.path("cache"), &identity, StoreOptions::default());
        // Its last owner may still be about to end.
        let store = once_free(store, |error| matches!(error, OpenError::InUse { .. })).expect("a store");
        let contract = tombolo_layer_cache::Options {
            contract: Contract::Exclusive,
            ..tombolo_layer_cache::Options::default()
        };
        let cache = tombolo_layer_cache::over(&*self.export, store, contract).expect("a cache");
        let dir = self.path("write-back");
        let write_back = tombolo_layer_write_back::over(&cache, &dir, options).expect("write-back");
        write_back.learn_root(&Identity::ROOT);
        Proxy { session: Session::attach(&write_back), write_back, cache }
    }

    /// Kills a proxy: the next one starts with the files as they are now.
    pub fn kill(&mut self, proxy: Proxy) {
        let dir = tempfile::tempdir().expect("a directory");
        image(self.dir.path(), dir.path());
        drop(proxy);
        self.go_on_from(dir);
    }

    /// Kills a proxy, and starts the next one.
    pub fn restarted(&mut self, proxy: Proxy) -> Proxy {
        self.kill(proxy);
        self.proxy()
    }

    /// Sets the files of the next proxy.
    pub fn go_on_from(&mut self, left: TempDir) {
        self.dir = left;
    }

    /// Returns the path of a file of the proxy.
    pub fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }

    /// Counts the files with unsent data.
    pub fn data_files(&self) -> usize {
        std::fs::read_dir(self.path("write-back/data")).expect("list").count()
    }

    /// Counts all requests of the proxy, except those that release something and statfs.
    pub fn asked_in_all(&self) -> u64 {
        let all = self.counters.snapshot().operations;
        let all = all.iter().filter(|each| !["release", "forget", "statfs"].contains(&&*each.name));
        all.map(|each| each.count).sum()
    }

    /// Counts the proxy's requests for an operation.
    pub fn asked(&self, operation: &str) -> u64 {
        self.counters.snapshot().operation(operation).map_or(0, |operation| operation.count)
    }
}
