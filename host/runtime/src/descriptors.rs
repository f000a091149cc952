//! The process's file descriptors (RLIMIT_NOFILE), divided among its sessions and caches.
//!
//! Some are left to the process itself: for listening, the control socket, logs, and short-lived use by
//! threads. Of the others, a quarter is reserved for the guaranteed shares of sessions. The remainder is
//! available to all sessions beyond their shares, to each until it has taken about as many as are still free:
//! the first gets half of the remainder at most, the second half of the rest, and so on.

use std::sync::{Arc, Mutex, OnceLock};

use tombolo_sys::process;

use crate::lock;

/// Number of descriptors for the process itself, but at most half of the limit. Half of them are for 64
/// connected but unidentified peers, with two each.
const OWN_USE: usize = 256;
/// Divisor: one in so many descriptors is reserved for the guaranteed shares of sessions.
const RESERVED_ONE_IN: usize = 4;
/// Number of sessions among which the reserved descriptors are divided; each share is at least
/// [`SESSION_MIN`] and at most [`SESSION_MAX`].
const SESSIONS: usize = 512;
const SESSION_MIN: usize = 32;
const SESSION_MAX: usize = 1024;

/// The descriptors available to sessions and caches.
#[derive(Debug)]
pub struct DescriptorBudget {
    session_share: usize,
    left: Mutex<Remaining>,
}

#[derive(Debug)]
struct Remaining {
    /// Number of descriptors reserved for the guaranteed shares of future sessions.
    reserved: usize,
    /// Number of other descriptors that no share has.
    free: usize,
}

/// A session's or cache's share: a guaranteed number of descriptors, and more while enough are free. They
/// return to the budget once the share and its permits are dropped.
#[derive(Debug)]
pub struct Share(Arc<Holding>);

#[derive(Debug)]
struct Holding {
    budget: Arc<DescriptorBudget>,
    /// Guaranteed descriptors taken from `reserved` and from `free` of the budget.
    from_reserved: usize,
    from_free: usize,
    /// Number of descriptors in use, by all permits of the share.
    used: Mutex<usize>,
}

/// A permit to have a number of descriptors open. The owner closes the descriptors before it drops the
/// permit.
#[derive(Debug)]
pub struct Permit {
    holding: Arc<Holding>,
    count: usize,
}

impl DescriptorBudget {
    /// Returns the budget of this process. The first call raises the soft limit to the hard one; later
    /// changes are ignored.
    pub fn of_process() -> &'static Arc<DescriptorBudget> {
        static BUDGET: OnceLock<Arc<DescriptorBudget>> = OnceLock::new();
        BUDGET.get_or_init(|| {
            if let Err(error) = process::raise_open_file_limit() {
                tracing::warn!(%error, "cannot raise the limit on open files");
            }
            DescriptorBudget::new(process::open_file_limit().soft)
        })
    }

    /// Returns a budget for a process that may have `limit` descriptors open.
    pub fn new(limit: u64) -> Arc<DescriptorBudget> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let given_out = limit - OWN_USE.min(limit / 2);
        let reserved = given_out / RESERVED_ONE_IN;
        let session_share = (reserved / SESSIONS).clamp(SESSION_MIN, SESSION_MAX);
        Arc::new(DescriptorBudget {
            session_share,
            left: Mutex::new(Remaining { reserved, free: given_out - reserved }),
        })
    }

    /// Returns a session's share, or `None` if there are too many sessions for the limit.
    pub fn session(self: &Arc<Self>) -> Option<Share> {
        self.share(self.session_share)
    }

    /// Returns a share with this guaranteed number of descriptors, or `None` if fewer are left.
    pub fn share(self: &Arc<Self>, guaranteed: usize) -> Option<Share> {
        let mut left = lock(&self.left);
        let from_reserved = guaranteed.min(left.reserved);
        let from_free = guaranteed - from_reserved;
        left.free = left.free.checked_sub(from_free)?;
        left.reserved -= from_reserved;
        drop(left);
        Some(self.holding(from_reserved, from_free))
    }

    /// Returns a cache's share: `wanted`, or a quarter of the free descriptors if that is less.
    pub fn cache(self: &Arc<Self>, wanted: usize) -> Share {
        let mut left = lock(&self.left);
        let from_free = wanted.min(left.free / 4);
        left.free -= from_free;
        drop(left);
        self.holding(0, from_free)
    }

    fn holding(self: &Arc<Self>, from_reserved: usize, from_free: usize) -> Share {
        Share(Arc::new(Holding { budget: self.clone(), from_reserved, from_free, used: Mutex::default() }))
    }
}

