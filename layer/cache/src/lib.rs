//! An on-disk cache over a remote file system.
//!
//! Names, attributes, link targets and permissions are cached in memory and in a database, the data of each
//! file in a sparse file of its own beneath the cache directory. The [`Contract`] determines for how long
//! they are used without the origin. Changes go to the origin before they are answered (write-through).
//!
//! - [`over`] creates a [`CacheExport`], an export over the origin's.
//! - Objects have numbers of this cache's own. These serve as nodes, inode numbers and handles, so that a
//!   node of a client stays valid when the cache or the origin restarts.
//! - All sessions share the cached state and one session of the origin. Each user sees only what the origin
//!   permits that user to see.
//! - A sidecar lists blocks of its directory's files that are zero, so that they are not fetched
//!   (`tombolo-wire-image`).
//! - One cache of a host can lend its data to others ([`CacheExport::share`], [`CacheExport::borrow_from`]).
//!
//! Non-goals: changes that are answered before the origin has them (`layer/write-back`); file locks.
//!
//! Reading order: `options`, `object` (the cached state of a file), `session` (the operations), `data` and
//! `fetcher` (fetching), `store` (the disk).
#![forbid(unsafe_code)]

mod backing;
mod cache;
mod clock;
mod counters;
mod data;
mod dedup;
mod fetcher;
mod files_ahead;
mod freshness;
mod granted;
mod images;
mod index_bound;
mod lease;
mod line;
mod names;
mod object;
mod objects;
mod openings;
mod options;
mod origin;
mod packs;
mod read_ahead;
mod recorder;
mod removals;
mod rights;
mod room;
mod rules;
mod session;
mod shared;
mod sharing;
pub mod store;
mod unkept;
mod unnamed;
mod walk;
mod walk_order;
mod written;

use std::fs::File;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tombolo_core::fs::{Client, Export, FileSystem, NodeId, Notice, PermissionCheck, Volume, Watchers};
use tombolo_core::{Ctx, Error, Result};
use tombolo_host_runtime::listener::ListenError;
use tombolo_host_runtime::pending::Pending;
use tombolo_host_runtime::rate_limit::RateLimit;
use tombolo_host_runtime::thread_pool::ThreadPool;

pub use counters::Counts;
pub use lease::{Claim, Holder, LEASE_NAME, LeaseError, LeaseState, Life, PERIOD as LEASE_PERIOD};
pub use options::{Contract, Options, Prefetch};
pub use rules::{Policy, Rule};
pub use sharing::{BorrowOptions, Connect};

use cache::Cache;
use lease::{Changed, Keeper};
use object::Object;
use origin::{Origin, SESSION};
use recorder::Recorder;
use session::{CachedFileSystem, Session};
use sharing::{Borrower, Lender, Middle};
use store::{ObjectId, Store};

/// An export over the origin's, whose sessions share one cache.
pub struct CacheExport {
    /// Lender of cached data; declared first, so that it stops before the cache.
    lender: Option<Lender>,
    cache: Arc<Cache>,
    /// Keeper of the lease file, and keeper of the lease that the origin's server grants, where used.
    keeper: Option<Keeper>,
    granted: Option<granted::Keeper>,
    _pool: ThreadPool,
}

/// Creates a cache over `origin`, which must have persistent handles. Blocks on the origin.
///
/// # Errors
/// Fails if a request to the origin fails, if the origin has no persistent handles, or if the system refuses
/// a thread; under [`Contract::Lease`] also if the origin refuses a lease, with [`Error::NotSupported`] if it
/// grants none to anyone.
pub fn over(origin: &dyn Export, store: Arc<Store>, policy: impl Into<Policy>) -> Result<CacheExport> {
    put_over(origin, store, policy.into(), None)
}

