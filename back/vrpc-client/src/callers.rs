//! Caller numbers: an identity is sent to the server before its first request, and requests name it by
//! number.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use smallvec::SmallVec;
use tombolo_core::Identity;
use tombolo_wire_vrpc::CallerId;

/// The caller numbers of a link. A number is reassigned only when no request uses it: the server would
/// otherwise perform that request as the wrong user.
#[derive(Debug)]
pub(crate) struct Callers {
    slots: Box<[Slot]>,
    table: RwLock<Table>,
    /// Number of the last caller. The next caller is often the same, and then needs no lock.
    last: AtomicU16,
}

#[derive(Debug, Default)]
struct Table {
    /// Identities by number.
    identities: Vec<Identity>,
    /// Numbers by user and group: several for identities that differ in supplementary groups.
    by_user: HashMap<(u32, u32), SmallVec<[u16; 2]>>,
    /// Start of the next search for a reassignable number.
    hand: usize,
}

/// A caller number. Its identity changes only while the number is vacant, under the table's lock.
#[derive(Debug)]
struct Slot {
    /// Number of uses by requests, each until [`Callers::leave`], and the flag [`VACANT`].
    uses: AtomicU32,
    user: AtomicU32,
    group: AtomicU32,
    has_groups: AtomicBool,
    /// `true` once the server has acknowledged the identity.
    introduced: AtomicBool,
}

/// Flag of a number without an identity. A thread may briefly add a use before it notices the flag.
const VACANT: u32 = 1 << 31;

/// Result of allocating a number for a request. The number is in use until [`Callers::leave`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallerNumber {
    /// The server knows the identity of this number.
    Introduced(CallerId),
    /// The server must be sent the identity before any request with this number.
    NotIntroduced(CallerId),
    /// All numbers are in use.
    Full,
}

impl Callers {
    pub(crate) fn new(max: u16) -> Self {
        let slots = (0..max).map(|_| Slot::default()).collect();
        Self { slots, table: RwLock::default(), last: AtomicU16::new(0) }
    }

    /// Returns the number of an identity, and adds a use that ends with [`leave`](Self::leave).
    #[inline]
    pub(crate) fn enter(&self, identity: &Identity) -> CallerNumber {
        let last = self.last.load(Ordering::Relaxed);
        match self.slots.get(usize::from(last)).and_then(|slot| slot.enter_as(identity)) {
            Some(is_introduced) => CallerNumber::new(last, is_introduced),
            None => self.find(identity),
        }
    }

    fn find(&self, identity: &Identity) -> CallerNumber {
        let found = {
            let table = self.read();
            // No number is reassigned while the lock is held.
            table
                .find(identity)
                .and_then(|number| Some((number, self.slots.get(usize::from(number))?.enter())))
        };
        let found = found.or_else(|| {
            let mut table = self.write();
            let number = table.find(identity).or_else(|| table.add(identity, &self.slots))?;
            Some((number, self.slots.get(usize::from(number))?.enter()))
        });
        let Some((number, is_introduced)) = found else { return CallerNumber::Full };
        self.last.store(number, Ordering::Relaxed);
        CallerNumber::new(number, is_introduced)
    }

    /// Records that the server knows the number, which is in use.
    pub(crate) fn set_introduced(&self, caller: CallerId) {
        if let Some(slot) = self.slots.get(usize::from(caller.0)) {
            slot.introduced.store(true, Ordering::Release);
        }
    }

