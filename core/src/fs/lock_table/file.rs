//! The advisory locks of one file: conflict rules, and a queue of waiters.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::task::Waker;

use crate::fs::{Lock, LockFamily, LockKind, LockOwner, LockRange, OpenId};
use crate::{Error, Result, lock};

/// The owner of a lock, unique among all sessions of the export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Owner {
    /// A process of a session (fcntl locks).
    Process { session: u64, owner: LockOwner },
    /// An opening of a session (flock).
    Opening { session: u64, open: OpenId },
}

impl Owner {
    pub(super) fn session(self) -> u64 {
        match self {
            Self::Process { session, .. } | Self::Opening { session, .. } => session,
        }
    }
}

/// A granted or requested lock with its owner in the export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) owner: Owner,
    /// The opening through which the lock was requested.
    pub(super) open: OpenId,
    pub(super) lock: Lock,
}

impl Claim {
    fn conflicts_with(&self, other: &Self) -> bool {
        self.owner != other.owner
            && self.lock.family == other.lock.family
            && (self.lock.kind == LockKind::Write || other.lock.kind == LockKind::Write)
            && self.lock.range.overlaps(other.lock.range)
    }
}

/// The granted locks of a file, and the claims that wait for conflicting ones, in order of arrival.
#[derive(Debug, Default)]
pub(super) struct FileLocks {
    granted: Vec<Claim>,
    waiters: VecDeque<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    claim: Claim,
    grant: Arc<Grant>,
}

/// The outcome of a waiting claim, shared by the queue and the waiting future.
#[derive(Debug, Default)]
pub(super) struct Grant(Mutex<GrantState>);

#[derive(Debug, Default)]
struct GrantState {
    outcome: Option<Result<()>>,
    waker: Option<Waker>,
}

impl Grant {
    /// Returns the outcome if there is one; otherwise registers `waker`.
    pub(super) fn poll(&self, waker: &Waker) -> Option<Result<()>> {
        let mut state = lock(&self.0);
        let outcome = state.outcome.take();
        if outcome.is_none() {
            state.waker = Some(waker.clone());
        }
        outcome
    }

    fn settle(&self, outcome: Result<()>) -> Option<Waker> {
        let mut state = lock(&self.0);
        state.outcome = Some(outcome);
        state.waker.take()
    }
}

impl FileLocks {
    /// Returns a granted lock that conflicts with `claim`; `None` if the claim can be granted.
    pub(super) fn conflict<'a>(&'a self, claim: &'a Claim) -> Option<&'a Claim> {
        self.conflicts(claim).next()
    }

    /// Returns all granted locks that conflict with `claim`.
    pub(super) fn conflicts<'a>(&'a self, claim: &'a Claim) -> impl Iterator<Item = &'a Claim> {
        self.granted.iter().filter(|granted| granted.conflicts_with(claim))
    }

    /// Grants a claim without conflicts, replacing the owner's locks in its range.
    pub(super) fn grant(&mut self, claim: Claim) {
        self.cut(claim.owner, claim.lock.range);
        let mut merged = claim;
        // Adjacent locks of the same kind are merged, as F_GETLK shows (fcntl(2)).
        self.granted.retain(|granted| {
            let is_mergeable = granted.owner == merged.owner
                && granted.lock.kind == merged.lock.kind
                && granted.lock.range.adjoins(merged.lock.range);
            if is_mergeable {
                merged.lock.range = merged.lock.range.hull(granted.lock.range);
            }
            !is_mergeable
        });
        self.granted.push(merged);
    }

    /// Releases `range` of `owner`, cutting locks that extend beyond it.
    pub(super) fn cut(&mut self, owner: Owner, range: LockRange) {
        let mut remainders = Vec::new();
        self.granted.retain(|granted| {
            if granted.owner != owner || !granted.lock.range.overlaps(range) {
                return true;
            }
            let with_range = |range| Claim { lock: Lock { range, ..granted.lock }, ..*granted };
            remainders.extend(granted.lock.range.without(range).map(with_range));
            false
        });
        self.granted.append(&mut remainders);
    }

    /// Releases all locks taken through an opening, and ends its waits.
    pub(super) fn cut_through(
        &mut self,
        session: u64,
        open: OpenId,
        ended: impl FnMut(Owner, Option<Waker>),
    ) {
        self.drop_claims(
            || Error::BadOpen,
            ended,
            |claim| (claim.owner.session(), claim.open) == (session, open),
        );
    }

    /// Queues a claim that must wait. The caller polls the returned grant for the outcome.
    pub(super) fn enqueue(&mut self, claim: Claim) -> Arc<Grant> {
        let grant = Arc::new(Grant::default());
        self.waiters.push_back(Waiter { claim, grant: grant.clone() });
        grant
    }

    /// Removes a waiter from the queue. Returns `false` if its claim was granted or refused already.
    pub(super) fn withdraw(&mut self, grant: &Arc<Grant>) -> bool {
        let before = self.waiters.len();
        self.waiters.retain(|waiter| !Arc::ptr_eq(&waiter.grant, grant));
        before != self.waiters.len()
    }

