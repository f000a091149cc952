//! A cache on disk over a file system that is far away.
//!
//! What was looked at once is here: names, attributes, links and rights in memory and in a database, the data
//! of each file in a sparse file of its own beneath the cache directory. How long it is believed a
//! [`Contract`] says. Changes go to the origin before they are answered (write-through).
//!
//! - [`CacheExport`] is an export over the origin's, by [`over`].
//! - Objects have numbers of this cache's own. They are its nodes, its inode numbers and its handles, so they
//!   outlive restarts of either side.
//! - All sessions share what is here, and one session of the origin. Each user sees what the origin lets that
//!   user see.
//!
//! - A sidecar beside a large file says what of it is zeroes: that is not fetched (`tombolo-wire-image`).
//! - One cache of a host lends what it has to others ([`CacheExport::share`], [`CacheExport::borrow_from`]).
//!
//! Not here: changes that are answered before the origin has them, locks (they are the origin's, where it has
//! any).
//!
//! Reading order: `options`, `object` (what is known of a file), `session` (the operations), `data` (how data
//! come), `store` (the disk).
#![forbid(unsafe_code)]

mod backing;
mod cache;
mod clock;
mod counters;
mod data;
mod files_ahead;
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
mod twins;
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

/// An export that is cached.
pub struct CacheExport {
    /// Stops before the cache ends.
    lender: Option<Lender>,
    cache: Arc<Cache>,
    keeper: Option<Keeper>,
    granted: Option<granted::Keeper>,
    _pool: ThreadPool,
}

/// A cache over `origin`, which must have handles that outlive restarts. Asks the origin for its root, and
/// waits for it.
///
/// # Errors
/// The origin does not answer, or has no such handles; [`Error::NotSupported`], it grants no leases
/// ([`Contract::Lease`]).
pub fn over(origin: &dyn Export, store: Arc<Store>, policy: impl Into<Policy>) -> Result<CacheExport> {
    put_over(origin, store, policy.into(), None)
}

/// The same, with a lease of the origin's tree. While that is not held, what should be exclusive is
/// close-to-open.
///
/// # Errors
/// As [`over`], or there is no lease to be had.
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
        unheld_policy: policy.shared(),
        held_policy: policy,
        lease: keeper.as_ref().map(|keeper| keeper.lease.clone()),
        counters: counters::Counters::default(),
        lane,
        complaints: RateLimit::default(),
        room: room::Room::default(),
        clock: clock::Clock::new(options.wall_clock),
        line: line::Line::default(),
        walk: walk::Walk::default(),
        files_ahead: files_ahead::FilesAhead::default(),
        images: images::Images::default(),
        twins: twins::Twins::default(),
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
    // There may be less than there was in an earlier life.
    cache.make_room();
    cache.look_for_unnamed();
    // Before any session has nodes.
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
    /// Waits until what is known so far would survive the end of this process.
    pub fn flush(&self) {
        self.cache.store.flush();
    }

    /// Lends what is here to caches of the same origin that other processes of this user have: to their users
    /// whom the origin lets read it.
    ///
    /// # Errors
    /// There is no socket in the directory of the cache.
    pub fn share(&mut self) -> std::result::Result<(), ListenError> {
        let volume = self.volume().map_err(|error| {
            let path = self.cache.store.path().to_owned();
            ListenError::Io { path, source: std::io::Error::other(error) }
        })?;
        let session = Arc::new(Session::new(&self.cache));
        self.lender = Some(Lender::start(self.cache.store.path(), session, volume)?);
        Ok(())
    }

    /// From now on has data read where the cache in this directory has them, whenever its owner lends them,
    /// and else at the origin. Whether there is an owner that lends now.
    ///
    /// # Errors
    /// The system refuses a thread or a descriptor.
    pub fn borrow_from(&self, dir: &Path, options: BorrowOptions) -> Result<bool> {
        if self.cache.borrower.get().is_none() {
            let borrower = Borrower::start(dir, self.volume()?, options).map_err(Error::io)?;
            let _ = self.cache.borrower.set(borrower);
        }
        Ok(self.cache.borrower.get().is_some_and(Borrower::is_connected))
    }

    /// From now on asks a cache of the same origin for data, which need not be trusted: what it says is
    /// compared with digests from the origin, which is read where there is none, or no answer, or another
    /// than there should be. `name` is for the log. For the first connection it waits so long at most.
    ///
    /// # Errors
    /// The origin gives no digests.
    pub fn take_data_from(&self, name: &str, connect: Connect, first_wait: Duration) -> Result<()> {
        self.cache.origin.fs.digests().ok_or(Error::NotSupported)?;
        let _ = self.cache.middle.set(Middle::new(name, connect, first_wait));
        Ok(())
    }

    /// From now on writes down what is read of which file, in order: a line for each part when it is first
    /// read, with offset, length and path.
    pub fn record(&self, out: File) {
        let _ = self.cache.recorder.set(Recorder::new(out));
    }

    fn volume(&self) -> Result<Volume> {
        Ok(self.cache.origin.handles()?.volume())
    }

    /// Asks the origin anew for everything that is looked at from now on.
    pub fn invalidate(&self) {
        self.cache.objects.doubt_all();
    }

    /// What it has come to so far.
    pub fn counts(&self) -> Counts {
        let granted = self.granted.as_ref().map(|_| match self.cache.objects.shared.term.is_held() {
            true => LeaseState::Held,
            false => LeaseState::NotGranted,
        });
        let lease = self.cache.lease.as_ref().map(|lease| lease.state()).or(granted);
        let counts = self.cache.counters.counts();
        let (equal_bytes, differing) = (self.cache.twins.copied_bytes(), self.cache.twins.refused_bytes());
        Counts { lease, equal_bytes, refused_bytes: counts.refused_bytes + differing, ..counts }
    }

    /// Whether it has a lease of the tree that it has lost, or could not renew: others may change the tree.
    pub fn has_lost_lease(&self) -> bool {
        self.cache.is_unheld()
    }

    /// Gives the lease back, if there is one: from now on others may change the tree.
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
