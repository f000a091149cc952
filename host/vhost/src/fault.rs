//! Faults that stop a virtqueue.

use tombolo_mem::OutOfBounds;

/// Fault of a virtqueue, mostly a protocol violation by the guest. The queue does not run again before the
/// front end has stopped it (GET_VRING_BASE), as when the guest resets the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum QueueFault {
    /// The available index is further ahead than the queue's size.
    #[error("the available index jumped from {from} to {to} in a queue of {size}")]
    AvailableIndex {
        /// Index up to which chains were taken.
        from: u16,
        /// Index claimed by the guest.
        to: u16,
        /// Size of the queue.
        size: u16,
    },
    /// A descriptor index beyond the table.
    #[error("descriptor {index} is outside of a table of {size}")]
    DescriptorIndex {
        /// The index.
        index: u16,
        /// Number of entries in the table.
        size: u16,
    },
    /// More outstanding chains than descriptors.
    #[error("more chains are outstanding than the queue's {size} descriptors can make")]
    TooManyOutstanding {
        /// Size of the queue.
        size: u16,
    },
    /// The chain has more descriptors than its table: it loops.
    #[error("a chain loops through its table of {size} descriptors")]
    Loop {
        /// Number of entries in the table.
        size: u16,
    },
    /// The chain has more descriptors than the device allows.
    #[error("a chain has more than {max} descriptors")]
    TooManyDescriptors {
        /// The device's limit.
        max: u16,
    },
    /// The chain has more bytes than the device allows.
    #[error("a chain has more than {max} bytes")]
    TooManyBytes {
        /// The device's limit.
        max: u32,
    },
    /// A descriptor of length 0.
    #[error("descriptor {index} is empty")]
    Empty {
        /// The index.
        index: u16,
    },
    /// A buffer outside of the guest's memory.
    #[error("{len} bytes at guest address {address:#x} are not in the guest's memory")]
    OutsideMemory {
        /// Guest-physical address.
        address: u64,
        /// Length in bytes.
        len: u32,
    },
    /// A readable buffer after a writable one (virtio 1.2, 2.7.4.2).
    #[error("descriptor {index} is readable but follows a writable one")]
    ReadableAfterWritable {
        /// The index.
        index: u16,
    },
    /// An indirect table although the feature was not negotiated.
    #[error("an indirect table, which was not negotiated")]
    IndirectUnexpected,
    /// An indirect table inside an indirect table, or with a next descriptor (virtio 1.2, 2.7.5.3.1).
    #[error("an indirect table where none is allowed")]
    IndirectMisplaced,
    /// An indirect table that is empty, whose length is not a multiple of an entry, or that has more than
    /// 65,535 entries.
    #[error("an indirect table has an invalid length of {len} bytes")]
    IndirectLength {
        /// Length in bytes.
        len: u32,
    },
    /// A file of the guest's memory, or the dirty log, was truncated.
    #[error("the guest's memory was truncated")]
    MemoryGone,
    /// A ring, or a part of the in-flight area, is not accessible.
    #[error("a ring is not accessible")]
    Ring(#[from] OutOfBounds),
    /// The device panicked on a request or at the end of a batch.
    #[error("the device failed on a request")]
    Device,
}