    /// Ends a use: the request was answered, will never be sent, or is in the ring and nothing waits for its
    /// reply.
    #[inline]
    pub(crate) fn leave(&self, caller: CallerId) {
        if let Some(slot) = self.slots.get(usize::from(caller.0)) {
            slot.uses.fetch_sub(1, Ordering::Release);
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Table> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CallerNumber {
    fn new(number: u16, is_introduced: bool) -> Self {
        let caller = CallerId(number);
        if is_introduced { Self::Introduced(caller) } else { Self::NotIntroduced(caller) }
    }
}

impl Default for Slot {
    fn default() -> Self {
        Self {
            uses: AtomicU32::new(VACANT),
            user: AtomicU32::new(0),
            group: AtomicU32::new(0),
            has_groups: AtomicBool::new(false),
            introduced: AtomicBool::new(false),
        }
    }
}

impl Slot {
    /// Adds a use if the number has this identity, and returns `true` if the server knows it. Otherwise
    /// returns `None`, also for an identity with supplementary groups, because only the table stores those.
    #[inline]
    fn enter_as(&self, identity: &Identity) -> Option<bool> {
        // The identity is checked before a use is added, because even a brief use prevents reassignment.
        if identity.groups.is_some() || !self.stands_for(identity) {
            return None;
        }
        // While the use is counted, the identity cannot change, unless the number is vacant.
        let is_vacant = self.uses.fetch_add(1, Ordering::Acquire) & VACANT != 0;
        if is_vacant || !self.stands_for(identity) {
            self.uses.fetch_sub(1, Ordering::Release);
            return None;
        }
        Some(self.introduced.load(Ordering::Acquire))
    }

    #[inline]
    fn stands_for(&self, identity: &Identity) -> bool {
        self.user.load(Ordering::Relaxed) == identity.uid
            && self.group.load(Ordering::Relaxed) == identity.gid
            && !self.has_groups.load(Ordering::Relaxed)
    }

    /// Adds a use of a number that has an identity. Returns `true` if the server knows that identity.
    fn enter(&self) -> bool {
        self.uses.fetch_add(1, Ordering::Relaxed);
        self.introduced.load(Ordering::Acquire)
    }

    /// Removes the identity if no request uses the number. The caller has the table's write lock.
    fn vacate(&self) -> bool {
        self.uses.compare_exchange(0, VACANT, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Assigns an identity to a vacant number. The caller has the table's write lock.
    fn occupy(&self, identity: &Identity) {
        self.user.store(identity.uid, Ordering::Relaxed);
        self.group.store(identity.gid, Ordering::Relaxed);
        self.has_groups.store(identity.groups.is_some(), Ordering::Relaxed);
        self.introduced.store(false, Ordering::Relaxed);
        // The flag is subtracted rather than stored, because a thread may be about to undo a use.
        self.uses.fetch_sub(VACANT, Ordering::Release);
    }
}

impl Table {
    fn is(&self, number: u16, identity: &Identity) -> bool {
        self.identities.get(usize::from(number)).is_some_and(|found| found == identity)
    }

    fn find(&self, identity: &Identity) -> Option<u16> {
        let numbers = self.by_user.get(&(identity.uid, identity.gid))?;
        numbers.iter().copied().find(|&number| self.is(number, identity))
    }

    /// Assigns a number to an identity: a new one, or one without uses. `None` if all are in use.
    fn add(&mut self, identity: &Identity, slots: &[Slot]) -> Option<u16> {
        let number = match u16::try_from(self.identities.len()).ok() {
            Some(number) if usize::from(number) < slots.len() => {
                self.identities.push(identity.clone());
                number
            }
            _ => {
                let number = self.vacate(slots)?;
                let place = self.identities.get_mut(usize::from(number))?;
                let former = std::mem::replace(place, identity.clone());
                let user = (former.uid, former.gid);
                if let Some(numbers) = self.by_user.get_mut(&user) {
                    numbers.retain(|other| *other != number);
                    if numbers.is_empty() {
                        self.by_user.remove(&user);
                    }
                }
                number
            }
        };
        self.by_user.entry((identity.uid, identity.gid)).or_default().push(number);
        slots.get(usize::from(number))?.occupy(identity);
        Some(number)
    }

    fn vacate(&mut self, slots: &[Slot]) -> Option<u16> {
        let len = slots.len();
        let mut numbers = (0..len).map(|step| (self.hand + step) % len);
        let found = numbers.find(|&at| slots[at].vacate())?;
        self.hand = found + 1;
        u16::try_from(found).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::CallerNumber::{Full, Introduced, NotIntroduced};
    use super::*;

    fn user(uid: u32, groups: &[u32]) -> Identity {
        Identity { uid, gid: 1, groups: (!groups.is_empty()).then(|| groups.into()) }
    }

    #[test]
    fn identity_keeps_its_number_and_groups_distinguish() {
        let callers = Callers::new(8);
        assert_eq!(callers.enter(&user(1, &[])), NotIntroduced(CallerId(0)));
        assert_eq!(callers.enter(&user(1, &[5])), NotIntroduced(CallerId(1)));
        callers.set_introduced(CallerId(0));
        assert_eq!(callers.enter(&user(1, &[])), Introduced(CallerId(0)));
        assert_eq!(callers.enter(&user(1, &[5])), NotIntroduced(CallerId(1)));
    }

    #[test]
    fn a_number_in_use_is_not_reused() {
        let callers = Callers::new(2);
        for uid in 1..=2 {
            assert!(matches!(callers.enter(&user(uid, &[])), NotIntroduced(_)));
        }
        callers.set_introduced(CallerId(1));
        assert_eq!(callers.enter(&user(3, &[])), Full);
        callers.leave(CallerId(1));
        assert_eq!(callers.enter(&user(3, &[])), NotIntroduced(CallerId(1)), "the server must be told anew");
        assert_eq!(callers.enter(&user(2, &[])), Full);
    }

    #[test]
    fn reassigned_number_is_not_used_for_former_identity() {
        let callers = Callers::new(1);
        let known = |uid: u32, groups: &[u32]| {
            let entered = callers.enter(&user(uid, groups));
            callers.set_introduced(CallerId(0));
            callers.leave(CallerId(0));
            entered
        };
        assert_eq!(known(1, &[]), NotIntroduced(CallerId(0)));
        assert_eq!(known(1, &[]), Introduced(CallerId(0)));
        for (uid, groups) in [(1, &[5][..]), (1, &[]), (2, &[]), (1, &[])] {
            let entered = known(uid, groups);
            assert_eq!(entered, NotIntroduced(CallerId(0)), "{uid} {groups:?}: the server must be told");
        }
    }

    #[test]
    fn concurrent_users_never_share_a_number() {
        const THREADS: u32 = 4;
        let callers = Callers::new(2);
        let bearers: [AtomicU32; 2] = Default::default();
        std::thread::scope(|scope| {
            for uid in 1..=THREADS {
                let (callers, bearers) = (&callers, &bearers);
                scope.spawn(move || {
                    for _ in 0..20_000 {
                        let (Introduced(caller) | NotIntroduced(caller)) = callers.enter(&user(uid, &[]))
                        else {
                            std::thread::yield_now();
                            continue;
                        };
                        let bearer = &bearers[usize::from(caller.0)];
                        assert_eq!(bearer.swap(uid, Ordering::SeqCst), 0);
                        bearer.store(0, Ordering::SeqCst);
                        callers.leave(caller);
                    }
                });
            }
        });
    }
}
