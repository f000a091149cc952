//! The lease of a tree: a file in the root of the origin that says which cache has the tree for itself (*exclusive*).
//!
//! It binds those alone that look at it: other caches of ours, and people. It is renewed by setting its times, so that the origin's clock
//! tells its age; no clock of a client does.
//!
//! - A cache that cannot renew it believes itself to be the holder for [`HELD_PERIODS`], unless it is to last ([`Claim::lasts`]); others take
//!   it after [`STALE_PERIODS`].
//! - It is taken from another by a rename. Before it is relied on so much time goes by that the other has looked at it once more.
//! - One that is not this cache's any more is lost for good: what others changed meanwhile was not seen here.

mod file;
mod holder;

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use thiserror::Error as ThisError;
use tombolo_core::fs::{Export, PersistentHandle, Timestamp};
use tombolo_core::{Error, Identity, block_on};
use tombolo_host_runtime::rate_limit::RateLimit;
use tombolo_host_runtime::task;

use file::{Found, Root};
pub use holder::Holder;

/// The name of the lease file.
pub const LEASE_NAME: &str = ".tombolo-lease";

/// After so many periods without a renewal the holder believes in it no more.
const HELD_PERIODS: u32 = 6;

/// After so many others take it.
const STALE_PERIODS: u32 = 9;

/// So long, in tenths of a period, is waited after it was taken from another.
const SETTLE_TENTHS: u32 = 15;