    /// Settles the waiting claims that have no conflicts, in order of arrival: grants them, or refuses them
    /// if not `may_grant`. Calls `settled` with the owner and the waker of each.
    pub(super) fn settle_waiters(&mut self, may_grant: bool, mut settled: impl FnMut(Owner, Option<Waker>)) {
        let (mut index, mut is_downgraded) = (0, false);
        while let Some(waiter) = self.waiters.get(index) {
            if self.conflict(&waiter.claim).is_some() {
                index += 1;
            } else if let Some(waiter) = self.waiters.remove(index) {
                let outcome = if may_grant { Ok(()) } else { Err(Error::NoLocks) };
                if may_grant {
                    is_downgraded |= self.is_downgrade(&waiter.claim);
                    self.grant(waiter.claim);
                }
                settled(waiter.claim.owner, waiter.grant.settle(outcome));
            }
            // Claims earlier in the queue may have waited for a write lock that a granted read lock replaced.
            if index == self.waiters.len() && std::mem::take(&mut is_downgraded) {
                index = 0;
            }
        }
    }

    /// Returns `true` if granting the claim replaces a part of a write lock by a read lock.
    fn is_downgrade(&self, claim: &Claim) -> bool {
        let is_replaced = |granted: &Claim| {
            granted.owner == claim.owner
                && granted.lock.kind == LockKind::Write
                && granted.lock.range.overlaps(claim.lock.range)
        };
        claim.lock.kind == LockKind::Read && self.granted.iter().any(is_replaced)
    }

    /// Drops all locks and waits of a session.
    pub(super) fn end_session(&mut self, session: u64, ended: impl FnMut(Owner, Option<Waker>)) {
        self.drop_claims(|| Error::Interrupted, ended, |claim| claim.owner.session() == session);
    }

    fn drop_claims(
        &mut self,
        error: impl Fn() -> Error,
        mut ended: impl FnMut(Owner, Option<Waker>),
        is_affected: impl Fn(&Claim) -> bool,
    ) {
        self.granted.retain(|granted| !is_affected(granted));
        self.waiters.retain(|waiter| {
            let stays = !is_affected(&waiter.claim);
            if !stays {
                ended(waiter.claim.owner, waiter.grant.settle(Err(error())));
            }
            stays
        });
    }

    /// Returns the waiting claims of `owner`.
    pub(super) fn waiting_for(&self, owner: Owner) -> impl Iterator<Item = &Claim> {
        self.waiters.iter().map(|waiter| &waiter.claim).filter(move |claim| claim.owner == owner)
    }

    /// Returns `true` if releasing the range would split a lock of the owner.
    pub(super) fn is_split_by(&self, owner: Owner, range: LockRange) -> bool {
        self.granted.iter().any(|granted| {
            let LockRange { start, last } = granted.lock.range;
            granted.owner == owner && start < range.start && range.last < last
        })
    }

    /// Returns the number of locked ranges.
    pub(super) fn len(&self) -> usize {
        self.granted.len()
    }

    /// Returns `true` if there are neither locks nor waiters.
    pub(super) fn is_unused(&self) -> bool {
        self.granted.is_empty() && self.waiters.is_empty()
    }
}

/// Returns the owner of a lock of `family` that was requested through an opening.
pub(super) fn owner_of(family: LockFamily, session: u64, open: OpenId, owner: LockOwner) -> Owner {
    match family {
        LockFamily::Posix => Owner::Process { session, owner },
        LockFamily::Flock => Owner::Opening { session, open },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(process: u64, kind: LockKind, start: u64, last: u64) -> Claim {
        let owner = LockOwner(process);
        let range = LockRange { start, last };
        let lock = Lock { family: LockFamily::Posix, kind, range, owner, pid: process as u32 };
        Claim { owner: Owner::Process { session: 1, owner }, open: OpenId(process), lock }
    }

    fn ranges(table: &FileLocks) -> Vec<(u64, u64)> {
        let mut ranges: Vec<_> =
            table.granted.iter().map(|granted| (granted.lock.range.start, granted.lock.range.last)).collect();
        ranges.sort_unstable();
        ranges
    }

    #[test]
    fn locks_split_and_merge_like_fcntl() {
        let mut table = FileLocks::default();
        table.grant(claim(1, LockKind::Write, 0, 99));
        table.cut(claim(1, LockKind::Write, 0, 0).owner, LockRange { start: 40, last: 59 });
        assert_eq!(ranges(&table), [(0, 39), (60, 99)]);
        table.grant(claim(1, LockKind::Write, 40, 59));
        assert_eq!(ranges(&table), [(0, 99)]);
        table.grant(claim(1, LockKind::Read, 10, 19));
        assert_eq!(ranges(&table), [(0, 9), (10, 19), (20, 99)]);
        assert!(table.conflict(&claim(2, LockKind::Read, 10, 19)).is_none());
        assert!(table.conflict(&claim(2, LockKind::Write, 10, 19)).is_some());
        assert!(
            table.conflict(&claim(1, LockKind::Write, 0, 99)).is_none(),
            "one's own locks do not conflict"
        );
    }

    #[test]
    fn downgrade_by_a_waiter_grants_earlier_waiters() {
        let mut table = FileLocks::default();
        table.grant(claim(1, LockKind::Write, 0, 9));
        table.grant(claim(2, LockKind::Write, 15, 20));
        table.enqueue(claim(3, LockKind::Read, 0, 9));
        table.enqueue(claim(1, LockKind::Read, 0, 20));
        table.cut(claim(2, LockKind::Write, 0, 0).owner, LockRange { start: 15, last: 20 });
        let mut settled = 0;
        table.settle_waiters(true, |_, _| settled += 1);
        assert_eq!(settled, 2);
    }

    #[test]
    fn the_end_of_all_offsets_is_no_trap() {
        let mut table = FileLocks::default();
        table.grant(claim(1, LockKind::Write, 0, u64::MAX));
        table.cut(claim(1, LockKind::Write, 0, 0).owner, LockRange { start: 5, last: u64::MAX });
        assert_eq!(ranges(&table), [(0, 4)]);
    }
}