/// Creates a cache that reserves the origin's tree by a lease file ([`LEASE_NAME`]). While the lease is not
/// held, the contracts *exclusive* and *lease* are replaced by *close-to-open*.
///
/// # Errors
/// Fails as [`over`] does, or if the lease cannot be acquired and the claim does not allow to acquire it
/// later ([`Claim::may_come_later`]).
pub fn over_leased(
    origin: &dyn Export,
    store: Arc<Store>,
    policy: impl Into<Policy>,
    claim: Claim,
) -> std::result::Result<CacheExport, LeaseError> {
    let keeper = Keeper::take(origin, (store.name(), store.path()), claim)?;
    Ok(put_over(origin, store, policy.into(), Some(keeper))?)
}

fn put_over(
    origin: &dyn Export,
    store: Arc<Store>,
    policy: Policy,
    keeper: Option<Keeper>,
) -> Result<CacheExport> {
    let options = policy.default;
    let contract = options.contract;
    let client = Client { session: SESSION, label: "cache".into(), checks: PermissionCheck::BackEnd };
    let fs = origin.attach(&client)?;
    let cx = Ctx::root(SESSION);
    let handle = fs.persistent_handles().ok_or(Error::NotSupported)?.handle_of(&cx, NodeId::ROOT).wait()?;
    let asked = Instant::now();
    let attr = fs.getattr(&cx, NodeId::ROOT, None).wait()?;
    let pool = ThreadPool::new("cache", options.pool);
    let lane = pool.lane();
    let origin = Arc::new(Origin { fs, unasked: Pending::default() });
    let cache = Cache {
        objects: objects::Objects::new(&origin, store.memory_bytes()),
        origin,
        store,
        unheld_policy: policy.shared().into(),
        held_policy: policy.into(),
        lease: keeper.as_ref().map(|keeper| keeper.lease.clone()),
        counters: Arc::default(),
        lane,
        complaints: RateLimit::default(),
        room: room::Room::default(),
        clock: clock::Clock::new(options.wall_clock),
        line: line::Line::default(),
        walk: walk::Walk::default(),
        files_ahead: files_ahead::FilesAhead::default(),
        images: images::Images::default(),
        dedup: dedup::DedupIndex::default(),
        borrower: OnceLock::new(),
        middle: OnceLock::new(),
        recorder: OnceLock::new(),
        packs_nothing: AtomicBool::new(false),
        watchers: Watchers::default(),
        unnamed: unnamed::Unnamed::default(),
        index_bound: index_bound::IndexBound::default(),
    };
    let kept = cache.objects.object(&cache.store, ObjectId::ROOT);
    let kept = kept.filter(|root| root.handle == handle && root.learn(&attr, asked, contract));
    let root = kept.unwrap_or_else(|| {
        let root = Object::new(ObjectId::ROOT, handle, attr, &cache.objects.shared);
        root.learn(&attr, asked, contract);
        cache.objects.replace(Arc::new(root))
    });
    root.set_node(Some(NodeId::ROOT));
    cache.keep(&root);
    let is_leased = cache.held_policy.is_leased();
    let granted =
        is_leased.then(|| granted::Keeper::start(&cache.origin, &cache.objects.shared.term)).transpose()?;
    let cache = Arc::new(cache);
    // The capacity may be smaller than in an earlier process.
    cache.make_room();
    cache.look_for_unnamed();
    // The index is bounded before a session exists, as rows of objects that a session knows must stay.
    cache.bound_index();
    if let Some(lease) = &cache.lease {
        let told = Arc::downgrade(&cache);
        lease.on_change(move |change| {
            if let Some(cache) = told.upgrade() {
                if change == Changed::Beginning {
                    return cache.objects.doubt_all();
                }
                cache.watchers.tell(|session| session.notices.push(Notice::Everything));
            }
        });
    }
    Ok(CacheExport { lender: None, cache, keeper, granted, _pool: pool })
}

impl CacheExport {
    /// Waits until all cached state that is valid after a restart is written, or has failed to be.
    pub fn flush(&self) {
        self.cache.store.flush();
    }

