//! The locks that callers hold on a node, to take them anew behind another link.

use tombolo_core::fs::{Identity, Lock, LockFamily, LockOwner, LockRange, OpenId};

/// A lock that was granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Granted {
    /// Through which opening.
    pub(crate) open: OpenId,
    /// To whom.
    pub(crate) identity: Identity,
    pub(crate) lock: Lock,
}

/// The locks on one node.
#[derive(Debug, Default)]
pub(crate) struct HeldLocks(Vec<Granted>);

impl HeldLocks {
    /// A lock was granted, in the place of what its owner had there.
    pub(crate) fn add(&mut self, granted: Granted) {
        let Lock { family, owner, range, .. } = granted.lock;
        self.give_back(family, owner, range);
        self.0.push(granted);
    }

    /// An owner has given up its locks in a range; what lies beside it stays.
    pub(crate) fn give_back(&mut self, family: LockFamily, owner: LockOwner, range: LockRange) {
        let mut rests = Vec::new();
        self.0.retain(|held| {
            let Lock { range: has, .. } = held.lock;
            let is_meant = (held.lock.family, held.lock.owner) == (family, owner);
            if !is_meant || has.last < range.start || range.last < has.start {
                return true;
            }
            let mut rest = |start, last| {
                let lock = Lock { range: LockRange { start, last }, ..held.lock };
                rests.push(Granted { lock, ..held.clone() });
            };
            if has.start < range.start {
                rest(has.start, range.start - 1);
            }
            if range.last < has.last {
                rest(range.last + 1, has.last);
            }
            false
        });
        self.0.append(&mut rests);
    }

    /// A descriptor was closed: the process's record locks are gone.
    pub(crate) fn closed(&mut self, owner: LockOwner) {
        self.0.retain(|held| (held.lock.family, held.lock.owner) != (LockFamily::Posix, owner));
    }

    /// An opening has ended.
    pub(crate) fn released(&mut self, open: OpenId) {
        self.0.retain(|held| held.open != open);
    }

    /// Those that were taken through an opening.
    pub(crate) fn of(&self, open: OpenId) -> Vec<Granted> {
        self.0.iter().filter(|held| held.open == open).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tombolo_core::fs::LockKind;

    fn granted(open: u64, owner: u64, start: u64, last: u64) -> Granted {
        let (family, kind) = (LockFamily::Posix, LockKind::Write);
        let range = LockRange { start, last };
        let lock = Lock { family, kind, range, owner: LockOwner(owner), pid: 1 };
        Granted { open: OpenId(open), identity: Identity::ROOT, lock }
    }

    fn ranges(locks: &HeldLocks, open: u64) -> Vec<(u64, u64)> {
        let mut all: Vec<_> = locks.of(OpenId(open)).iter().map(|held| held.lock.range).collect();
        all.sort_by_key(|range| range.start);
        all.iter().map(|range| (range.start, range.last)).collect()
    }

    #[test]
    fn what_is_given_back_is_cut_out() {
        let mut locks = HeldLocks::default();
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
    fn a_lock_takes_the_place_of_its_owners_former_ones() {
        let mut locks = HeldLocks::default();
        locks.add(granted(1, 5, 0, 99));
        locks.add(granted(2, 5, 50, 149));
        assert_eq!((ranges(&locks, 1), ranges(&locks, 2)), (vec![(0, 49)], vec![(50, 149)]));
        locks.released(OpenId(2));
        assert_eq!(ranges(&locks, 2), []);
        locks.closed(LockOwner(5));
        assert_eq!(ranges(&locks, 1), []);
    }
}
