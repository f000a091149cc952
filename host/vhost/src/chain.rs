use super::queue::Queue;
use std::sync::Arc;
use tombolo_mem::{Sink, Source};

/// One request of a guest: a checked descriptor chain. The memory stays valid as long as any part of it is
/// held, even when the guest leaves.
#[derive(Debug)]
pub struct Chain {
    /// What the guest wants the device to read: headers, data of a write.
    pub readable: Source,
    /// Where the device writes its answer.
    pub writable: Sink,
    /// To hand the chain back with.
    pub token: ChainToken,
}

impl Chain {
    /// Hands the chain back with `written` bytes at the beginning of [`writable`](Self::writable).
    pub fn complete(self, written: usize) {
        self.token.complete(written);
    }
}

/// The duty to hand one chain back to its guest: from any thread, at any time, in any order. Dropped without
/// [`complete`](Self::complete), it hands the chain back with nothing written, so that the guest does not
/// wait for ever.
#[derive(Debug)]
pub struct ChainToken {
    queue: Arc<Queue>,
    /// Which run of the queue it came from: a queue that was stopped since is not written to.
    run: u64,
    head: u16,
    /// The writable part's length; 0 once handed back.
    capacity: u32,
    done: bool,
}

impl ChainToken {
    pub(super) fn new(queue: Arc<Queue>, run: u64, head: u16, capacity: u32) -> ChainToken {
        ChainToken { queue, run, head, capacity, done: false }
    }

    /// Hands the chain back: the first `written` bytes of the writable part are the answer. More than there
    /// is room for counts as all of it.
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
