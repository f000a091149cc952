//! The lease of a tree: a file in the root of the origin that says which cache has the tree for itself
//! (*exclusive*).
//!
//! It binds those alone that look at it: other caches of ours, and people. It is renewed by setting its
//! times, so that the origin's clock tells its age; no clock of a client does.
//!
//! - A cache that cannot renew it believes itself to be the holder for [`HELD_PERIODS`], unless it is to last
//!   ([`Claim::lasts`]); others take it after [`STALE_PERIODS`].
//! - It is taken from another by a rename. Before it is relied on so much time goes by that the other has
//!   looked at it once more.
//! - One that is not this cache's any more is lost for good: what others changed meanwhile was not seen here.

mod file;
mod holder;
mod life;
mod taking;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use thiserror::Error as ThisError;
use tombolo_core::fs::{Export, PersistentHandle};
use tombolo_core::{Error, Identity, block_on};
use tombolo_host_runtime::rate_limit::RateLimit;
use tombolo_host_runtime::task;

use file::Root;
pub use holder::Holder;
pub use life::Life;
use taking::Taking;

/// The name of the lease file.
pub const LEASE_NAME: &str = ".tombolo-lease";

/// After so many periods without a renewal the holder believes in it no more.
const HELD_PERIODS: u32 = 6;

/// After so many others take it.
pub(super) const STALE_PERIODS: u32 = 9;

/// So long, in tenths of a period, is waited after it was taken from another.
const SETTLE_TENTHS: u32 = 15;

/// The end of a cache waits so long for its lease to be given back.
const RELEASE_MAX: Duration = Duration::from_secs(3);

/// What a cache wants a lease for.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The user that the file is made by.
    pub identity: Identity,
    /// This host and process, and the time, as others are to see them.
    pub host: String,
    /// The number of this process.
    pub process: String,
    /// The time now.
    pub since: String,
    /// Where and when this process runs.
    pub life: Life,
    /// Whether it is taken from another that holds it.
    pub takes: bool,
    /// Whether a cache begins without it where no other has it and it cannot be made now, as the origin is
    /// full: it is *close-to-open* until it can. For caches over which changes wait that have to get there.
    pub may_come_later: bool,
    /// Whether it is relied on while it cannot be renewed, until another is seen to have taken it: where work
    /// goes on without the origin, and what others change meanwhile is found out before anything is written
    /// there.
    pub lasts: bool,
    /// How often it is renewed. The same for all caches.
    pub period: Duration,
}

/// How often a lease is renewed.
pub const PERIOD: Duration = Duration::from_secs(10);

/// Why there is no lease.
#[derive(Debug, ThisError)]
pub enum LeaseError {
    /// Another has it.
    #[error("{holder} holds the lease of this tree, renewed {} s ago by the server's clock", age.as_secs())]
    Held {
        /// The other.
        holder: Box<Holder>,
        /// How long ago it was renewed.
        age: Duration,
    },
    /// The file cannot be made.
    #[error("cannot create the lease file {LEASE_NAME} in the tree: {source}")]
    Unwritable {
        /// Why.
        #[source]
        source: Error,
        /// No other has it.
        is_free: bool,
    },
    /// The origin does not do what it is asked for.
    #[error(transparent)]
    Origin(#[from] Error),
}

/// How a lease stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseState {
    /// It is this cache's.
    Held,
    /// It was not renewed for so long that another may have taken it. It may be held again.
    RunOut,
    /// Another has taken it, or it was given back.
    Lost,
    /// It is one that the origin's server grants, and has not granted now.
    NotGranted,
}

/// A change of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Changed {
    /// It is held or not, as its state says.
    State,
    /// It is about to be held: what was learnt before others were kept away is to be asked for anew.
    Beginning,
}

/// A lease of this cache's.
pub(crate) struct Lease {
    root: Root,
    own: Holder,
    period: Duration,
    lasts: bool,
    handle: Mutex<Option<PersistentHandle>>,
    state: AtomicU8,
    /// The last renewal that went well was begun then.
    renewed: Mutex<Instant>,
    is_asking: AtomicBool,
    /// It could not be made yet.
    is_missing: AtomicBool,
    /// When it was taken late from another: it is relied on once it was found again later.
    settling: Mutex<Option<Instant>>,
    complaints: RateLimit,
    /// Called when it is not held any more, or again; and before it is held for the first time, where the
    /// cache began without it.
    changed: OnceLock<Box<dyn Fn(Changed) + Send + Sync>>,
}