/// A lease that comes and goes is tried for so often.
const TRIES_MAX: usize = 8;

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
    /// Whether it is taken from another that holds it.
    pub takes: bool,
    /// Whether it is relied on while it cannot be renewed, until another is seen to have taken it: where work goes on without the origin,
    /// and what others change meanwhile is found out before anything is written there.
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
    #[error("{holder} has it for itself, and said so {} s ago by the server's clock", age.as_secs())]
    Held {
        /// The other.
        holder: Holder,
        /// How long ago it was renewed.
        age: Duration,
    },
    /// The file cannot be made.
    #[error("{LEASE_NAME}, which keeps others from changing it, cannot be made there: {source}")]
    Unwritable {
        /// Why.
        #[source]
        source: Error,
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

/// A lease of this cache's.
pub(crate) struct Lease {
    root: Root,
    own: Holder,
    period: Duration,
    lasts: bool,
    handle: Mutex<PersistentHandle>,
    state: AtomicU8,
    /// The last renewal that went well was begun then.
    renewed: Mutex<Instant>,
    is_asking: AtomicBool,
    complaints: RateLimit,
    /// Called when it is not held any more, or again.
    changed: OnceLock<Box<dyn Fn() + Send + Sync>>,
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
    pub(crate) fn on_change(&self, changed: impl Fn() + Send + Sync + 'static) {
        let _ = self.changed.set(Box::new(changed));
    }

    /// Changes the state, unless it is lost. Whether it has changed.
    fn set(&self, to: u8) -> bool {
        let step = |state| (state != LOST && state != to).then_some(to);
        let has_changed = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, step).is_ok();
        if has_changed && let Some(changed) = self.changed.get() {
            changed();
        }
        has_changed
    }

    /// Renews it, if it still is this cache's.
    async fn renew(&self) {
        let began = Instant::now();
        match self.confirm(true).await {
            Ok(None) => {
                *lock(&self.renewed) = began;
                if began.elapsed() < self.period * HELD_PERIODS && self.set(HELD) {
                    tracing::warn!("{LEASE_NAME} is renewed: the contract is exclusive again");
                }
            }
            Ok(Some(taker)) => {
                if self.set(LOST) {
                    tracing::error!(
                        %taker,
                        "{LEASE_NAME} was taken by another or removed: from now on the contract is close-to-open, not exclusive"
                    );
                }
            }
            Err(error) => {
                if let Some(suppressed) = self.complaints.allow() {
                    tracing::warn!(%error, suppressed, "{LEASE_NAME} cannot be renewed");
                }
            }
        }
    }

    /// Looks whether the file is this cache's, and sets its times if that is wanted. If it is not, answers with what is known of the
    /// holder.
    async fn confirm(&self, renews: bool) -> Result<Option<Holder>, Error> {
        let Some(found) = self.root.find(LEASE_NAME.as_bytes()).await? else {
            return Ok(Some(Holder::default()));
        };
        // A server may begin to call the same file otherwise.
        if found.handle != *lock(&self.handle) {
            let holder = self.root.holder(&found).await?;
            if holder.id != self.own.id {
                return Ok(Some(holder));
            }
            *lock(&self.handle) = found.handle.clone();
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
            if is_old && !self.lasts && self.set(RUN_OUT) {
                tracing::error!(
                    "{LEASE_NAME} could not be renewed for long: until it is, the contract is close-to-open, not exclusive"
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
        let was_lost = self.state() == LeaseState::Lost;
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
    /// Takes the lease of a tree for the cache of this name, and goes on renewing it.
    pub(crate) fn take(origin: &dyn Export, id: String, claim: Claim) -> Result<Self, LeaseError> {
        let Claim { identity, host, process, since, takes, lasts, period } = claim;
        let (root, own) = (Root::of(origin, identity)?, Holder { host, process, since, id });
        let began = Instant::now();
        let taken = block_on(Taking { root: &root, own: &own, period }.take(takes))?;
        let lease = Arc::new(Lease {
            root,
            own,
            period,
            lasts,
            handle: Mutex::new(taken.handle),
            state: AtomicU8::new(HELD),
            renewed: Mutex::new(began),
            is_asking: AtomicBool::new(false),
            complaints: RateLimit::default(),
            changed: OnceLock::new(),
        });
        if taken.is_from_another {
            thread::sleep(period * SETTLE_TENTHS / 10);
            let began = Instant::now();
            if let Some(holder) = block_on(lease.confirm(true))? {
                return Err(LeaseError::Held { holder, age: Duration::ZERO });
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

/// Taking a lease.
struct Taking<'a> {
    root: &'a Root,
    own: &'a Holder,
    period: Duration,
}

/// A lease file that was made.
struct Taken {
    handle: PersistentHandle,
    is_from_another: bool,
}

impl Taking<'_> {
    async fn take(&self, takes: bool) -> Result<Taken, LeaseError> {
        let unwritable = |source| LeaseError::Unwritable { source };
        let (name, text) = (LEASE_NAME.as_bytes(), self.own.text(self.period));
        for _ in 0..TRIES_MAX {
            match self.root.make(name, &text).await {
                Ok(made) => return Ok(Taken { handle: made.handle.clone(), is_from_another: false }),
                Err(Error::Exists) => {}
                Err(error) => return Err(unwritable(error)),
            }
            let Some((found, holder)) = self.look().await? else { continue };
            // A file of its own tells what time it is there, and takes the place of the other's.
            let beside = format!("{LEASE_NAME}.{}", self.own.id);
            self.root.remove(beside.as_bytes()).await;
            let made = self.root.make(beside.as_bytes(), &text).await.map_err(unwritable)?;
            let now = self.root.touch(&made).await.map_err(unwritable)?.ctime;
            let (age, is_own) = (since(found.attr.ctime, now), holder.id == self.own.id);
            let is_stale = age >= self.period * STALE_PERIODS;
            if !is_own && !is_stale && !takes {
                self.root.remove(beside.as_bytes()).await;
                return Err(LeaseError::Held { holder, age });
            }
            if !is_own {
                tracing::warn!(%holder, age_s = age.as_secs(), is_stale, "takes {LEASE_NAME} from another");
            }
            self.root.replace(beside.as_bytes(), name).await.map_err(unwritable)?;
            return Ok(Taken { handle: made.handle.clone(), is_from_another: !is_own });
        }
        Err(LeaseError::Held { holder: Holder::default(), age: Duration::ZERO })
    }

    /// The lease file that is there, unless it has just gone.
    async fn look(&self) -> Result<Option<(Found<'_>, Holder)>, Error> {
        let Some(found) = self.root.find(LEASE_NAME.as_bytes()).await? else { return Ok(None) };
        match self.root.holder(&found).await {
            Ok(holder) => Ok(Some((found, holder))),
            Err(Error::Stale | Error::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// How long it is from one time of the origin's to another.
fn since(then: Timestamp, now: Timestamp) -> Duration {
    let nanos = |time: Timestamp| i128::from(time.secs) * 1_000_000_000 + i128::from(time.nanos);
    let nanos = u64::try_from((nanos(now) - nanos(then)).max(0)).unwrap_or(u64::MAX);
    Duration::from_nanos(nanos)
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
