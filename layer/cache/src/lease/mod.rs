//! The lease of a tree: a file in the root of the origin that names the cache with exclusive use of the tree.
//!
//! It binds only programs and people that read the file, such as other caches of this product. It is renewed
//! by setting its times, so its age is measured by the origin's clock and by no client's.
//!
//! - A cache that cannot renew its lease relies on it for [`HELD_PERIODS`], or indefinitely with
//!   [`Claim::lasts`]; others may take it over after [`STALE_PERIODS`], or at any time with [`Claim::takes`].
//! - It is taken over by a rename. The new holder relies on it only after a delay in which a living former
//!   holder notices the takeover.
//! - A lease taken by another is lost until this process ends: others' changes went unnoticed.

mod file;
mod holder;
mod life;
mod taking;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use thiserror::Error as ThisError;
use tombolo_core::fs::{Export, PersistentHandle};
use tombolo_core::{Error, Identity, block_on, lock};
use tombolo_host_runtime::rate_limit::RateLimit;
use tombolo_host_runtime::task;

use file::Root;
pub use holder::Holder;
pub use life::Life;
use taking::Taking;

/// Name of the lease file in the root of the tree.
pub const LEASE_NAME: &str = ".tombolo-lease";

/// Periods without a renewal after which the holder stops relying on the lease, by its own clock: fewer than
/// [`STALE_PERIODS`], which others measure by the origin's clock.
const HELD_PERIODS: u32 = 6;

/// Periods without a renewal after which others may take over the lease without [`Claim::takes`].
pub(super) const STALE_PERIODS: u32 = 9;

/// Delay after a takeover before the lease is relied on, in tenths of a period. A living former holder renews
/// within one period, and notices the takeover then.
const SETTLE_TENTHS: u32 = 15;

/// Maximum time that the end of a cache waits for the lease to be returned.
const RELEASE_MAX: Duration = Duration::from_secs(3);

/// A cache's request for a lease.
#[derive(Clone, Debug)]
pub struct Claim {
    /// User that creates the lease file.
    pub identity: Identity,
    /// Name of this host, shown to others.
    pub host: String,
    /// Number of this process, shown to others.
    pub process: String,
    /// Time of the claim, shown to others.
    pub since: String,
    /// Identification of this process's life.
    pub life: Life,
    /// `true` to take over a lease that another holder still renews.
    pub takes: bool,
    /// `true` if the cache starts even if the lease is free but its file cannot be created, for example
    /// because the origin is full; the contract is then *close-to-open* until the lease is acquired. For
    /// caches with pending changes for the origin.
    pub may_come_later: bool,
    /// `true` if the lease is relied on while it cannot be renewed, until another is seen to have taken it.
    /// For caches that work offline and detect others' changes before they write to the origin.
    pub lasts: bool,
    /// Interval of renewals, which must be the same for all caches of a tree.
    pub period: Duration,
}

/// Default interval of renewals.
pub const PERIOD: Duration = Duration::from_secs(10);

/// Failure to acquire a lease.
#[derive(Debug, ThisError)]
pub enum LeaseError {
    /// Another cache holds the lease.
    #[error("{holder} holds the lease of this tree, renewed {} s ago by the server's clock", age.as_secs())]
    Held {
        /// The present holder, as its lease file describes it.
        holder: Box<Holder>,
        /// Time since the holder's last renewal, by the origin's clock.
        age: Duration,
    },
    /// Another cache has just acquired the lease, or acquires and returns it repeatedly.
    #[error("{holder} has just taken over or removed the lease of this tree")]
    Overtaken {
        /// The present holder, as far as it is known.
        holder: Box<Holder>,
    },
    /// The lease file cannot be created, replaced or renewed.
    #[error("cannot write the lease file {LEASE_NAME} in the tree: {source}")]
    Unwritable {
        /// The origin's error.
        #[source]
        source: Error,
        /// `true` if certainly no other cache holds the lease.
        is_free: bool,
    },
    /// A request to the origin has failed, or the system refuses a thread.
    #[error(transparent)]
    Origin(#[from] Error),
}

/// State of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseState {
    /// Held by this cache.
    Held,
    /// Not acquired yet, or not renewed for so long that another may have taken it. It may still be held
    /// later.
    RunOut,
    /// Taken by another, removed, or returned.
    Lost,
    /// Not granted at present, of a lease that the origin's server grants.
    NotGranted,
}

