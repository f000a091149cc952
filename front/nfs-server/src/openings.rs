//! Cache of open files: NFS has no open, the waist reads and writes through openings.
//!
//! Files are opened with the server's own rights, for all clients together; permissions are checked per call
//! (`permission.rs`). The kernel reports a failed write-back only through an open file; an opening with
//! unstable writes is therefore synced before it is closed, unless its file has been removed. Idle openings
//! are closed, so that the space of removed files is freed.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use quick_cache::sync::Cache;
use tombolo_core::fs::{File, FileSystem, NodeId, OpenFlags, OpenId, SyncScope};
use tombolo_core::{Answer, Ctx, Error, NO_ID, Result, SessionId, lock};
use tombolo_host_runtime::task;

use crate::shared_sync::{self, SharedSync, Syncs};

/// Write verifier (RFC 1813 §3.3.7, §3.3.21). It changes at every start, and whenever unstable data may have
/// been lost. A client that sees a change sends its unstable data again.
#[derive(Debug)]
pub(crate) struct WriteVerifier(AtomicU64);

impl WriteVerifier {
    /// Creates a verifier that no earlier run has used: the time, hashed with a random key, as clocks are set
    /// back.
    pub fn new() -> Self {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(AtomicU64::new(RandomState::new().hash_one(since_1970)))
    }

    /// Returns the current verifier as replies to WRITE and COMMIT contain it.
    pub fn bytes(&self) -> [u8; 8] {
        self.0.load(Ordering::Acquire).to_be_bytes()
    }

    /// Changes the verifier after unstable data were lost, so that clients send their unstable data again.
    pub fn change(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

/// Purpose of an opening.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Use {
    /// Reading a file.
    Read,
    /// Reading and writing a file.
    Write,
    /// Listing or syncing a directory.
    Directory,
}

impl Use {
    const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Directory];
}

/// An opening, released when its last user drops it.
pub(crate) struct Opening {
    backing: Arc<Backing>,
    file: File,
    syncs: SharedSync,
    /// `true` if unstable writes have not been synced.
    unsynced: AtomicBool,
    /// Time of the last use, in seconds of the cache's clock.
    used_at_s: AtomicU32,
    /// The file's owner when last checked. It may have changed since: the back end compares again.
    owner: AtomicU32,
}

/// State shared by all openings of an export.
struct Backing {
    file_system: Arc<dyn FileSystem>,
    session: SessionId,
    verifier: Arc<WriteVerifier>,
}

impl Opening {
    /// Returns node and opening as the waist's operations take them.
    pub fn file(&self) -> File {
        self.file
    }

    /// Returns the file's owner when last checked.
    pub fn owner(&self) -> u32 {
        self.owner.load(Ordering::Relaxed)
    }

    /// Records the file's owner, whose next writes need no separate check if the back end compares owners
    /// itself (`Profile::writes_by_owner`).
    pub fn set_owner(&self, uid: u32) {
        self.owner.store(uid, Ordering::Relaxed);
    }

    /// Records an unstable write, so that the file is synced before the opening is released.
    pub fn set_unsynced(&self) {
        self.unsynced.store(true, Ordering::Release);
    }

    /// Makes the file stable. The verifier changes at an error after which unstable data may be lost.
    pub async fn sync(self: &Arc<Self>) -> Result<()> {
        shared_sync::sync(self).await
    }
}

impl Syncs for Opening {
    fn shared(&self) -> &SharedSync {
        &self.syncs
    }

    async fn sync_now(&self) -> Result<()> {
        // Cleared before the call: a concurrent write sets the flag again.
        let unsynced = self.unsynced.swap(false, Ordering::AcqRel);
        let backing = &self.backing;
        // A separate statement, so that the context is not held while the call is pending.
        let syncing = backing.file_system.fsync(&backing.ctx(), self.file, SyncScope::All);
        let synced = syncing.resolve().await;
        match &synced {
            Ok(()) => {}
            Err(Error::Io { .. } | Error::NoSpace | Error::QuotaExceeded) => backing.data_lost(&synced),
            // The sync was not attempted, so nothing is lost.
            Err(_) if unsynced => self.set_unsynced(),
            Err(_) => {}
        }
        synced
    }
}

