//! INIT: the first request of a session.

use super::wire_struct;

wire_struct! {
    /// `struct fuse_init_in`. Kernels before 7.36 send the first 16 bytes only.
    pub struct InitIn: 64 {
        pub major: u32,
        pub minor: u32,
        /// Read-ahead limit of the kernel, in bytes.
        pub max_readahead: u32,
        /// Capabilities 0 to 31.
        pub flags: u32,
        /// Capabilities 32 to 63, if INIT_EXT is set.
        pub flags2: u32,
        pub unused: [u32; 11],
    }

    /// `struct fuse_init_out`.
    pub struct InitOut: 64 {
        pub major: u32,
        pub minor: u32,
        /// Read-ahead limit to be used, in bytes; a larger one than the kernel's has no effect.
        pub max_readahead: u32,
        /// Negotiated capabilities 0 to 31.
        pub flags: u32,
        /// Maximum number of outstanding background requests; 0: the kernel's default.
        pub max_background: u16,
        /// Number of background requests from which the kernel reports congestion; 0: the kernel's default.
        pub congestion_threshold: u16,
        /// Maximum length of the data of a WRITE, in bytes; the kernel raises it to at least a page.
        pub max_write: u32,
        /// Granularity of time stamps, in nanoseconds.
        pub time_gran: u32,
        /// Maximum request in pages, with MAX_PAGES.
        pub max_pages: u16,
        /// log2 of the alignment of SETUPMAPPING offsets, with MAP_ALIGNMENT.
        pub map_alignment: u16,
        /// Negotiated capabilities 32 to 63.
        pub flags2: u32,
        /// Maximum stacking depth of a passthrough backing file.
        pub max_stack_depth: u32,
        /// Timeout of a request, in seconds, after which the kernel aborts the connection; with
        /// REQUEST_TIMEOUT.
        pub request_timeout: u16,
        pub unused: [u16; 11],
    }
}

/// Length of [`InitIn`] from a kernel before 7.36, in bytes.
pub const INIT_IN_SHORT: usize = 16;
