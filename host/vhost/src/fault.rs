use tombolo_mem::OutOfBounds;

/// A guest broke the rules of a virtqueue. The queue stops; the guest has to reset it before it runs again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum QueueFault {
    /// The available index is further ahead than the queue is long.
    #[error("the available index jumped from {from} to {to} in a queue of {size}")]
    AvailableIndex {
        /// The index up to which chains were taken.
        from: u16,
        /// What the guest claims.
        to: u16,
        /// The queue's size.
        size: u16,
    },
    /// A descriptor number that the table does not have.
    #[error("descriptor {index} lies outside of a table of {size}")]
    DescriptorIndex {
        /// The number.
        index: u16,
        /// Entries in the table.
        size: u16,
    },
    /// More chains handed over than there are descriptors to make them of.
    #[error("more chains are outstanding than the queue's {size} descriptors can make")]
    TooManyOutstanding {
        /// The queue's size.
        size: u16,
    },
    /// The chain visits more descriptors than its table has: it loops.
    #[error("a chain loops through its table of {size} descriptors")]
    Loop {
        /// Entries in the table.
        size: u16,
    },
    /// The chain has more descriptors than the device allows.
    #[error("a chain has more than {max} descriptors")]
    TooManyDescriptors {
        /// The device's limit.
        max: u16,
    },
    /// The chain has more bytes than the device allows.
    #[error("a chain names more than {max} bytes")]
    TooManyBytes {
        /// The device's limit.
        max: u32,
    },
    /// A descriptor of length 0.
    #[error("descriptor {index} is empty")]
    Empty {
        /// The number.
        index: u16,
    },
    /// A buffer that does not lie in the guest's memory.
    #[error("{len} bytes at guest address {address:#x} are not in the guest's memory")]
    OutsideMemory {
        /// Guest-physical address.
        address: u64,
        /// Length in bytes.
        len: u32,
    },
    /// A readable buffer behind a writable one (virtio 1.2, 2.7.4.2).
    #[error("descriptor {index} is readable but follows a writable one")]
    ReadableAfterWritable {
        /// The number.
        index: u16,
    },
    /// An indirect table although the feature was not negotiated.
    #[error("an indirect table without the feature")]
    IndirectUnexpected,
    /// An indirect table inside an indirect table, or one that also has a next descriptor (virtio 1.2,
    /// 2.7.5.3.1).
    #[error("an indirect table where none is allowed")]
    IndirectMisplaced,
    /// An indirect table whose length is not a multiple of an entry, or beyond the 32,768 entries that can be
    /// named.
    #[error("an indirect table of {len} bytes")]
    IndirectLength {
        /// Length in bytes.
        len: u32,
    },
    /// The memory beneath the queue was taken away: its file was truncated.
    #[error("the guest's memory was truncated under the queue")]
    MemoryGone,
    /// A ring does not lie where it can be used.
    #[error("a ring is unusable")]
    Ring(#[from] OutOfBounds),
    /// The device panicked on a request.
    #[error("the device failed on a request")]
    Device,
}
