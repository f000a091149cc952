//! Numbers for identities: the server is told once which identity a number stands for.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use smallvec::SmallVec;
use tombolo_core::Identity;
use tombolo_wire_vrpc::CallerId;

/// The numbers of one link. A number is given to another identity only when no request that bears it can still be on its way: the
/// server would perform it on behalf of the wrong one.
#[derive(Debug)]
pub(crate) struct Callers {
    table: RwLock<Table>,
    /// The last caller; often also the next one.
    last: AtomicU16,
    max: u16,
}

#[derive(Debug, Default)]
struct Table {
    slots: Vec<Slot>,
    /// Numbers by user and group; those may differ in supplementary groups.
    by_user: HashMap<(u32, u32), SmallVec<[u16; 2]>>,
    /// Where the search for a number to give anew goes on.
    hand: usize,
}

#[derive(Debug)]
struct Slot {
    identity: Identity,
    /// Requests that bear the number.
    uses: AtomicU32,
    /// The server has said that it knows.
    known: AtomicBool,
}

/// A number for a request. It counts as used until [`Callers::leave`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entered {
    /// The server knows it.
    Known(CallerId),
    /// The server must know it before a request bears it.
    Unknown(CallerId),
    /// All numbers are in use.
    Full,
}

impl Callers {
    pub(crate) fn new(max: u16) -> Self {
        Self { table: RwLock::default(), last: AtomicU16::new(0), max }
    }

    /// The number of an identity, for one request.
    pub(crate) fn enter(&self, identity: &Identity) -> Entered {
        {
            let table = self.read();
            let last = self.last.load(Ordering::Relaxed);
            let found = table.is(last, identity).then_some(last).or_else(|| table.find(identity));
            if let Some(entered) = found.and_then(|number| table.enter(number)) {
                if let Some(number) = found {
                    self.last.store(number, Ordering::Relaxed);
                }
                return entered;
            }
        }
        let mut table = self.write();
        let found = table.find(identity).or_else(|| table.add(identity, self.max));
        found.and_then(|number| table.enter(number)).unwrap_or(Entered::Full)
    }

    /// The server knows the number, which is in use.
    pub(crate) fn is_known(&self, caller: CallerId) {
        if let Some(slot) = self.read().slots.get(usize::from(caller.0)) {
            slot.known.store(true, Ordering::Release);
        }
    }

    /// The request was answered, or will never be sent.
    pub(crate) fn leave(&self, caller: CallerId) {
        if let Some(slot) = self.read().slots.get(usize::from(caller.0)) {
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

impl Table {
    fn is(&self, number: u16, identity: &Identity) -> bool {
        self.slots.get(usize::from(number)).is_some_and(|slot| slot.identity == *identity)
    }

    fn find(&self, identity: &Identity) -> Option<u16> {
        let numbers = self.by_user.get(&(identity.uid, identity.gid))?;
        numbers.iter().copied().find(|&number| self.is(number, identity))
    }

    fn enter(&self, number: u16) -> Option<Entered> {
        let slot = self.slots.get(usize::from(number))?;
        slot.uses.fetch_add(1, Ordering::Relaxed);
        let caller = CallerId(number);
        let known = slot.known.load(Ordering::Acquire);
        Some(if known { Entered::Known(caller) } else { Entered::Unknown(caller) })
    }

    /// A number that is free, or that no request bears.
    fn add(&mut self, identity: &Identity, max: u16) -> Option<u16> {
        let slot =
            Slot { identity: identity.clone(), uses: AtomicU32::new(0), known: AtomicBool::new(false) };
        let number = match u16::try_from(self.slots.len()).ok().filter(|&len| len < max) {
            Some(number) => {
                self.slots.push(slot);
                number
            }
            None => {
                let number = self.unused()?;
                let place = self.slots.get_mut(usize::from(number))?;
                let former = std::mem::replace(place, slot).identity;
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
        Some(number)
    }

    fn unused(&mut self) -> Option<u16> {
        let len = self.slots.len();
        let mut numbers = (0..len).map(|step| (self.hand + step) % len);
        let found = numbers.find(|&at| self.slots[at].uses.load(Ordering::Acquire) == 0)?;
        self.hand = found + 1;
        u16::try_from(found).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(uid: u32, groups: &[u32]) -> Identity {
        Identity { uid, gid: 1, groups: (!groups.is_empty()).then(|| groups.into()) }
    }

    #[test]
    fn an_identity_keeps_its_number_and_groups_tell_identities_apart() {
        let callers = Callers::new(8);
        assert_eq!(callers.enter(&user(1, &[])), Entered::Unknown(CallerId(0)));
        assert_eq!(callers.enter(&user(1, &[5])), Entered::Unknown(CallerId(1)));
        callers.is_known(CallerId(0));
        assert_eq!(callers.enter(&user(1, &[])), Entered::Known(CallerId(0)));
        assert_eq!(callers.enter(&user(1, &[5])), Entered::Unknown(CallerId(1)));
    }

    #[test]
    fn a_number_in_use_is_not_reused() {
        let callers = Callers::new(2);
        for uid in 1..=2 {
            assert!(matches!(callers.enter(&user(uid, &[])), Entered::Unknown(_)));
        }
        callers.is_known(CallerId(1));
        assert_eq!(callers.enter(&user(3, &[])), Entered::Full);
        callers.leave(CallerId(1));
        assert_eq!(
            callers.enter(&user(3, &[])),
            Entered::Unknown(CallerId(1)),
            "the server must be told anew"
        );
        assert_eq!(callers.enter(&user(2, &[])), Entered::Full);
    }
}
