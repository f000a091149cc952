use super::chain::Chain;
use super::config_change::ConfigChange;
use super::fd_store::FdStore;
use std::borrow::Cow;
use std::fmt;
use tombolo_mem::Region;

/// A virtio device, as one guest sees it. One value per connected guest; it is dropped when the guest leaves,
/// after the last [`handle`](Device::handle) has returned. Chains that are still pending then may outlive it.
pub trait Device: Send + Sync + 'static {
    /// What log lines and thread names call it.
    fn name(&self) -> &str;

    /// The feature bits of this kind of device (virtio 1.2, chapter 5). The host adds the transport's own:
    /// version 1, indirect descriptors, event index.
    fn features(&self) -> u64 {
        0
    }

    /// The device configuration space, little-endian. Reads beyond its end give zeroes.
    fn config(&self) -> Cow<'_, [u8]>;

    /// Whether every front end reads the configuration space from us. QEMU makes that of a file system
    /// itself, and refuses every other device that does not have one.
    fn offers_config(&self) -> bool {
        true
    }

    /// How to tell the front end, from now on, that the configuration space has changed.
    fn config_changes_by(&self, _change: ConfigChange) {}

    /// The driver writes the configuration space. Ignored unless a device has writable fields.
    fn write_config(&self, _offset: u32, _bytes: &[u8]) {}

    /// How many virtqueues there are; at most 256.
    fn queue_count(&self) -> u16;

    /// What a chain may hold at most; a chain beyond stops its queue.
    fn limits(&self) -> ChainLimits {
        ChainLimits::default()
    }

    /// Whether the guest waits for what it hands over in this queue. Chains of a queue that is not urgent are
    /// taken together, some of them 2 ms later: so they cost the guest few kicks and interrupts, and keep no
    /// processor from what is urgent.
    fn is_urgent(&self, _queue: QueueIndex) -> bool {
        true
    }

    /// The driver has accepted these feature bits (its own and the transport's); no queue runs yet.
    fn negotiated(&self, _features: u64) {}

    /// Whether a request that an earlier process left unanswered may be performed again: it has the same
    /// effect as once. Then front ends that keep such requests for the next process are told that this one
    /// takes them.
    fn repeats_requests(&self) -> bool {
        false
    }

    /// Whether a guest can go on with another device of its kind: nothing that it depends on is in this one
    /// once its queues rest. Then the front end is told that live migration's dirty log is kept.
    fn can_migrate(&self) -> bool {
        false
    }

    /// How many bytes it wants behind the queues' parts of an area in which requests under way are kept, for
    /// what the next process must know besides. Pages of them take memory once they are written.
    fn kept_bytes(&self) -> usize {
        0
    }

    /// Those bytes: zeroes if the area is new, else what an earlier process has left there. Called before any
    /// queue starts. What holds the area may have changed them, unless that is the server's own keeper, which
    /// has a store for descriptors too. An error cuts the front end off.
    fn keep_in(
        &self,
        _memory: Region,
        _store: Option<FdStore>,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Ok(())
    }

    /// One request. Called on the queue's own thread, for one chain after the other; different queues call at
    /// the same time. What can take long must be moved elsewhere with the chain's token: the next request
    /// waits until this returns.
    fn handle(&self, queue: QueueIndex, chain: Chain);

    /// The chains that the guest had ready in this queue have been handled, or as many of them as are taken
    /// together. Called on the queue's own thread; a device that gathers what it hands over does so now.
    fn batch_handled(&self, _queue: QueueIndex) {}

    /// A queue is to rest: what it has under way is waited for next. A device whose requests may wait for
    /// other guests ends those now.
    fn is_to_rest(&self) {}

    /// The last running queue has stopped: the guest's driver was unbound, the guest rebooted, or it left.
    /// Queues may start again afterwards.
    fn stopped(&self) {}
}

/// The number of a virtqueue, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueIndex(pub u16);

impl fmt::Display for QueueIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Bounds of one descriptor chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChainLimits {
    /// Descriptors, those of an indirect table included.
    pub descriptors_max: u16,
    /// Bytes, readable and writable together.
    pub bytes_max: u32,
}

/// 1,024 descriptors, as QEMU has it, and 16 MiB.
impl Default for ChainLimits {
    fn default() -> ChainLimits {
        ChainLimits { descriptors_max: 1024, bytes_max: 16 << 20 }
    }
}
