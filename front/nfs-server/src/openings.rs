//! Files that are kept open between calls. NFS has no open; the waist reads and writes through openings.
//!
//! They are opened with the server's own rights, for all clients together: what a caller may do is checked
//! per call (`permission.rs`). One that took unstable writes is made stable before it is closed, because the
//! kernel tells of a failed write-back only through an open file. What was idle for a while is closed, so
//! that a removed file gives its space back.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use quick_cache::sync::Cache;
use tombolo_core::fs::{File, FileSystem, NodeId, OpenFlags, OpenId, SyncWhat};
use tombolo_core::{Answer, Ctx, Error, NO_ID, Result, SessionId};
use tombolo_host_runtime::task;

use crate::shared_sync::{self, SharedSync, Syncs};

/// The write verifier (RFC 1813 §3.3.7, §3.3.21). It changes at every start, and whenever data that was taken
/// but not yet stable could not be written. A client that sees it change sends its unstable data again.
#[derive(Debug)]
pub(crate) struct WriteVerifier(AtomicU64);

impl WriteVerifier {
    /// A verifier that no earlier run of a server has used: the time under a random key, for clocks are set
    /// back.
    pub fn new() -> Self {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(AtomicU64::new(RandomState::new().hash_one(since_1970)))
    }

    /// The present one.
    pub fn bytes(&self) -> [u8; 8] {
        self.0.load(Ordering::Acquire).to_be_bytes()
    }

    /// Data was lost.
    pub fn change(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

/// What an opening is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Use {
    /// Reading a file.
    Read,
    /// Reading and writing a file.
    Write,
    /// Listing a directory, or making it stable.
    Directory,
}

impl Use {
    const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Directory];
}

/// One opening, released when the last call that uses it has ended.
pub(crate) struct Opening {
    backing: Arc<Backing>,
    file: File,
    syncs: SharedSync,
    /// Took writes that were not made stable since.
    unsynced: AtomicBool,
    /// When it was last used, in seconds of the cache's clock.
    used_at_s: AtomicU32,
    /// The file's owner when it was last looked at: a hint.
    owner: AtomicU32,
}

/// What all openings of an export share.
struct Backing {
    file_system: Arc<dyn FileSystem>,
    session: SessionId,
    verifier: Arc<WriteVerifier>,
}

impl Opening {
    /// What to name it by in the waist.
    pub fn file(&self) -> File {
        self.file
    }

    /// The file's owner when it was last looked at.
    pub fn owner(&self) -> u32 {
        self.owner.load(Ordering::Relaxed)
    }

    /// The file has this owner.
    pub fn set_owner(&self, uid: u32) {
        self.owner.store(uid, Ordering::Relaxed);
    }

    /// It takes an unstable write now.
    pub fn set_unsynced(&self) {
        self.unsynced.store(true, Ordering::Release);
    }

    /// Makes the file stable. When that fails, unstable data may be lost, and the verifier says so from then
    /// on.
    pub async fn sync(self: &Arc<Self>) -> Result<()> {
        shared_sync::sync(self).await
    }
}

impl Syncs for Opening {
    fn shared(&self) -> &SharedSync {
        &self.syncs
    }

    async fn sync_now(&self) -> Result<()> {
        // Before the call: a write that comes meanwhile counts again.
        let unsynced = self.unsynced.swap(false, Ordering::AcqRel);
        let backing = &self.backing;
        // In a statement of its own: the context is not kept while it pends.
        let syncing = backing.file_system.fsync(&backing.ctx(), self.file, SyncWhat::All);
        let synced = syncing.resolve().await;
        match &synced {
            Ok(()) => {}
            Err(Error::Io { .. } | Error::NoSpace | Error::QuotaExceeded) => backing.lost(&synced),
            // Nothing was tried, and nothing is lost yet.
            Err(_) if unsynced => self.set_unsynced(),
            Err(_) => {}
        }
        synced
    }
}

impl Backing {
    /// Data may be lost that was taken as unstable, if this failed.
    fn lost(&self, synced: &Result<()>) {
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
            let synced = backing.file_system.fsync(&cx, file, SyncWhat::All).resolve().await;
            // Whatever it was: without an opening a failed write-back is not reported any more.
            backing.lost(&synced);
            backing.file_system.release(&cx, file);
        });
    }
}

