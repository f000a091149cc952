//! Taking a lease: making its file, or putting one in the place of another's.

use std::time::Duration;

use tombolo_core::Error;
use tombolo_core::fs::{PersistentHandle, Timestamp};

use super::file::{Found, Root};
use super::holder::Holder;
use super::life::Known;
use super::{LEASE_NAME, LeaseError, STALE_PERIODS};

/// A lease that comes and goes is tried for so often.
const TRIES_MAX: usize = 8;

/// An attempt to take a lease.
pub(super) struct Taking<'a> {
    pub root: &'a Root,
    pub own: &'a Holder,
    pub period: Duration,
    /// It is taken from another that holds it.
    pub takes: bool,
}

/// A lease file that was made.
pub(super) struct Taken {
    pub handle: PersistentHandle,
    pub is_from_another: bool,
}

impl Taking<'_> {
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
                    // A full origin may refuse a file before it says that there is one.
                    return self.replace(&found, &holder, &text).await;
                }
            }
            let Some((found, holder)) = self.look().await? else { continue };
            return self.replace(&found, &holder, &text).await;
        }
        Err(LeaseError::Held { holder: Box::default(), age: Duration::ZERO })
    }

    /// Puts a file in the place of one that is there: this cache's own from an earlier life, one that is out
    /// of date, or any.
    async fn replace(&self, found: &Found<'_>, holder: &Holder, text: &str) -> Result<Taken, LeaseError> {
        let known = self.known(holder);
        let is_own = known == Some(Known::Dead);
        // A file of its own tells what time it is there, and takes the place of the other's.
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
        // One that is known to live holds it however old the file is: it is slow.
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

    /// Goes on with the file of an earlier life, by its times, where the origin takes no other, as it is
    /// full.
    async fn renew(&self, found: &Found<'_>, text: &str, source: Error) -> Result<Taken, LeaseError> {
        if self.root.touch(found).await.is_err() {
            return Err(LeaseError::Unwritable { source, is_free: true });
        }
        // It takes no more room. Where the origin makes no use of that, the file names the earlier life.
        if let Err(error) = self.root.rewrite(found, text).await {
            tracing::warn!(%error, "cannot rewrite {LEASE_NAME}: it still names an earlier process");
        }
        tracing::warn!(%source, "cannot replace {LEASE_NAME}: its times are renewed instead");
        Ok(Taken { handle: found.handle.clone(), is_from_another: false })
    }

    /// Finds out what is known of a holder that has this cache's directory, or a copy of it. `None`: it has
    /// another.
    fn known(&self, holder: &Holder) -> Option<Known> {
        let is_same_host = holder.host == self.own.host;
        (holder.id == self.own.id).then(|| self.own.life.knows(&holder.process, &holder.life, is_same_host))
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
