//! A lease of the tree granted by the origin's server, which recalls it before any other client changes
//! something ([`Contract::Lease`]).
//!
//! While the lease is held, state fetched since the grant is current. The cache counts the term from its own
//! request, so earlier than the server does, and leaves the last fraction unused, as the clocks may differ.
//!
//! [`Contract::Lease`]: crate::Contract::Lease

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tombolo_core::fs::{LEASE_TERM, LeaseAnswer, LeaseRequest};
use tombolo_core::{Error, Result, block_on, lock};
use tombolo_host_runtime::rate_limit::RateLimit;
use tombolo_host_runtime::task;
use tombolo_sys::boot_time;

use crate::origin::Origin;

/// Divisor of a term that gives its unused fraction, for clocks that differ in rate.
const MARGIN_PART: u32 = 20;

/// Pause after a failed request.
const PAUSE: Duration = Duration::from_secs(1);

/// Maximum time that the end of a cache waits for the return of its lease.
const GIVE_BACK_MAX: Duration = Duration::from_secs(3);

/// Validity of the current lease, if any.
#[derive(Debug)]
pub(crate) struct Term {
    /// Time from which `since_ns` and `lost_ns` are counted.
    began: Instant,
    /// Time of the grant: state requested before is not covered.
    since_ns: AtomicU64,
    /// End of the term by the clock that includes suspend (CLOCK_BOOTTIME); 0 without a lease.
    until_ns: AtomicU64,
    /// Time of the last loss of a lease.
    lost_ns: AtomicU64,
}

impl Default for Term {
    fn default() -> Self {
        let [since_ns, until_ns, lost_ns] = [0, 0, 0].map(AtomicU64::new);
        Self { began: Instant::now(), since_ns, until_ns, lost_ns }
    }
}

impl Term {
    /// Returns `true` if a lease is held that was granted before `asked`, so no other client has changed
    /// anything since.
    pub(crate) fn covers(&self, asked: Instant) -> bool {
        // `until_ns` is read first, because a grant stores `since_ns` before it.
        let until_ns = self.until_ns.load(Ordering::Acquire);
        until_ns > boot_time_ns() && self.ns(asked) >= self.since_ns.load(Ordering::Relaxed)
    }

    /// Returns `true` if a lease was lost after `asked`, so the change that caused its recall may have
    /// followed.
    pub(crate) fn was_lost_since(&self, asked: Instant) -> bool {
        self.ns(asked) < self.lost_ns.load(Ordering::Relaxed)
    }

    pub(crate) fn is_held(&self) -> bool {
        self.until_ns.load(Ordering::Relaxed) > boot_time_ns()
    }

    /// Starts the term of a new lease.
    fn begins(&self, until_ns: u64) {
        self.since_ns.store(self.ns(Instant::now()), Ordering::Relaxed);
        self.goes_on(until_ns);
    }

    /// Updates the end of the term of the lease that is held.
    fn goes_on(&self, until_ns: u64) {
        self.until_ns.store(until_ns, Ordering::Release);
    }

    fn ends(&self) {
        self.until_ns.store(0, Ordering::Release);
        self.lost_ns.store(self.ns(Instant::now()), Ordering::Relaxed);
    }

    fn ns(&self, time: Instant) -> u64 {
        saturated_ns(time.saturating_duration_since(self.began))
    }
}

fn boot_time_ns() -> u64 {
    saturated_ns(boot_time::now())
}

fn saturated_ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A keeper of a lease, which requests and prolongs it. Dropping it returns the lease.
pub(crate) struct Keeper {
    kept: Arc<Kept>,
}

/// State shared by the keeper and its thread.
struct Kept {
    origin: Arc<Origin>,
    term: Arc<Term>,
    end: Mutex<End>,
    changed: Condvar,
    complaints: RateLimit,
}

/// Progress of the keeper's end, and the lease that must be returned then.
#[derive(Default)]
struct End {
    is_wanted: bool,
    is_done: bool,
    /// Epoch of the lease that is held; `None` if none is.
    held: Option<u64>,
}

impl Keeper {
    /// Requests a lease and waits for the answer, then starts a thread that renews or requests it.
    ///
    /// # Errors
    /// [`Error::NotSupported`]: the origin grants no leases. [`Error::NotPermitted`],
    /// [`Error::AccessDenied`]: the origin grants none to this client, or to this user. [`Error::Io`]: the
    /// system refuses a thread.
    pub(crate) fn start(origin: &Arc<Origin>, term: &Arc<Term>) -> Result<Self> {
        let (origin, term) = (origin.clone(), term.clone());
        let kept = Kept {
            origin,
            term,
            end: Mutex::default(),
            changed: Condvar::new(),
            complaints: RateLimit::default(),
        };
        let kept = Arc::new(kept);
        let pause = match kept.ask(None) {
            Err(error) if is_refusal(&error) => return Err(error),
            asked => kept.take_in(None, asked),
        };
        let keeping = kept.clone();
        let keep = move || keeping.keep(pause);
        if let Err(error) = thread::Builder::new().name("lease".into()).spawn(keep) {
            let held = lock(&kept.end).held;
            if let Some(epoch) = held {
                block_on(kept.give_back(epoch));
            }
            return Err(Error::io(error));
        }
        Ok(Self { kept })
    }