/// A change of a lease, reported to the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Changed {
    /// The state has changed.
    State,
    /// The lease is about to be held: state learned before others were excluded must be revalidated.
    Beginning,
}

/// The lease that this cache has requested, and the state of its renewal.
pub(crate) struct Lease {
    root: Root,
    own: Holder,
    period: Duration,
    lasts: bool,
    /// Handle of the lease file; `None` until it was created.
    handle: Mutex<Option<PersistentHandle>>,
    /// [`HELD`], [`RUN_OUT`] or [`LOST`].
    state: AtomicU8,
    /// Start of the last successful renewal, or of the acquisition.
    renewed: Mutex<Instant>,
    /// `true` while a renewal is in progress.
    is_asking: AtomicBool,
    /// `true` if the lease file could not be created yet.
    is_missing: AtomicBool,
    /// Time of a takeover after the start. The lease is relied on once confirmed after
    /// [`Lease::settle_time`].
    settling: Mutex<Option<Instant>>,
    complaints: RateLimit,
    /// Function to call on changes of the state, and before the first acquisition by a cache that began
    /// without the lease.
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

    /// Calls `changed` on state changes from now on. Only the first function is used.
    pub(crate) fn on_change(&self, changed: impl Fn(Changed) + Send + Sync + 'static) {
        let _ = self.changed.set(Box::new(changed));
    }

    /// Changes the state, unless it is lost. Returns `true` if it has changed.
    fn set(&self, to: u8) -> bool {
        let step = |state| (state != LOST && state != to).then_some(to);
        let has_changed = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, step).is_ok();
        if has_changed && let Some(changed) = self.changed.get() {
            changed(Changed::State);
        }
        has_changed
    }

    /// Acquires the lease if its file could not be created yet. Otherwise updates the times of the lease
    /// file, or records the loss of the lease if the file is not this cache's any more.
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

    /// Acquires the lease that was unavailable at the start. A takeover is confirmed after a delay, as at the
    /// start.
    async fn take_late(&self) {
        let (began, settling) = (Instant::now(), *lock(&self.settling));
        if settling.is_some_and(|taken| taken.elapsed() < self.settle_time()) {
            return;
        }
        let taken = match settling {
            Some(_) => self.confirm(true).await.map_err(LeaseError::from).and_then(|taker| match taker {
                None => Ok(false),
                Some(holder) => Err(LeaseError::Overtaken { holder: holder.into() }),
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
            Err(LeaseError::Held { holder, .. } | LeaseError::Overtaken { holder }) => {
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

    /// Checks that the lease file is this cache's, and with `renews` sets its times. Returns `None` if it is
    /// this cache's, otherwise its holder, which is empty if the file is missing or was just replaced.
    async fn confirm(&self, renews: bool) -> Result<Option<Holder>, Error> {
        let Some(found) = self.root.find(LEASE_NAME.as_bytes()).await? else {
            return Ok(Some(Holder::default()));
        };
        // A file with another handle may still be this cache's, as servers may change handles.
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
                // Another cache has just replaced the lease file.
                Err(Error::Stale) => return Ok(Some(Holder::default())),
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Renews the lease until it is to be returned, then returns it unless it was lost; has its own thread.
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
        end.set_done();
    }
}

const HELD: u8 = 0;
const RUN_OUT: u8 = 1;
const LOST: u8 = 2;

/// A keeper of a lease. Dropping it returns the lease.
pub(crate) struct Keeper {
    pub lease: Arc<Lease>,
    end: Arc<End>,
}

impl Keeper {
    /// Acquires the lease of a tree for the cache with this id in this directory, and renews it from then on.
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
                return Err(LeaseError::Overtaken { holder: holder.into() });
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

    /// Returns the lease by removing its file; waits for at most [`RELEASE_MAX`].
    pub(crate) fn end(&self) {
        self.end.want();
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.end();
    }
}

/// End of the renewing thread: two flags, `true` if the end is requested and `true` if it is reached.
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

    fn set_done(&self) {
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