impl Backing {
    /// Changes the verifier if the sync failed, because unstable data may be lost.
    fn data_lost(&self, synced: &Result<()>) {
        if let Err(error) = synced {
            tracing::error!(%error, "sync failed: new write verifier, clients resend unstable writes");
            self.verifier.change();
        }
    }

    fn ctx(&self) -> Ctx {
        Ctx::root(self.session)
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        let (backing, file) = (self.backing.clone(), self.file);
        if !*self.unsynced.get_mut() {
            backing.file_system.release(&backing.ctx(), file);
            return;
        }
        task::spawn(async move {
            let cx = backing.ctx();
            let synced = backing.file_system.fsync(&cx, file, SyncScope::All).resolve().await;
            // After any error the data count as lost: without an opening no later failure is reported.
            backing.data_lost(&synced);
            backing.file_system.release(&cx, file);
        });
    }
}

/// The cached openings of an export.
pub(crate) struct Openings {
    backing: Arc<Backing>,
    cache: Cache<Key, Arc<Opening>>,
    started: Instant,
    /// Number of times that openings without unstable writes were evicted; locked while they are removed.
    evictions: Mutex<u64>,
}

type Key = (NodeId, Use);
type CachedOpening = (Key, Arc<Opening>);

/// Maximum number of evictions per call.
const ATTEMPTS: usize = 8;

impl Openings {
    /// Creates a cache of at most `limit` openings.
    pub fn new(
        file_system: Arc<dyn FileSystem>,
        session: SessionId,
        verifier: Arc<WriteVerifier>,
        limit: usize,
    ) -> Self {
        let backing = Arc::new(Backing { file_system, session, verifier });
        Self { backing, cache: Cache::new(limit), started: Instant::now(), evictions: Mutex::default() }
    }

    /// Returns an opening for reading: a cached one, possibly for writing too, or a new one.
    pub async fn for_reading(&self, node: NodeId) -> Result<Arc<Opening>> {
        match self.of_file(node) {
            Some(opening) => Ok(opening),
            None => self.open(node, Use::Read, OpenFlags::READ).await,
        }
    }

    /// Returns an opening for writing, cached or new.
    pub async fn for_writing(&self, node: NodeId) -> Result<Arc<Opening>> {
        match self.cached_for_writing(node) {
            Some(opening) => Ok(opening),
            None => self.open(node, Use::Write, OpenFlags::READ | OpenFlags::WRITE).await,
        }
    }

    /// Returns the cached opening for writing, if there is one.
    pub fn cached_for_writing(&self, node: NodeId) -> Option<Arc<Opening>> {
        self.cached(node, Use::Write)
    }

    /// Returns a cached opening of a file, for any purpose, if there is one.
    pub fn of_file(&self, node: NodeId) -> Option<Arc<Opening>> {
        self.cached(node, Use::Write).or_else(|| self.cached(node, Use::Read))
    }

    /// Returns an opening of a directory, cached or new.
    pub async fn for_listing(&self, node: NodeId) -> Result<Arc<Opening>> {
        match self.cached(node, Use::Directory) {
            Some(opening) => Ok(opening),
            None => self.open(node, Use::Directory, OpenFlags::READ | OpenFlags::DIRECTORY).await,
        }
    }

    /// Caches the opening returned by a create.
    pub fn enter_created(&self, node: NodeId, open: OpenId) {
        self.enter(node, Use::Write, open);
    }

