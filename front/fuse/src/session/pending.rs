//! Requests that are answered later, so that an INTERRUPT finds them.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tombolo_core::fs::Interrupt;
use tombolo_wire_fuse::Unique;

/// How many interrupts are remembered whose request is not known yet.
const EARLY_MAX: usize = 64;

/// The requests that pend, by number.
#[derive(Debug, Default)]
pub(super) struct Pending(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    requests: HashMap<Unique, Interrupt>,
    /// Interrupts that overtook their request on another thread. The numbers are never used again, so one that came too
    /// late hits nobody.
    early: VecDeque<Unique>,
}

impl Pending {
    /// From now on an INTERRUPT finds the request. One that came already is raised at once.
    pub(super) fn add(&self, unique: Unique, interrupt: &Interrupt) {
        let overtaken = {
            let mut table = self.table();
            table.requests.insert(unique, interrupt.clone());
            let overtaken = table.early.iter().position(|early| *early == unique);
            overtaken.and_then(|index| table.early.remove(index)).is_some()
        };
        if overtaken {
            interrupt.raise();
        }
    }

    /// The request is answered.
    pub(super) fn remove(&self, unique: Unique) {
        self.table().requests.remove(&unique);
    }

    /// The caller of a request no longer waits.
    pub(super) fn interrupt(&self, unique: Unique) {
        let found = {
            let mut table = self.table();
            let found = table.requests.get(&unique).cloned();
            if found.is_none() {
                if table.early.len() >= EARLY_MAX {
                    table.early.pop_front();
                }
                table.early.push_back(unique);
            }
            found
        };
        // Outside the lock: it may go on with the request on this thread.
        if let Some(interrupt) = found {
            interrupt.raise();
        }
    }

    /// Nobody waits any more.
    pub(super) fn interrupt_all(&self) {
        let all: Vec<_> = self.table().requests.values().cloned().collect();
        all.iter().for_each(Interrupt::raise);
    }

    /// How many pend.
    pub(super) fn len(&self) -> usize {
        self.table().requests.len()
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_that_overtakes_its_request_still_reaches_it() {
        let pending = Pending::default();
        let (first, second) = (Interrupt::new(), Interrupt::new());
        pending.interrupt(Unique(2));
        pending.add(Unique(4), &first);
        pending.add(Unique(2), &second);
        assert!(!first.is_raised());
        assert!(second.is_raised());
        pending.interrupt(Unique(4));
        assert!(first.is_raised());
    }

    #[test]
    fn interrupts_for_nobody_do_not_pile_up() {
        let pending = Pending::default();
        (0..10_000).for_each(|number| pending.interrupt(Unique(number)));
        assert!(pending.table().early.len() <= EARLY_MAX);
    }
}
