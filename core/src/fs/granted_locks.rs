//! The granted locks of one file, as tracked by a component that does not grant them itself, such as a
//! client of a lock server.

use super::{Lock, LockFamily, LockKind, LockOwner, LockRange, OpenId};

/// A granted lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted<T> {
    /// Opening through which the lock was taken.
    pub open: OpenId,
    /// The lock, with its owner.
    pub lock: Lock,
    /// Annotation by the party that tracks the lock, such as the identity that requested it.
    pub note: T,
}

/// The locks on one file.
#[derive(Debug)]
pub struct GrantedLocks<T>(Vec<Granted<T>>);

impl<T> Default for GrantedLocks<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Clone + PartialEq> GrantedLocks<T> {
    /// Records a granted lock, replacing the owner's former locks in its range. Adjacent locks with equal
    /// properties are merged (fcntl(2)).
    pub fn add(&mut self, mut granted: Granted<T>) {
        let Lock { family, owner, range, .. } = granted.lock;
        self.give_back(family, owner, range);
        self.0.retain(|existing| {
            let is_mergeable = existing.lock.range.adjoins(granted.lock.range)
                && (existing.open, &existing.note) == (granted.open, &granted.note)
                && existing.lock == Lock { range: existing.lock.range, ..granted.lock };
            if is_mergeable {
                granted.lock.range = granted.lock.range.hull(existing.lock.range);
            }
            !is_mergeable
        });
        self.0.push(granted);
    }

    /// Removes an owner's locks in a range; parts outside of it remain.
    pub fn give_back(&mut self, family: LockFamily, owner: LockOwner, range: LockRange) {
        let mut remainders = Vec::new();
        self.0.retain(|existing| {
            let Lock { range: has, .. } = existing.lock;
            let is_owners = (existing.lock.family, existing.lock.owner) == (family, owner);
            if !is_owners || !has.overlaps(range) {
                return true;
            }
            let with_range = |range| Granted { lock: Lock { range, ..existing.lock }, ..existing.clone() };
            remainders.extend(has.without(range).map(with_range));
            false
        });
        self.0.append(&mut remainders);
    }

    /// Returns `true` if an owner has a lock in a range.
    pub fn has(&self, family: LockFamily, owner: LockOwner, range: LockRange) -> bool {
        let mut locks = self.0.iter().map(|existing| &existing.lock);
        locks.any(|lock| (lock.family, lock.owner) == (family, owner) && lock.range.overlaps(range))
    }

    /// Returns `true` if releasing `range` splits a lock of `owner` in two.
    pub fn is_split_by(&self, family: LockFamily, owner: LockOwner, range: LockRange) -> bool {
        self.0.iter().any(|existing| {
            let Lock { range: has, .. } = existing.lock;
            (existing.lock.family, existing.lock.owner) == (family, owner)
                && has.start < range.start
                && range.last < has.last
        })
    }

    /// Removes all record locks of a process that has closed any descriptor of the file (fcntl(2)). Returns
    /// `true` if there were any.
    pub fn closed(&mut self, owner: LockOwner) -> bool {
        let before = self.0.len();
        self.0.retain(|existing| (existing.lock.family, existing.lock.owner) != (LockFamily::Posix, owner));
        self.0.len() < before
    }

    /// Removes the locks of an opening that has ended.
    pub fn released(&mut self, open: OpenId) {
        self.0.retain(|existing| existing.open != open);
    }

    /// Returns the locks taken through an opening.
    pub fn of(&self, open: OpenId) -> Vec<Granted<T>> {
        self.0.iter().filter(|existing| existing.open == open).cloned().collect()
    }

    /// Returns the record locks of other owners that conflict with `lock`; none for a flock lock.
    pub fn conflicts(&self, lock: &Lock) -> impl Iterator<Item = &Lock> {
        self.0.iter().map(|existing| &existing.lock).filter(|existing| {
            (existing.family, lock.family) == (LockFamily::Posix, LockFamily::Posix)
                && existing.owner != lock.owner
                && (existing.kind == LockKind::Write || lock.kind == LockKind::Write)
                && existing.range.overlaps(lock.range)
        })
    }