    /// Closes the cached openings of a node, unless any has unstable writes: then returns `false`.
    pub fn close_stable(&self, node: NodeId) -> bool {
        let is_stable = |opening: &Arc<Opening>| !opening.unsynced.load(Ordering::Acquire);
        let keys = Use::ALL.map(|kind| (node, kind));
        let all_stable = keys.iter().all(|key| self.cache.peek(key).is_none_or(|cached| is_stable(&cached)));
        if all_stable {
            keys.iter().for_each(|key| drop(self.cache.remove(key)));
        }
        all_stable
    }

    /// Closes the cached openings of a node without a name; its data need not be made stable.
    pub fn discard(&self, node: NodeId) {
        for kind in Use::ALL {
            if let Some((_, opening)) = self.cache.remove(&(node, kind)) {
                opening.unsynced.store(false, Ordering::Release);
            }
        }
    }

    /// Returns `true` if an opening of the node is cached.
    pub fn holds(&self, node: NodeId) -> bool {
        Use::ALL.iter().any(|&kind| self.cache.peek(&(node, kind)).is_some())
    }

    /// Closes openings that were not used for `idle`.
    pub fn close_idle(&self, idle: Duration) {
        let now_s = self.now_s();
        let idle_s = u32::try_from(idle.as_secs()).unwrap_or(u32::MAX);
        let is_idle =
            |opening: &Opening| now_s.saturating_sub(opening.used_at_s.load(Ordering::Relaxed)) >= idle_s;
        let idle: Vec<_> = self.cache.iter().filter(|(_, opening)| is_idle(opening)).collect();
        // Closing calls the file system, so openings are removed one by one, outside of the cache's locks.
        for (key, opening) in idle {
            self.cache.remove_if(&key, |cached| Arc::ptr_eq(cached, &opening) && is_idle(cached));
        }
    }

    fn cached(&self, node: NodeId, kind: Use) -> Option<Arc<Opening>> {
        let opening = self.cache.get(&(node, kind))?;
        opening.used_at_s.store(self.now_s(), Ordering::Relaxed);
        Some(opening)
    }

    /// Opens or creates a file. If the session has too many open files, evicts cached openings and retries.
    /// Of calls refused concurrently one evicts, and the others retry after it.
    pub async fn with_eviction<T>(&self, open: impl Fn() -> Answer<T>) -> Result<T> {
        for _ in 0..ATTEMPTS {
            let evictions_before = *lock(&self.evictions);
            match open().resolve().await {
                Err(Error::TooManyOpen) if self.evict(evictions_before).await => {}
                outcome => return outcome,
            }
        }
        open().resolve().await
    }

    /// Evicts openings, unless a call has since `evictions_before`. Returns `false` if none can be closed.
    async fn evict(&self, evictions_before: u64) -> bool {
        let Some(unsynced) = self.close_half(evictions_before) else { return true };
        // Only one is closed, since it is synced first. If data may be lost, the sync changes the verifier.
        for (key, opening) in unsynced {
            let _ = opening.sync().await;
            if self.cache.remove_if(&key, |cached| Arc::ptr_eq(cached, &opening)).is_some() {
                return true;
            }
        }
        false
    }

    /// Closes openings without unstable writes, the least recently used first, up to half of all openings. If
    /// none could be closed, returns openings with unstable writes instead; otherwise, or if another call has
    /// evicted since `evictions_before`, returns `None`.
    fn close_half(&self, evictions_before: u64) -> Option<Vec<CachedOpening>> {
        let mut evictions = lock(&self.evictions);
        if *evictions != evictions_before {
            return None;
        }
        let mut cached: Vec<_> = self.cache.iter().collect();
        cached.sort_by_key(|(_, opening)| {
            (opening.unsynced.load(Ordering::Acquire), opening.used_at_s.load(Ordering::Relaxed))
        });
        cached.truncate(cached.len().div_ceil(2));
        let (unsynced, stable): (Vec<_>, Vec<_>) =
            cached.into_iter().partition(|(_, opening)| opening.unsynced.load(Ordering::Acquire));
        let closed: Vec<_> = stable
            .iter()
            .filter_map(|(key, opening)| self.cache.remove_if(key, |cached| Arc::ptr_eq(cached, opening)))
            .collect();
        *evictions += u64::from(!closed.is_empty());
        // Unlocked, because a release may wake a call that evicts openings on this thread.
        drop(evictions);
        closed.is_empty().then_some(unsynced)
    }

