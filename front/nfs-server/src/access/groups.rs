//! Groups of a user from this host's databases, instead of the at most 16 of a credential.

use std::sync::Arc;
use std::time::{Duration, Instant};

use quick_cache::sync::Cache;
use tombolo_core::{Ctx, Error, Result, SessionId};
use tombolo_host_runtime::names::{self, LookUpError, UserGroups};
use tombolo_host_runtime::rate_limit::RateLimit;
use tombolo_host_runtime::thread_pool::{Lane, ThreadPool, ThreadPoolLimits};

/// Maximum number of users with cached groups.
const USERS_MAX: usize = 4096;
/// Lifetime of cached groups.
const LIFETIME: Duration = Duration::from_secs(300);
/// Lifetime of the result of a failed look-up.
const FAILURE_LIFETIME: Duration = Duration::from_secs(10);
/// Limits of look-ups: a few at a time for slow remote databases, but not so many as to flood a server that
/// does not answer. The only lane may use three of the four threads ([`ThreadPool`]), so three run at once.
const LOOK_UP_POOL: ThreadPoolLimits = ThreadPoolLimits { threads: 4, queue_len: 256 };

/// Look-up of a user's groups; `None` if the user is unknown.
type LookUp = dyn Fn(u32) -> std::result::Result<Option<UserGroups>, LookUpError> + Send + Sync;

/// Group look-up with a cache of five minutes.
pub struct Groups {
    cache: Cache<u32, CachedGroups>,
    lane: Lane,
    _pool: ThreadPool,
    look_up_fn: Arc<LookUp>,
    lifetime: Duration,
    /// Rate-limited because callers choose the users that are looked up.
    log: RateLimit,
}

#[derive(Clone)]
struct CachedGroups {
    groups: Arc<[u32]>,
    until: Instant,
}

impl Groups {
    /// Uses this host's user and group databases (nsswitch.conf(5)), which may query another process.
    #[must_use]
    pub fn new() -> Self {
        Self::with_look_up(Arc::new(names::groups_of), LIFETIME)
    }

    fn with_look_up(look_up_fn: Arc<LookUp>, lifetime: Duration) -> Self {
        let pool = ThreadPool::new("nfs-groups", LOOK_UP_POOL);
        Self {
            cache: Cache::new(USERS_MAX),
            lane: pool.lane(),
            _pool: pool,
            look_up_fn,
            lifetime,
            log: RateLimit::default(),
        }
    }

    /// Returns the groups of a user; none for an unknown user, and after a failed look-up at most the primary
    /// group and those of /etc/group. [`Error::WouldBlock`] if the look-up could not be started.
    pub(super) async fn of(&self, uid: u32) -> Result<Arc<[u32]>> {
        let now = Instant::now();
        if let Some(cached) = self.cache.get(&uid) {
            if cached.until > now {
                return Ok(cached.groups);
            }
            self.cache.remove_if(&uid, |cached| cached.until <= now);
        }
        // Concurrent calls of one user share one look-up.
        let cached = self.cache.get_or_insert_async(&uid, self.look_up(uid)).await?;
        Ok(cached.groups)
    }

    async fn look_up(&self, uid: u32) -> Result<CachedGroups> {
        let look_up_fn = self.look_up_fn.clone();
        // A context without a deadline or an interrupt: calls of other clients may wait for this look-up too.
        let looked_up = self.lane.run(&Ctx::root(SessionId(0)), move || Ok(look_up_fn(uid)));
        let failure_lifetime = FAILURE_LIFETIME.min(self.lifetime);
        let (groups, lifetime) = match looked_up.resolve().await {
            Ok(Ok(Some(UserGroups { groups, lacking: Some(error) }))) => {
                if let Some(unlogged) = self.log.allow() {
                    tracing::warn!(
                        uid,
                        error,
                        unlogged,
                        "group look-up failed: using only the primary group and those of /etc/group"
                    );
                }
                (groups, failure_lifetime)
            }
            Ok(Ok(found)) => (found.unwrap_or_default().groups, self.lifetime),
            Ok(Err(error)) => {
                if let Some(unlogged) = self.log.allow() {
                    let error: &dyn std::error::Error = &error;
                    tracing::warn!(
                        uid,
                        error,
                        unlogged,
                        "group look-up failed: the user has no supplementary groups"
                    );
                }
                (Vec::new(), failure_lifetime)
            }
            // The queue is full, or no thread could be started.
            Err(_) => return Err(Error::WouldBlock),
        };
        Ok(CachedGroups { groups: groups.into(), until: Instant::now() + lifetime })
    }
}