    /// Returns the number of locked ranges.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns `true` if nothing is locked.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn granted(open: u64, owner: u64, start: u64, last: u64) -> Granted<()> {
        let (family, kind) = (LockFamily::Posix, LockKind::Write);
        let range = LockRange { start, last };
        let lock = Lock { family, kind, range, owner: LockOwner(owner), pid: 1 };
        Granted { open: OpenId(open), lock, note: () }
    }

    fn ranges(locks: &GrantedLocks<()>, open: u64) -> Vec<(u64, u64)> {
        let mut all: Vec<_> = locks.of(OpenId(open)).iter().map(|existing| existing.lock.range).collect();
        all.sort_by_key(|range| range.start);
        all.iter().map(|range| (range.start, range.last)).collect()
    }

    #[test]
    fn released_ranges_are_cut_out() {
        let mut locks = GrantedLocks::default();
        locks.add(granted(1, 5, 10, 99));
        locks.add(granted(2, 6, 0, u64::MAX));
        locks.give_back(LockFamily::Posix, LockOwner(5), LockRange { start: 40, last: 49 });
        assert_eq!(ranges(&locks, 1), [(10, 39), (50, 99)]);
        locks.give_back(LockFamily::Flock, LockOwner(5), LockRange::ALL);
        locks.give_back(LockFamily::Posix, LockOwner(5), LockRange { start: 0, last: 10 });
        assert_eq!(ranges(&locks, 1), [(11, 39), (50, 99)]);
        assert_eq!(ranges(&locks, 2), [(0, u64::MAX)]);
        locks.give_back(LockFamily::Posix, LockOwner(6), LockRange { start: 0, last: u64::MAX });
        assert_eq!(ranges(&locks, 2), []);
    }

    #[test]
    fn new_lock_replaces_former_locks_of_its_owner() {
        let mut locks = GrantedLocks::default();
        locks.add(granted(1, 5, 0, 99));
        locks.add(granted(2, 5, 50, 149));
        assert_eq!((ranges(&locks, 1), ranges(&locks, 2)), (vec![(0, 49)], vec![(50, 149)]));
        locks.released(OpenId(2));
        assert_eq!(ranges(&locks, 2), []);
        locks.closed(LockOwner(5));
        assert_eq!(ranges(&locks, 1), []);
    }

    #[test]
    fn adjacent_locks_merge() {
        let mut locks = GrantedLocks::default();
        (0..100).for_each(|at| locks.add(granted(1, 5, at, at)));
        locks.add(granted(1, 5, 200, u64::MAX));
        locks.add(granted(1, 6, 100, 199));
        assert_eq!(ranges(&locks, 1), [(0, 99), (100, 199), (200, u64::MAX)]);
    }

    #[test]
    fn only_exclusive_locks_of_other_owners_conflict() {
        let mut locks = GrantedLocks::default();
        locks.add(granted(1, 5, 0, 9));
        let read = Lock { kind: LockKind::Read, ..granted(1, 6, 20, 29).lock };
        locks.add(Granted { lock: read, ..granted(1, 6, 20, 29) });
        let in_the_way =
            |lock: Lock| locks.conflicts(&lock).map(|existing| existing.owner.0).collect::<Vec<_>>();
        assert_eq!(in_the_way(granted(1, 7, 0, u64::MAX).lock), [5, 6]);
        assert_eq!(in_the_way(granted(1, 5, 0, u64::MAX).lock), [6]);
        assert_eq!(in_the_way(Lock { kind: LockKind::Read, ..granted(1, 7, 9, 25).lock }), [5]);
        assert_eq!(in_the_way(granted(1, 7, 10, 19).lock), []);
        assert_eq!(in_the_way(Lock { family: LockFamily::Flock, ..granted(1, 7, 0, 9).lock }), []);
    }
}