    /// Returns the lease to the server, waiting for a limited time.
    pub(crate) fn end(&self) {
        let kept = &self.kept;
        let held = {
            let mut end = lock(&kept.end);
            end.is_wanted = true;
            end.held
        };
        kept.changed.notify_all();
        // A task returns the lease: the keeper's thread may wait for a renewal, which the return completes.
        if let Some(epoch) = held {
            let kept = kept.clone();
            task::spawn(async move { kept.give_back(epoch).await });
        }
        let end = lock(&kept.end);
        drop(kept.changed.wait_timeout_while(end, GIVE_BACK_MAX, |end| !end.is_done));
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.end();
    }
}

/// The server's answer, and the end of the term in nanoseconds of CLOCK_BOOTTIME.
type Asked = Result<(LeaseAnswer, u64)>;

/// Returns `true` if the origin has refused leases.
fn is_refusal(error: &Error) -> bool {
    matches!(error, Error::NotSupported | Error::NotPermitted | Error::AccessDenied)
}

impl Kept {
    fn keep(&self, mut pause: Duration) {
        while !self.is_end_wanted_within(pause) {
            let held = lock(&self.end).held;
            pause = self.take_in(held, self.ask(held));
        }
        self.term.ends();
        // The lock is released before the lease is returned, because `Keeper::end` takes it meanwhile.
        let held = lock(&self.end).held;
        if let Some(epoch) = held {
            block_on(self.give_back(epoch));
        }
        lock(&self.end).is_done = true;
        self.changed.notify_all();
    }

    /// Requests a lease, or the extension of the one that is held. The server answers a request for an
    /// extension only at a recall or after a while.
    fn ask(&self, held: Option<u64>) -> Asked {
        let began_ns = boot_time_ns();
        let ask = held.map_or(LeaseRequest::Grant, LeaseRequest::Keep);
        let leases = self.origin.fs.leases().ok_or(Error::NotSupported)?;
        let answer = leases.lease(&self.origin.own_ctx(), ask).wait()?;
        let term = match answer {
            LeaseAnswer::Held { term, .. } => term,
            LeaseAnswer::Recalled | LeaseAnswer::NotHeld { .. } => Duration::ZERO,
        };
        Ok((answer, began_ns.saturating_add(saturated_ns(term - term / MARGIN_PART))))
    }

    /// Processes an answer. Returns the pause before the next request.
    fn take_in(&self, held: Option<u64>, asked: Asked) -> Duration {
        match asked {
            Ok((LeaseAnswer::Held { epoch, .. }, until_ns)) => {
                if held == Some(epoch) {
                    self.term.goes_on(until_ns);
                } else {
                    self.term.begins(until_ns);
                    lock(&self.end).held = Some(epoch);
                }
                Duration::ZERO
            }
            Ok((LeaseAnswer::Recalled, _)) => {
                self.lose();
                if let Some(epoch) = held {
                    block_on(self.give_back(epoch));
                }
                Duration::ZERO
            }
            Ok((LeaseAnswer::NotHeld { after }, _)) => {
                self.lose();
                after.min(LEASE_TERM)
            }
            // Unless refused, the lease may still be held; if it is not renewed, its term ends by itself.
            Err(error) => {
                if is_refusal(&error) {
                    self.lose();
                }
                if let Some(suppressed) = self.complaints.allow() {
                    let (what, meanwhile) = match self.term.is_held() {
                        true => ("renew the lease", "it is held until its term ends"),
                        false => ("request a lease", "the contract is close-to-open meanwhile"),
                    };
                    tracing::warn!(%error, suppressed, "cannot {what} of the tree: {meanwhile}");
                }
                PAUSE
            }
        }
    }

    fn lose(&self) {
        if lock(&self.end).held.take().is_some() {
            self.term.ends();
        }
    }

    /// Returns the lease. If that fails, it expires at the server.
    async fn give_back(&self, epoch: u64) {
        let Some(leases) = self.origin.fs.leases() else { return };
        let given = leases.lease(&self.origin.own_ctx(), LeaseRequest::GiveBack(epoch)).resolve().await;
        if let Err(error) = given {
            tracing::debug!(%error, "cannot return the lease");
        }
    }

    fn is_end_wanted_within(&self, time: Duration) -> bool {
        let end = lock(&self.end);
        let waited = self.changed.wait_timeout_while(end, time, |end| !end.is_wanted);
        waited.unwrap_or_else(PoisonError::into_inner).0.is_wanted
    }
}
