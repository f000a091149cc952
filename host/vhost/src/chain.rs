//! Requests of a guest, as the device gets and returns them.

use super::queue::Queue;
use std::sync::Arc;
use tombolo_mem::{Sink, Source};

/// A guest's request: a checked descriptor chain. Its memory stays valid while any part of it is held, even
/// after the guest has disconnected.
#[derive(Debug)]
pub struct Chain {
    /// Buffers that the device reads: headers, data of a write.
    pub readable: Source,
    /// Buffers for the device's reply.
    pub writable: Sink,
    /// Token that returns the chain to the guest.
    pub token: ChainToken,
}

impl Chain {
    /// Returns the chain with `written` bytes at the beginning of [`writable`](Self::writable).
    pub fn complete(self, written: usize) {
        self.token.complete(written);
    }
}

/// Obligation to return one chain to its guest, from any thread and in any order. Dropped without
/// [`complete`](Self::complete), it returns the chain with nothing written, so that the guest does not wait
/// forever.
#[derive(Debug)]
pub struct ChainToken {
    queue: Arc<Queue>,
    /// Run of the queue in which the chain was taken: a chain of an earlier run is not put on the used ring.
    run: u64,
    head: u16,
    /// Length of the writable part.
    capacity: u32,
    done: bool,
}

impl ChainToken {
    pub(super) fn new(queue: Arc<Queue>, run: u64, head: u16, capacity: u32) -> ChainToken {
        ChainToken { queue, run, head, capacity, done: false }
    }

    /// Returns the chain; the first `written` bytes of the writable part are the reply. A value beyond the
    /// length of that part counts as its length.
    pub fn complete(mut self, written: usize) {
        self.hand_back(written);
    }

    fn hand_back(&mut self, written: usize) {
        self.done = true;
        let written = u32::try_from(written).unwrap_or(u32::MAX).min(self.capacity);
        self.queue.hand_back(self.run, self.head, written);
    }
}

impl Drop for ChainToken {
    fn drop(&mut self) {
        if !self.done {
            self.hand_back(0);
        }
    }
}