impl Default for Groups {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for Groups {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Groups({} users)", self.cache.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tombolo_core::Answer;

    fn wait(groups: &Arc<Groups>, uid: u32) -> Result<Arc<[u32]>> {
        let groups = groups.clone();
        Answer::later(async move { groups.of(uid).await }).wait()
    }

    /// Returns groups whose look-up gives each user 40 groups, except for special numbers, and a counter of
    /// the look-ups.
    fn counting(lifetime: Duration) -> (Arc<Groups>, Arc<AtomicUsize>) {
        let looked_up = Arc::new(AtomicUsize::new(0));
        let count = looked_up.clone();
        let look_up_fn = move |uid: u32| {
            count.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(5));
            match uid {
                404 => Ok(None),
                500 => Err(LookUpError::NoGetent),
                501 => Ok(Some(UserGroups { groups: vec![501], lacking: Some("gone".into()) })),
                uid => Ok(Some(UserGroups { groups: vec![uid; 40], lacking: None })),
            }
        };
        (Arc::new(Groups::with_look_up(Arc::new(look_up_fn), lifetime)), looked_up)
    }

    #[test]
    fn concurrent_group_lookups_of_a_user_are_one() {
        let (groups, looked_up) = counting(LIFETIME);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| assert_eq!(wait(&groups, 7).expect("groups").len(), 40));
            }
        });
        assert_eq!(wait(&groups, 7).expect("groups")[..2], [7, 7]);
        assert_eq!(looked_up.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn unknown_users_and_failed_lookups_are_cached() {
        let (groups, looked_up) = counting(LIFETIME);
        for uid in [404, 500, 404, 500] {
            assert!(wait(&groups, uid).expect("nothing").is_empty());
        }
        assert_eq!(looked_up.load(Ordering::Relaxed), 2);
        assert_eq!(wait(&groups, 501).expect("its own")[..], [501]);
    }

    #[test]
    fn expired_groups_are_looked_up_again() {
        let (groups, looked_up) = counting(Duration::ZERO);
        for _ in 0..3 {
            wait(&groups, 7).expect("groups");
        }
        assert_eq!(looked_up.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn unresponsive_group_database_is_not_flooded() {
        let stuck = Arc::new(Mutex::new(()));
        let held = stuck.lock().expect("the lock");
        let look_up_fn = {
            let stuck = stuck.clone();
            move |_| {
                drop(stuck.lock());
                Ok(None)
            }
        };
        let groups = Arc::new(Groups::with_look_up(Arc::new(look_up_fn), LIFETIME));
        let mut waker = std::task::Context::from_waker(std::task::Waker::noop());
        let mut waiting = Vec::new();
        let mut refused = 0;
        for uid in 0..1000 {
            let groups = groups.clone();
            let mut future = Box::pin(async move { groups.of(uid).await.map(drop) });
            match future.as_mut().poll(&mut waker) {
                std::task::Poll::Ready(outcome) => {
                    assert!(matches!(outcome, Err(Error::WouldBlock)));
                    refused += 1;
                }
                std::task::Poll::Pending => waiting.push(future),
            }
        }
        assert!(
            waiting.len() <= LOOK_UP_POOL.threads + LOOK_UP_POOL.queue_len && refused > 0,
            "{}",
            waiting.len()
        );
        drop(held);
    }

    #[test]
    fn this_machine_s_databases_are_asked() {
        let groups = Arc::new(Groups::new());
        assert!(wait(&groups, 0).expect("root").contains(&0));
    }
}