    async fn open(&self, node: NodeId, kind: Use, flags: OpenFlags) -> Result<Arc<Opening>> {
        let cx = self.backing.ctx();
        let opened = self.with_eviction(|| self.backing.file_system.open(&cx, node, flags)).await?;
        Ok(self.enter(node, kind, opened.open))
    }

    /// Caches an opening. Of two concurrent ones of a file the later is cached; the other ends with its call.
    fn enter(&self, node: NodeId, kind: Use, open: OpenId) -> Arc<Opening> {
        let opening = Arc::new(Opening {
            backing: self.backing.clone(),
            file: File { node, open },
            syncs: SharedSync::default(),
            unsynced: AtomicBool::new(false),
            used_at_s: AtomicU32::new(self.now_s()),
            owner: AtomicU32::new(NO_ID),
        });
        let earlier = self.cache.remove(&(node, kind));
        self.cache.insert((node, kind), opening.clone());
        drop(earlier);
        opening
    }

    fn now_s(&self) -> u32 {
        u32::try_from(self.started.elapsed().as_secs()).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    use tombolo_back_memory::Memory;
    use tombolo_core::block_on;
    use tombolo_test_support::Session;

    use super::*;

    /// Creates a cache with as many directories open.
    fn openings(count: usize) -> Openings {
        let session = Session::attach(&Memory::default());
        let Session { fs, cx, .. } = &session;
        let openings = Openings::new(fs.clone(), cx.session, Arc::new(WriteVerifier::new()), 2 * count);
        for number in 0..count {
            block_on(openings.for_listing(session.dir(&number.to_string()))).expect("open");
        }
        openings
    }

    #[test]
    fn calls_refused_together_evict_once() {
        const CALLS: usize = 16;
        let openings = openings(64);
        let (all, tries) = (Barrier::new(CALLS), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..CALLS {
                scope.spawn(|| {
                    let refused = AtomicBool::new(false);
                    let open = || {
                        tries.fetch_add(1, Ordering::Relaxed);
                        if refused.swap(true, Ordering::Relaxed) {
                            return Answer::ok(());
                        }
                        all.wait();
                        Answer::err(Error::TooManyOpen)
                    };
                    block_on(openings.with_eviction(open)).expect("room");
                });
            }
        });
        assert_eq!(openings.cache.len(), 32, "one of them closed half");
        assert_eq!(tries.into_inner(), 2 * CALLS);
    }

    /// Covers a file that may have a new name by now.
    #[test]
    fn opening_with_unstable_writes_is_not_closed() {
        let openings = openings(1);
        let node = openings.cache.iter().map(|((node, _), _)| node).next().expect("one");
        let opening = block_on(openings.for_listing(node)).expect("kept");
        opening.set_unsynced();
        assert!(!openings.close_stable(node) && openings.holds(node));
        block_on(opening.sync()).expect("sync");
        assert!(openings.close_stable(node) && !openings.holds(node));
    }

    #[test]
    fn a_call_that_cannot_evict_fails_soon() {
        let (openings, tries) = (openings(64), AtomicUsize::new(0));
        let open = || {
            tries.fetch_add(1, Ordering::Relaxed);
            Answer::<()>::err(Error::TooManyOpen)
        };
        assert!(matches!(block_on(openings.with_eviction(open)), Err(Error::TooManyOpen)));
        assert!(tries.into_inner() <= ATTEMPTS + 1);
    }

    #[test]
    fn every_start_and_every_loss_makes_another_verifier() {
        let first = WriteVerifier::new();
        let before = first.bytes();
        assert_eq!(before, first.bytes());
        first.change();
        assert_ne!(before, first.bytes());
        assert_ne!(before, WriteVerifier::new().bytes());
    }
}
