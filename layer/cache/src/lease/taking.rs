//! Acquisition of a lease: its file is created, or replaces an earlier one.

use std::time::Duration;

use tombolo_core::Error;
use tombolo_core::fs::{PersistentHandle, Timestamp};

use super::file::{Found, Root};
use super::holder::Holder;
use super::life::Known;
use super::{LEASE_NAME, LeaseError, STALE_PERIODS};

/// Maximum number of attempts if the lease file exists when it is to be created, but not when it is read.
const TRIES_MAX: usize = 8;

/// An attempt to acquire a lease.
pub(super) struct Taking<'a> {
    pub root: &'a Root,
    pub own: &'a Holder,
    pub period: Duration,
    /// `true` to take over a valid lease of another cache.
    pub takes: bool,
}

/// The acquired lease file: created, replaced, or left by an earlier process of this cache and renewed.
pub(super) struct Taken {
    pub handle: PersistentHandle,
    /// `true` if another cache held the lease, which may not have noticed the takeover yet.
    pub is_from_another: bool,
}

impl Taking<'_> {
    /// Creates the lease file, or replaces an existing one if [`Taking::replace`] allows that.
    pub(super) async fn take(&self) -> Result<Taken, LeaseError> {
        let (name, text) = (LEASE_NAME.as_bytes(), self.own.text(self.period));
        for _ in 0..TRIES_MAX {
            match self.root.make(name, &text).await {
                Ok(made) => return Ok(Taken { handle: made.handle.clone(), is_from_another: false }),
                Err(Error::Exists) => {}
                Err(source) => {
                    let Some((found, holder)) = self.look().await? else {
                        return Err(LeaseError::Unwritable { source, is_free: true });
                    };
                    // A full origin may refuse to create a file before it checks for an existing one.
                    return self.replace(&found, &holder, &text).await;
                }
            }
            let Some((found, holder)) = self.look().await? else { continue };
            return self.replace(&found, &holder, &text).await;
        }
        Err(LeaseError::Overtaken { holder: Box::default() })
    }

    /// Replaces the lease file if an earlier process of this cache left it, if it is outdated and its process
    /// is not known to be alive, or always with `takes`. Otherwise fails with [`LeaseError::Held`].
    async fn replace(&self, found: &Found<'_>, holder: &Holder, text: &str) -> Result<Taken, LeaseError> {
        let known = self.known(holder);
        let is_own = known == Some(Known::Dead);
        // A temporary file shows the origin's present time. It may then replace the lease file.
        let beside = format!("{LEASE_NAME}.{}", self.own.id);
        self.root.remove(beside.as_bytes()).await;
        let made = match self.root.make(beside.as_bytes(), text).await {
            Ok(made) => made,
            Err(source) if is_own => return self.renew(found, text, source).await,
            Err(source) => return Err(LeaseError::Unwritable { source, is_free: false }),
        };
        let unwritable = |source| LeaseError::Unwritable { source, is_free: false };
        let now = self.root.touch(&made).await.map_err(unwritable)?.ctime;
        let age = since(found.attr.ctime, now);
        // A live process holds the lease however old the file is: it is merely slow.
        let is_stale = age >= self.period * STALE_PERIODS && known != Some(Known::Living);
        if !is_own && !is_stale && !self.takes {
            self.root.remove(beside.as_bytes()).await;
            return Err(LeaseError::Held { holder: Box::new(holder.clone()), age });
        }
        if !is_own {
            tracing::warn!(%holder, age_s = age.as_secs(), is_stale, "taking over {LEASE_NAME} from another holder");
        }
        self.root.replace(beside.as_bytes(), LEASE_NAME.as_bytes()).await.map_err(unwritable)?;
        Ok(Taken { handle: made.handle.clone(), is_from_another: !is_own })
    }

    /// Renews the lease file of an earlier process of this cache if no other can be created, for example
    /// because the origin is full.
    async fn renew(&self, found: &Found<'_>, text: &str, source: Error) -> Result<Taken, LeaseError> {
        if self.root.touch(found).await.is_err() {
            return Err(LeaseError::Unwritable { source, is_free: true });
        }
        // The rewrite mostly needs no more space. If it fails, the file still names the earlier process.
        if let Err(error) = self.root.rewrite(found, text).await {
            tracing::warn!(%error, "cannot rewrite {LEASE_NAME}: it still names an earlier process");
        }
        tracing::warn!(%source, "cannot replace {LEASE_NAME}: its times are renewed instead");
        Ok(Taken { handle: found.handle.clone(), is_from_another: false })
    }

    /// Checks if the process of a holder with this cache's directory, or a copy of it, is alive. Returns
    /// `None` for a holder with another directory.
    fn known(&self, holder: &Holder) -> Option<Known> {
        let is_same_host = holder.host == self.own.host;
        (holder.id == self.own.id).then(|| self.own.life.knows(&holder.process, &holder.life, is_same_host))
    }

    /// Returns the present lease file and its holder; `None` if there is none, or not any more.
    async fn look(&self) -> Result<Option<(Found<'_>, Holder)>, Error> {
        let Some(found) = self.root.find(LEASE_NAME.as_bytes()).await? else { return Ok(None) };
        match self.root.holder(&found).await {
            Ok(holder) => Ok(Some((found, holder))),
            Err(Error::Stale | Error::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn since(then: Timestamp, now: Timestamp) -> Duration {
    let nanos = |time: Timestamp| i128::from(time.secs) * 1_000_000_000 + i128::from(time.nanos);
    let nanos = u64::try_from((nanos(now) - nanos(then)).max(0)).unwrap_or(u64::MAX);
    Duration::from_nanos(nanos)
}