/// The openings of an export.
pub(crate) struct Openings {
    backing: Arc<Backing>,
    cache: Cache<Key, Arc<Opening>>,
    started: Instant,
    /// How often some were evicted. Locked while they are.
    times_closed: Mutex<u64>,
}

type Key = (NodeId, Use);
type CachedOpening = (Key, Arc<Opening>);

/// How often a call evicts before it fails.
const ATTEMPTS: usize = 8;

impl Openings {
    /// At most `limit` openings are kept.
    pub fn new(
        file_system: Arc<dyn FileSystem>,
        session: SessionId,
        verifier: Arc<WriteVerifier>,
        limit: usize,
    ) -> Self {
        let backing = Arc::new(Backing { file_system, session, verifier });
        Self { backing, cache: Cache::new(limit), started: Instant::now(), times_closed: Mutex::default() }
    }

    /// An opening to read from.
    pub async fn for_reading(&self, node: NodeId) -> Result<Arc<Opening>> {
        match self.of_file(node) {
            Some(opening) => Ok(opening),
            None => self.open(node, Use::Read, OpenFlags::READ).await,
        }
    }

    /// An opening to write to.
    pub async fn for_writing(&self, node: NodeId) -> Result<Arc<Opening>> {
        match self.kept_for_writing(node) {
            Some(opening) => Ok(opening),
            None => self.open(node, Use::Write, OpenFlags::READ | OpenFlags::WRITE).await,
        }
    }

    /// An opening to write to that is kept.
    pub fn kept_for_writing(&self, node: NodeId) -> Option<Arc<Opening>> {
        self.at_hand(node, Use::Write)
    }

    /// An opening of a file that is kept, whatever it is for.
    pub fn of_file(&self, node: NodeId) -> Option<Arc<Opening>> {
        self.at_hand(node, Use::Write).or_else(|| self.at_hand(node, Use::Read))
    }

    /// An opening of a directory.
    pub async fn for_listing(&self, node: NodeId) -> Result<Arc<Opening>> {
        match self.at_hand(node, Use::Directory) {
            Some(opening) => Ok(opening),
            None => self.open(node, Use::Directory, OpenFlags::READ | OpenFlags::DIRECTORY).await,
        }
    }

    /// Keeps the opening for reading and writing that a create came with.
    pub fn enter_created(&self, node: NodeId, open: OpenId) {
        self.enter(node, Use::Write, open);
    }

    /// Closes what is kept of a node, unless some of it took unstable writes: then nothing is closed. True if
    /// it was closed.
    pub fn close_stable(&self, node: NodeId) -> bool {
        let is_stable = |opening: &Arc<Opening>| !opening.unsynced.load(Ordering::Acquire);
        let keys = Use::ALL.map(|kind| (node, kind));
        let all_stable = keys.iter().all(|key| self.cache.peek(key).is_none_or(|kept| is_stable(&kept)));
        if all_stable {
            keys.iter().for_each(|key| drop(self.cache.remove(key)));
        }
        all_stable
    }

    /// Closes what is kept of a node that has no name left; what was written to it need not be stable any
    /// more.
    pub fn discard(&self, node: NodeId) {
        for kind in Use::ALL {
            if let Some((_, opening)) = self.cache.remove(&(node, kind)) {
                opening.unsynced.store(false, Ordering::Release);
            }
        }
    }

    /// Whether any opening of the node is kept.
    pub fn holds(&self, node: NodeId) -> bool {
        Use::ALL.iter().any(|&kind| self.cache.peek(&(node, kind)).is_some())
    }

    /// Closes what was not used for `idle`.
    pub fn close_idle(&self, idle: Duration) {
        let now_s = self.now_s();
        let idle_s = u32::try_from(idle.as_secs()).unwrap_or(u32::MAX);
        let is_idle =
            |opening: &Opening| now_s.saturating_sub(opening.used_at_s.load(Ordering::Relaxed)) >= idle_s;
        let idle: Vec<_> = self.cache.iter().filter(|(_, opening)| is_idle(opening)).collect();
        // One by one: closing goes to the file system, so it happens outside of the cache's locks.
        for (key, opening) in idle {
            self.cache.remove_if(&key, |kept| Arc::ptr_eq(kept, &opening) && is_idle(kept));
        }
    }

