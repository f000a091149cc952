//! Clients, in this process, of servers at a socket. Two use the queues of a virtio-fs or virtio-blk server
//! as a guest's kernel does, without a virtual machine; one speaks NBD.

mod disk;
mod fuse;
mod nbd;

pub use disk::{DiskGuest, Requests as DiskRequests};
pub use fuse::{Guest, SharedGuest, create_unlink, getattr, lookup, open_release, outstanding, read, write};
pub use nbd::NbdClient;
pub use tombolo_vhost_driver::Wait;
use tombolo_vhost_driver::{DriverQueue, Part};

use crate::error::{Doing, Error, Result};

/// Time limit of a reply, after which the server counts as dead.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(10);
/// Memory of a queue besides request data: rings, indirect tables, headers.
const OVERHEAD_BYTES: usize = 1 << 20;

/// A queue, with the slot of each chain in it: the index of the buffers that the chain's request uses.
struct Slots {
    queue: DriverQueue,
    slot_of: Vec<usize>,
}

impl Slots {
    fn new(queue: DriverQueue) -> Self {
        let slot_of = vec![0; usize::from(queue.size())];
        Self { queue, slot_of }
    }

    /// Adds a chain without notifying the server.
    fn add(&mut self, slot: usize, parts: &[Part]) -> Result<()> {
        let chain = self.queue.add(parts).ok_or_else(|| no_room("the chain"))?;
        if let Some(place) = self.slot_of.get_mut(usize::from(chain)) {
            *place = slot;
        }
        Ok(())
    }

    /// Waits for a reply; returns its slot and length.
    fn finish(&mut self) -> Result<(usize, usize)> {
        let used = self.queue.wait_used(PATIENCE).doing(|| "wait for an answer".to_owned())?;
        let slot = self.slot_of.get(usize::from(used.head)).copied().unwrap_or_default();
        Ok((slot, used.written as usize))
    }
}

/// A guest with concurrent requests in slots.
trait Pipeline {
    fn slots(&mut self) -> &mut Slots;

    /// Waits for a successful reply; returns its slot.
    fn finish_one(&mut self) -> Result<usize>;

    /// Makes `count` requests with up to `window` in flight.
    fn stream(
        &mut self,
        count: u64,
        window: usize,
        mut submit: impl FnMut(&mut Self, usize) -> Result<()>,
    ) -> Result<()> {
        let window = window.min(usize::try_from(count).unwrap_or(usize::MAX));
        (0..window).try_for_each(|slot| submit(self, slot))?;
        self.slots().queue.kick();
        let mut unsent = count - window as u64;
        for _ in 0..count {
            let slot = self.finish_one()?;
            if unsent > 0 {
                unsent -= 1;
                submit(self, slot)?;
                self.slots().queue.kick();
            }
        }
        Ok(())
    }
}

fn no_room(what: &str) -> Error {
    Error::Server { program: "driver".to_owned(), what: format!("no space for {what}") }
}
