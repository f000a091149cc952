//! INIT: the first request of a session.

use super::{sizes, wire_struct};

wire_struct! {
    /// `struct fuse_init_in`. Kernels before 7.36 send the first 16 bytes only.
    pub struct InitIn {
        pub major: u32,
        pub minor: u32,
        /// The most the kernel would read ahead, in bytes.
        pub max_readahead: u32,
        /// Capabilities 0 to 31.
        pub flags: u32,
        /// Capabilities 32 to 63, if INIT_EXT is among the flags.
        pub flags2: u32,
        pub unused: [u32; 11],
    }
}

wire_struct! {
    /// `struct fuse_init_out`.
    pub struct InitOut {
        pub major: u32,
        pub minor: u32,
        /// The most the kernel may read ahead, in bytes.
        pub max_readahead: u32,
        /// Capabilities 0 to 31 that both sides use.
        pub flags: u32,
        /// How many background requests may be outstanding; 0 leaves the kernel's own number.
        pub max_background: u16,
        /// From how many on the kernel says it is congested; 0 leaves the kernel's own number.
        pub congestion_threshold: u16,
        /// The largest WRITE in bytes.
        pub max_write: u32,
        /// Granularity of time stamps in nanoseconds.
        pub time_gran: u32,
        /// The largest request in pages, if MAX_PAGES is used.
        pub max_pages: u16,
        /// log2 of the alignment of SETUPMAPPING offsets, if MAP_ALIGNMENT is used.
        pub map_alignment: u16,
        /// Capabilities 32 to 63 that both sides use.
        pub flags2: u32,
        /// How deep a passthrough backing file may itself be stacked.
        pub max_stack_depth: u32,
        /// After how many seconds the kernel gives a request up, if REQUEST_TIMEOUT is used.
        pub request_timeout: u16,
        pub unused: [u16; 11],
    }
}

sizes!(InitIn = 64, InitOut = 64);

/// What a kernel before 7.36 sends of [`InitIn`].
pub const INIT_IN_SHORT: usize = 16;