    fn at_hand(&self, node: NodeId, kind: Use) -> Option<Arc<Opening>> {
        let opening = self.cache.get(&(node, kind))?;
        opening.used_at_s.store(self.now_s(), Ordering::Relaxed);
        Some(opening)
    }

    /// Does what opens a file. Where the session has as many open as it may, cached openings are evicted, and
    /// it is done again. Of calls that are refused together one evicts, and the others retry after that.
    pub async fn with_eviction<T>(&self, open: impl Fn() -> Answer<T>) -> Result<T> {
        for _ in 0..ATTEMPTS {
            let seen = *self.times_closed();
            match open().resolve().await {
                Err(Error::TooManyOpen) if self.evict(seen).await => {}
                outcome => return outcome,
            }
        }
        open().resolve().await
    }

    /// Closes some of what is kept, unless another call did since `seen`. False if there is nothing that can
    /// be closed.
    async fn evict(&self, seen: u64) -> bool {
        let Some(unsynced) = self.close_half(seen) else { return true };
        // One, since it has to be made stable first. A failure is told by the verifier.
        for (key, opening) in unsynced {
            let _ = opening.sync().await;
            if self.cache.remove_if(&key, |kept| Arc::ptr_eq(kept, &opening)).is_some() {
                return true;
            }
        }
        false
    }

    /// Closes half of what is kept, first what was not used for longest, but nothing that took unstable
    /// writes. That is returned if nothing else is there.
    fn close_half(&self, seen: u64) -> Option<Vec<CachedOpening>> {
        let mut times_closed = self.times_closed();
        if *times_closed != seen {
            return None;
        }
        let mut kept: Vec<_> = self.cache.iter().collect();
        kept.sort_by_key(|(_, opening)| {
            (opening.unsynced.load(Ordering::Acquire), opening.used_at_s.load(Ordering::Relaxed))
        });
        kept.truncate(kept.len().div_ceil(2));
        let (unsynced, stable): (Vec<_>, Vec<_>) =
            kept.into_iter().partition(|(_, opening)| opening.unsynced.load(Ordering::Acquire));
        let closed: Vec<_> = stable
            .iter()
            .filter_map(|(key, opening)| self.cache.remove_if(key, |kept| Arc::ptr_eq(kept, opening)))
            .collect();
        *times_closed += u64::from(!closed.is_empty());
        // What releasing wakes may come here again, on this thread.
        drop(times_closed);
        closed.is_empty().then_some(unsynced)
    }

    fn times_closed(&self) -> MutexGuard<'_, u64> {
        self.times_closed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn open(&self, node: NodeId, kind: Use, flags: OpenFlags) -> Result<Arc<Opening>> {
        let cx = self.backing.ctx();
        let opened = self.with_eviction(|| self.backing.file_system.open(&cx, node, flags)).await?;
        Ok(self.enter(node, kind, opened.open))
    }

    /// Of two calls that opened at once the later one's opening is kept; the other goes when its call has
    /// ended.
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
    use tombolo_core::fs::{Client, Export, Mode, Name, NewMode, PermissionCheck};

    use super::*;

    const SESSION: SessionId = SessionId(1);

    /// As many directories open.
    fn openings(count: usize) -> Openings {
        let client = Client { session: SESSION, label: "test".into(), checks: PermissionCheck::BackEnd };
        let file_system = Memory::default().attach(&client).expect("attach");
        let openings = Openings::new(file_system.clone(), SESSION, Arc::new(WriteVerifier::new()), 2 * count);
        for number in 0..count {
            let name = number.to_string();
            let name = Name::new(name.as_bytes()).expect("a name");
            let mode = NewMode::settled(Mode::new(0o755));
            let made = file_system.mkdir(&Ctx::root(SESSION), NodeId::ROOT, name, mode).wait();
            block_on(openings.for_listing(made.expect("mkdir").entry.node)).expect("open");
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

    /// Its file may have got another name meanwhile.
    #[test]
    fn what_took_unstable_writes_is_not_closed_as_stable() {
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