    /// Lends cached data to caches of the same origin in other processes of this user or root. Data of a file
    /// are lent only on behalf of a user whom the origin permits to read it.
    ///
    /// # Errors
    /// Fails if no socket can be created in the cache directory, or the system refuses a thread or a
    /// descriptor.
    pub fn share(&mut self) -> std::result::Result<(), ListenError> {
        let volume = self.volume().map_err(|error| {
            let path = self.cache.store.path().to_owned();
            ListenError::Io { path, source: std::io::Error::other(error) }
        })?;
        let session = Arc::new(Session::new(&self.cache));
        self.lender = Some(Lender::start(self.cache.store.path(), session, volume)?);
        Ok(())
    }

    /// Reads data from the cache in `dir` from now on, as far as the owner of `dir` lends them, and otherwise
    /// from the origin. Later calls change nothing. Returns `true` if an owner is connected now.
    ///
    /// # Errors
    /// Fails if the system refuses a thread or a descriptor.
    pub fn borrow_from(&self, dir: &Path, options: BorrowOptions) -> Result<bool> {
        if self.cache.borrower.get().is_none() {
            let borrower = Borrower::start(dir, self.volume()?, options).map_err(Error::io)?;
            let _ = self.cache.borrower.set(borrower);
        }
        Ok(self.cache.borrower.get().is_some_and(Borrower::is_connected))
    }

    /// Requests data from an untrusted cache of the same origin from now on. The data are verified by the
    /// origin's digests; the origin is read if it has no digest for them, or if the cache does not answer or
    /// its data do not match. `name` is for the log. Waits up to `first_wait` for the first attempt to
    /// connect. Later calls change nothing.
    ///
    /// # Errors
    /// Fails if the origin provides no digests.
    pub fn take_data_from(&self, name: &str, connect: Connect, first_wait: Duration) -> Result<()> {
        self.cache.origin.fs.digests().ok_or(Error::NotSupported)?;
        let _ = self.cache.middle.set(Middle::new(name, connect, first_wait));
        Ok(())
    }

    /// Records reads from now on, in order and up to a limit: a line with offset, length and path for each
    /// read of a part of a file that was not recorded before. Later calls change nothing.
    pub fn record(&self, out: File) {
        let _ = self.cache.recorder.set(Recorder::new(out));
    }

    fn volume(&self) -> Result<Volume> {
        Ok(self.cache.origin.handles()?.volume())
    }

    /// Marks everything for revalidation at its next use; attributes under [`Contract::Immutable`] stay
    /// valid.
    pub fn invalidate(&self) {
        self.cache.objects.doubt_all();
    }

    /// Returns the counters since the start, and the state of the lease.
    pub fn counts(&self) -> Counts {
        let granted = self.granted.as_ref().map(|_| match self.cache.objects.shared.term.is_held() {
            true => LeaseState::Held,
            false => LeaseState::NotGranted,
        });
        let lease = self.cache.lease.as_ref().map(|lease| lease.state()).or(granted);
        let counts = self.cache.counters.read();
        let (equal_bytes, differing) = (self.cache.dedup.copied_bytes(), self.cache.dedup.refused_bytes());
        Counts { lease, equal_bytes, refused_bytes: counts.refused_bytes + differing, ..counts }
    }

    /// Returns `true` if the cache uses a lease file but does not hold the lease (lost, expired, or not
    /// acquired yet): others may change the tree.
    pub fn has_lost_lease(&self) -> bool {
        self.cache.is_unheld()
    }

    /// Returns the lease of either kind to the origin, if one is held: from now on others may change the
    /// tree.
    pub fn end_lease(&self) {
        if let Some(keeper) = &self.keeper {
            keeper.end();
        }
        if let Some(granted) = &self.granted {
            granted.end();
        }
    }
}

impl Export for CacheExport {
    fn attach(&self, _: &Client) -> Result<Arc<dyn FileSystem>> {
        Ok(Arc::new(CachedFileSystem::new(Session::new(&self.cache))))
    }
}
