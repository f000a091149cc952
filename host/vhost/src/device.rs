//! Interface of a virtio device.

use super::chain::Chain;
use super::config_change::ConfigChange;
use super::fd_store::FdStore;
use std::borrow::Cow;
use std::fmt;
use tombolo_mem::Region;

/// A virtio device for one guest: one value per connected guest, dropped when the guest has disconnected and
/// the last [`handle`](Device::handle) has returned. Pending chains may outlive it.
pub trait Device: Send + Sync + 'static {
    /// Returns the name for the log and for threads.
    fn name(&self) -> &str;

    /// Returns the device-specific feature bits (virtio 1.2, chapter 5). The connection adds those of the
    /// transport, among them version 1, indirect descriptors and event index.
    fn features(&self) -> u64 {
        0
    }

    /// Returns the configuration space, little-endian. Reads beyond its end return zeros.
    fn config(&self) -> Cow<'_, [u8]>;

    /// Returns `true` if every front end reads the configuration space from the device. QEMU itself provides
    /// the configuration space of a file-system device, and refuses any other device that offers none.
    fn offers_config(&self) -> bool {
        true
    }

    /// Sets the means to notify the front end of changes of the configuration space.
    fn set_config_change(&self, _change: ConfigChange) {}

    /// Handles a write to the configuration space. Ignored by devices without writable fields.
    fn write_config(&self, _offset: u32, _bytes: &[u8]) {}

    /// Returns the number of virtqueues; at most 256.
    fn queue_count(&self) -> u16;

    /// Returns the limits of a chain; a chain beyond them stops its queue.
    fn limits(&self) -> ChainLimits {
        ChainLimits::default()
    }

    /// Returns `true` if the guest waits for chains of this queue. Chains of other queues are handled in
    /// batches, up to 2 ms later, which saves kicks and interrupts and leaves the CPU to urgent queues.
    fn is_urgent(&self, _queue: QueueIndex) -> bool {
        true
    }

    /// Receives the negotiated feature bits (the device's and the transport's), usually before any queue
    /// runs.
    fn negotiated(&self, _features: u64) {}

    /// Returns `true` if a request that an earlier process left unanswered may be repeated with the same
    /// effect. In-flight tracking is then offered to front ends.
    fn repeats_requests(&self) -> bool {
        false
    }

    /// Returns `true` if a guest can continue on another device of this kind: once its queues are stopped,
    /// this device has no state that the guest needs. The dirty log of live migration is then offered.
    fn can_migrate(&self) -> bool {
        false
    }

    /// Returns the size of the device's own part of the in-flight area, for state that the next process
    /// needs. A page of it takes memory once it is written.
    fn state_bytes(&self) -> usize {
        0
    }

    /// Receives the device's part of the in-flight area: zeros if the area is new, otherwise as an earlier
    /// process left it. Called while no queue runs, if the front end provides an area. The front end may have
    /// changed the memory, unless it is the server's own keeper, which also provides a descriptor store. An
    /// error disconnects the front end.
    fn set_state_memory(
        &self,
        _memory: Region,
        _store: Option<FdStore>,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Ok(())
    }

    /// Handles one request. Called on the queue's thread, for one chain at a time; queues run concurrently.
    /// Slow work must be moved to another thread with the chain's token, because the next request waits until
    /// this returns.
    fn handle(&self, queue: QueueIndex, chain: Chain);

    /// Handles the end of a batch of chains, on the queue's thread. A device that gathers requests submits
    /// them.
    fn batch_handled(&self, _queue: QueueIndex) {}

    /// Prepares for the stop of a queue, which then waits for its pending requests. A device whose requests
    /// may wait for other guests interrupts them.
    fn queue_stopping(&self) {}

    /// Handles the stop of the last running queue: the driver was unbound, or the guest was paused, has
    /// rebooted or disconnected. Unless it has disconnected, queues may start again.
    fn stopped(&self) {}
}

/// Number of a virtqueue, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueIndex(pub u16);

impl fmt::Display for QueueIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Limits of a descriptor chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChainLimits {
    /// Maximum number of descriptors, including those of an indirect table.
    pub descriptors_max: u16,
    /// Maximum number of bytes, readable and writable together.
    pub bytes_max: u32,
}

/// Defaults: 1,024 descriptors, as in QEMU, and 16 MiB.
impl Default for ChainLimits {
    fn default() -> ChainLimits {
        ChainLimits { descriptors_max: 1024, bytes_max: 16 << 20 }
    }
}
