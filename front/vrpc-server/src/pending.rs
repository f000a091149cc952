//! Requests that are answered later, so that an INTERRUPT finds them.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tombolo_core::Interrupt;

/// The requests of one link that pend, by id: at most as many as the link has slots.
#[derive(Debug, Default)]
pub(crate) struct Pending(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    requests: HashMap<u32, Interrupt>,
    ended: bool,
}

impl Pending {
    /// From now on an INTERRUPT finds the request. If the link has ended it is raised at once.
    pub(crate) fn add(&self, id: u32, interrupt: &Interrupt) {
        let ended = {
            let mut table = self.table();
            table.requests.insert(id, interrupt.clone());
            table.ended
        };
        if ended {
            interrupt.raise();
        }
    }

    /// The request is finished.
    pub(crate) fn remove(&self, id: u32) {
        self.table().requests.remove(&id);
    }

    /// The caller of a request wishes that it end. One that is answered already is not found.
    pub(crate) fn interrupt(&self, id: u32) {
        let found = self.table().requests.get(&id).cloned();
        // Outside the lock: it may go on with the request on this thread.
        if let Some(interrupt) = found {
            interrupt.raise();
        }
    }

    /// Interrupts the requests that pend, and those that may still be added.
    pub(crate) fn end(&self) {
        let all: Vec<_> = {
            let mut table = self.table();
            table.ended = true;
            table.requests.values().cloned().collect()
        };
        all.iter().for_each(Interrupt::raise);
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_pending_at_or_after_the_end_of_the_link_are_interrupted() {
        let pending = Pending::default();
        let (early, late) = (Interrupt::new(), Interrupt::new());
        pending.add(1, &early);
        pending.end();
        pending.add(2, &late);
        assert!(early.is_raised() && late.is_raised());
    }

    #[test]
    fn an_interrupt_hits_the_id_that_it_names_and_no_other() {
        let pending = Pending::default();
        let (first, second) = (Interrupt::new(), Interrupt::new());
        pending.add(8, &first);
        pending.add(9, &second);
        pending.remove(8);
        pending.interrupt(8);
        pending.interrupt(9);
        assert!(!first.is_raised() && second.is_raised());
    }
}