impl Lease {
    pub(crate) fn is_held(&self) -> bool {
        self.state() == LeaseState::Held
    }

    pub(crate) fn state(&self) -> LeaseState {
        match self.state.load(Ordering::Acquire) {
            HELD => LeaseState::Held,
            RUN_OUT => LeaseState::RunOut,
            _ => LeaseState::Lost,
        }
    }

    /// Has this called when the state changes from now on.
    pub(crate) fn on_change(&self, changed: impl Fn(Changed) + Send + Sync + 'static) {
        let _ = self.changed.set(Box::new(changed));
    }

    /// Changes the state, unless it is lost. Whether it has changed.
    fn set(&self, to: u8) -> bool {
        let step = |state| (state != LOST && state != to).then_some(to);
        let has_changed = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, step).is_ok();
        if has_changed && let Some(changed) = self.changed.get() {
            changed(Changed::State);
        }
        has_changed
    }

    /// Renews it, if it still is this cache's.
    async fn renew(&self) {
        if self.is_missing.load(Ordering::Acquire) {
            return self.take_late().await;
        }
        let began = Instant::now();
        match self.confirm(true).await {
            Ok(None) => {
                *lock(&self.renewed) = began;
                if began.elapsed() < self.period * HELD_PERIODS && self.set(HELD) {
                    tracing::warn!("{LEASE_NAME} renewed: the contract is exclusive again");
                }
            }
            Ok(Some(taker)) => {
                if self.set(LOST) {
                    tracing::error!(
                        %taker,
                        "{LEASE_NAME} was removed or taken over: the contract is close-to-open from now on, not exclusive"
                    );
                }
            }
            Err(error) => {
                if let Some(suppressed) = self.complaints.allow() {
                    tracing::warn!(%error, suppressed, "cannot renew {LEASE_NAME}");
                }
            }
        }
    }

    /// Takes it, which could not be done at the start. One that was taken from another is confirmed once
    /// more, as at the start.
    async fn take_late(&self) {
        let (began, settling) = (Instant::now(), *lock(&self.settling));
        if settling.is_some_and(|taken| taken.elapsed() < self.settle_time()) {
            return;
        }
        let taken = match settling {
            Some(_) => self.confirm(true).await.map_err(LeaseError::from).and_then(|taker| match taker {
                None => Ok(false),
                Some(holder) => Err(LeaseError::Held { holder: holder.into(), age: Duration::ZERO }),
            }),
            None => {
                let taking = Taking { root: &self.root, own: &self.own, period: self.period, takes: false };
                taking.take().await.map(|taken| {
                    *lock(&self.handle) = Some(taken.handle);
                    taken.is_from_another
                })
            }
        };
        match taken {
            Ok(true) => *lock(&self.settling) = Some(Instant::now()),
            Ok(false) => {
                *lock(&self.renewed) = began;
                if let Some(changed) = self.changed.get() {
                    changed(Changed::Beginning);
                }
                self.is_missing.store(false, Ordering::Release);
                if self.set(HELD) {
                    tracing::warn!("{LEASE_NAME} acquired: the contract is exclusive");
                }
            }
            Err(LeaseError::Held { holder, .. }) => {
                if self.set(LOST) {
                    tracing::error!(%holder, "another proxy holds {LEASE_NAME}: the contract stays close-to-open");
                }
            }
            Err(error) => {
                if let Some(suppressed) = self.complaints.allow() {
                    tracing::warn!(%error, suppressed, "cannot acquire the lease yet; will be retried");
                }
            }
        }
    }

    /// Returns the time after which a lease that was taken from another is confirmed.
    fn settle_time(&self) -> Duration {
        self.period * SETTLE_TENTHS / 10
    }

    /// Looks whether the file is this cache's, and sets its times if that is wanted. If it is not, answers
    /// with what is known of the holder.
    async fn confirm(&self, renews: bool) -> Result<Option<Holder>, Error> {
        let Some(found) = self.root.find(LEASE_NAME.as_bytes()).await? else {
            return Ok(Some(Holder::default()));
        };
        // A server may begin to call the same file otherwise.
        if lock(&self.handle).as_ref() != Some(&found.handle) {
            let holder = self.root.holder(&found).await?;
            if !holder.is_same(&self.own) {
                return Ok(Some(holder));
            }
            *lock(&self.handle) = Some(found.handle.clone());
        }
        if renews {
            match self.root.touch(&found).await {
                Ok(_) => {}
                // Another has just put its own in its place.
                Err(Error::Stale) => return Ok(Some(Holder::default())),
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// The thread that keeps it, until it is to be given back.
    fn keep(self: &Arc<Self>, end: &End) {
        while !end.is_wanted_within(self.period) {
            let is_old = lock(&self.renewed).elapsed() > self.period * HELD_PERIODS;
            let is_missing = self.is_missing.load(Ordering::Acquire);
            if is_old && !is_missing && !self.lasts && self.set(RUN_OUT) {
                tracing::error!(
                    "{LEASE_NAME} has expired without renewal: the contract is close-to-open until it is renewed, not exclusive"
                );
            }
            let is_over = self.state() == LeaseState::Lost;
            if !is_over && !self.is_asking.swap(true, Ordering::AcqRel) {
                let lease = self.clone();
                task::spawn(async move {
                    lease.renew().await;
                    lease.is_asking.store(false, Ordering::Release);
                });
            }
        }
        let was_made = !self.is_missing.load(Ordering::Acquire) || lock(&self.settling).is_some();
        let was_lost = self.state() == LeaseState::Lost || !was_made;
        self.set(LOST);
        if !was_lost && matches!(block_on(self.confirm(false)), Ok(None)) {
            block_on(self.root.remove(LEASE_NAME.as_bytes()));
        }
        end.is_done();
    }
}

const HELD: u8 = 0;
const RUN_OUT: u8 = 1;
const LOST: u8 = 2;

/// Keeps a lease. When this is dropped it is given back.
pub(crate) struct Keeper {
    pub lease: Arc<Lease>,
    end: Arc<End>,
}

impl Keeper {
    /// Takes the lease of a tree for the cache of this name in this directory, and goes on renewing it.
    pub(crate) fn take(
        origin: &dyn Export,
        (id, dir): (String, &Path),
        claim: Claim,
    ) -> Result<Self, LeaseError> {
        let Claim { identity, host, process, since, life, takes, may_come_later, lasts, period } = claim;
        let own = Holder { host, process, since, id, life: Box::new(life.at(dir)) };
        let root = Root::of(origin, identity)?;
        let began = Instant::now();
        let taken = match block_on(Taking { root: &root, own: &own, period, takes }.take()) {
            Err(LeaseError::Unwritable { source, is_free: true }) if may_come_later => {
                tracing::warn!(
                    error = %source,
                    "cannot create {LEASE_NAME} yet: the contract is close-to-open until then, and pending changes are sent to the origin"
                );
                None
            }
            taken => Some(taken?),
        };
        let (is_missing, is_from_another) =
            (taken.is_none(), taken.as_ref().is_some_and(|taken| taken.is_from_another));
        let lease = Arc::new(Lease {
            root,
            own,
            period,
            lasts,
            handle: Mutex::new(taken.map(|taken| taken.handle)),
            state: AtomicU8::new(if is_missing { RUN_OUT } else { HELD }),
            renewed: Mutex::new(began),
            is_asking: AtomicBool::new(false),
            is_missing: AtomicBool::new(is_missing),
            settling: Mutex::default(),
            complaints: RateLimit::default(),
            changed: OnceLock::new(),
        });
        if is_from_another {
            thread::sleep(lease.settle_time());
            let began = Instant::now();
            if let Some(holder) = block_on(lease.confirm(true))? {
                return Err(LeaseError::Held { holder: holder.into(), age: Duration::ZERO });
            }
            *lock(&lease.renewed) = began;
        }
        let end = Arc::new(End::default());
        let (kept, ending) = (lease.clone(), end.clone());
        thread::Builder::new()
            .name("lease".into())
            .spawn(move || kept.keep(&ending))
            .map_err(|error| LeaseError::Origin(Error::io(error)))?;
        Ok(Self { lease, end })
    }

    /// Gives it back, and waits for that for a while.
    pub(crate) fn end(&self) {
        self.end.want();
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.end();
    }
}

/// The end of a thread: wanted, and come.
#[derive(Default)]
struct End {
    state: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl End {
    fn is_wanted_within(&self, time: Duration) -> bool {
        let state = lock(&self.state);
        let (state, _) = self
            .changed
            .wait_timeout_while(state, time, |(is_wanted, _)| !*is_wanted)
            .unwrap_or_else(PoisonError::into_inner);
        state.0
    }

    fn is_done(&self) {
        lock(&self.state).1 = true;
        self.changed.notify_all();
    }

    fn want(&self) {
        let mut state = lock(&self.state);
        state.0 = true;
        self.changed.notify_all();
        drop(self.changed.wait_timeout_while(state, RELEASE_MAX, |(_, is_done)| !*is_done));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
