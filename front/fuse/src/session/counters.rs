//! Request counters of a session.

use std::sync::atomic::{AtomicU64, Ordering};
use tombolo_wire_fuse::Opcode;

/// Upper bound of all opcodes.
const OPERATIONS: usize = 64;

/// Counts since the session began. Readable at any time from any thread; values read together need not belong
/// to the same moment.
#[derive(Debug)]
pub struct Counters {
    requests: [AtomicU64; OPERATIONS],
    pub(super) refused: AtomicU64,
    pub(super) later: AtomicU64,
}

impl Default for Counters {
    fn default() -> Self {
        Counters {
            requests: [const { AtomicU64::new(0) }; OPERATIONS],
            refused: AtomicU64::new(0),
            later: AtomicU64::new(0),
        }
    }
}

impl Counters {
    pub(super) fn count(&self, opcode: Opcode) {
        if let Some(counter) = self.requests.get(opcode as usize) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the number of requests of one kind.
    pub fn requests(&self, opcode: Opcode) -> u64 {
        self.requests.get(opcode as usize).map_or(0, |counter| counter.load(Ordering::Relaxed))
    }

    /// Iterates over the kinds with at least one request: name and count.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Opcode::ALL
            .iter()
            .map(|&opcode| (opcode.name(), self.requests(opcode)))
            .filter(|(_, count)| *count > 0)
    }

    /// Returns the number of requests that could not be decoded.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Returns the number of requests that could not be answered at once.
    pub fn later(&self) -> u64 {
        self.later.load(Ordering::Relaxed)
    }
}