impl Share {
    /// Returns the guaranteed number of descriptors.
    pub fn guaranteed(&self) -> usize {
        self.0.guaranteed()
    }

    /// Returns the maximum number of descriptors that this share could have at present. Valid while the share
    /// uses none beyond its guaranteed number.
    pub fn most(&self) -> usize {
        self.guaranteed() + lock(&self.0.budget.left).free.div_ceil(2)
    }

    /// Returns a permit for `count` more descriptors, or `None` if that would take too many from others.
    pub fn take(&self, count: usize) -> Option<Permit> {
        let mut used = lock(&self.0.used);
        let after = used.checked_add(count)?;
        let (beyond, beyond_after) = (self.0.beyond(*used), self.0.beyond(after));
        if beyond_after > beyond {
            let mut left = lock(&self.0.budget.left);
            // As many descriptors as this share has beyond its guaranteed number must stay free for the
            // others; the last free one may be taken.
            if beyond_after > left.free {
                return None;
            }
            left.free -= beyond_after - beyond;
        }
        *used = after;
        drop(used);
        Some(Permit { holding: self.0.clone(), count })
    }
}

impl Holding {
    fn guaranteed(&self) -> usize {
        self.from_reserved + self.from_free
    }

    /// Returns how many of `used` are beyond the guaranteed number.
    fn beyond(&self, used: usize) -> usize {
        used.saturating_sub(self.guaranteed())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut used = lock(&self.holding.used);
        let after = *used - self.count;
        let back = self.holding.beyond(*used) - self.holding.beyond(after);
        if back > 0 {
            lock(&self.holding.budget.left).free += back;
        }
        *used = after;
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        let mut left = lock(&self.budget.left);
        left.reserved += self.from_reserved;
        left.free += self.from_free;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take_all(share: &Share) -> Vec<Permit> {
        std::iter::from_fn(|| share.take(1)).collect()
    }

    #[test]
    fn greedy_descriptor_share_leaves_as_many_free() {
        let budget = DescriptorBudget::new(20_000);
        let (greedy, other) = (budget.session().unwrap(), budget.session().unwrap());
        let most = greedy.most();
        let first = take_all(&greedy);
        assert_eq!(first.len(), most);
        let second = take_all(&other);
        let free = 20_000 - OWN_USE - (20_000 - OWN_USE) / RESERVED_ONE_IN;
        assert_eq!(first.len(), greedy.guaranteed() + free / 2);
        assert_eq!(second.len(), other.guaranteed() + free.div_ceil(2) / 2);
        drop(first);
        assert!(greedy.take(1).is_some() && other.take(1).is_some(), "what is given back can be had again");
    }

    #[test]
    fn new_session_gets_guaranteed_descriptor_share() {
        let budget = DescriptorBudget::new(4096);
        let greedy: Vec<Share> = (0..8).map(|_| budget.session().unwrap()).collect();
        // In rounds: together they take the last one.
        let taken: Vec<Permit> = (0..4).flat_map(|_| greedy.iter().flat_map(take_all)).collect();
        let newcomer = budget.session().expect("a session");
        assert!(take_all(&newcomer).len() >= SESSION_MIN);
        drop((taken, greedy, newcomer));
        let left = lock(&budget.left);
        assert_eq!(left.reserved + left.free, 4096 - OWN_USE, "all came back");
        assert_eq!(left.reserved, (4096 - OWN_USE) / RESERVED_ONE_IN);
    }

    #[test]
    fn more_sessions_than_the_limit_can_bear_are_refused() {
        let budget = DescriptorBudget::new(1024);
        let sessions: Vec<Share> = std::iter::from_fn(|| budget.session()).collect();
        assert_eq!(sessions.len(), (1024 - OWN_USE) / SESSION_MIN);
        assert!(sessions.iter().all(|session| session.take(SESSION_MIN).is_some()));
    }

    #[test]
    fn a_cache_takes_a_part_of_what_is_free() {
        let budget = DescriptorBudget::new(1024);
        assert_eq!(budget.cache(768).guaranteed(), (1024 - OWN_USE) / 4 * 3 / 4);
        assert_eq!(DescriptorBudget::new(1 << 20).cache(768).guaranteed(), 768);
    }

    #[test]
    fn permits_outlive_their_share() {
        let budget = DescriptorBudget::new(1024);
        let share = budget.session().unwrap();
        let permit = share.take(40);
        drop(share);
        assert!(lock(&budget.left).reserved < 192);
        drop(permit);
        assert_eq!(lock(&budget.left).reserved, 192);
    }
}
