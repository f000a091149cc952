//! Pending requests, for INTERRUPT.

use std::collections::HashMap;
use std::sync::Mutex;

use tombolo_core::{Interrupt, lock};

/// The pending requests of one link by id; at most as many as the link has slots.
#[derive(Debug, Default)]
pub(crate) struct Pending(Mutex<PendingTable>);

#[derive(Debug, Default)]
struct PendingTable {
    requests: HashMap<u32, Interrupt>,
    ended: bool,
}

impl Pending {
    /// Adds a request, and interrupts it at once if the link has ended.
    pub(crate) fn add(&self, id: u32, interrupt: &Interrupt) {
        let ended = {
            let mut table = lock(&self.0);
            table.requests.insert(id, interrupt.clone());
            table.ended
        };
        if ended {
            interrupt.raise();
        }
    }

    /// Removes a finished request.
    pub(crate) fn remove(&self, id: u32) {
        lock(&self.0).requests.remove(&id);
    }

    /// Interrupts a request as its caller has requested; does nothing if the request was answered.
    pub(crate) fn interrupt(&self, id: u32) {
        let found = lock(&self.0).requests.get(&id).cloned();
        // The table is unlocked first, because raising the interrupt may continue the request on this thread.
        if let Some(interrupt) = found {
            interrupt.raise();
        }
    }

    /// Interrupts all pending requests, and those added later.
    pub(crate) fn end(&self) {
        let all: Vec<_> = {
            let mut table = lock(&self.0);
            table.ended = true;
            table.requests.values().cloned().collect()
        };
        all.iter().for_each(Interrupt::raise);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_end_interrupts_pending_requests() {
        let pending = Pending::default();
        let (early, late) = (Interrupt::new(), Interrupt::new());
        pending.add(1, &early);
        pending.end();
        pending.add(2, &late);
        assert!(early.is_raised() && late.is_raised());
    }

    #[test]
    fn interrupt_affects_only_its_request() {
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
