//! STATFS, ACCESS, INTERRUPT, IOCTL, POLL, BMAP, SYNCFS.

use super::{sizes, wire_struct};

wire_struct! {
    /// `struct fuse_kstatfs`: answers STATFS.
    pub struct StatfsOut {
        /// Size of the file system in units of `frsize`.
        pub blocks: u64,
        /// Free blocks.
        pub bfree: u64,
        /// Blocks that an ordinary user may use.
        pub bavail: u64,
        pub files: u64,
        /// Free inodes.
        pub ffree: u64,
        pub bsize: u32,
        /// Longest name in bytes.
        pub namelen: u32,
        /// Unit of the block counts in bytes.
        pub frsize: u32,
        pub padding: u32,
        pub spare: [u32; 6],
    }
}

wire_struct! {
    /// `struct fuse_access_in`.
    pub struct AccessIn {
        /// `R_OK`, `W_OK`, `X_OK`.
        pub mask: u32,
        pub padding: u32,
    }
}

wire_struct! {
    /// `struct fuse_interrupt_in`.
    pub struct InterruptIn {
        /// The request that the caller no longer waits for.
        pub unique: u64,
    }
}

wire_struct! {
    /// `struct fuse_ioctl_in`; `in_size` bytes follow.
    pub struct IoctlIn {
        pub fh: u64,
        /// `FUSE_IOCTL_*`.
        pub flags: u32,
        pub cmd: u32,
        /// The caller's third argument.
        pub arg: u64,
        /// Bytes sent along.
        pub in_size: u32,
        /// The most bytes that may be answered.
        pub out_size: u32,
    }
}

wire_struct! {
    /// `struct fuse_ioctl_out`; data follows.
    pub struct IoctlOut {
        /// What ioctl(2) returns.
        pub result: i32,
        /// `FUSE_IOCTL_*`.
        pub flags: u32,
        /// For a retry: how many input vectors follow.
        pub in_iovs: u32,
        /// For a retry: how many output vectors follow.
        pub out_iovs: u32,
    }
}

wire_struct! {
    /// `struct fuse_poll_in`.
    pub struct PollIn {
        pub fh: u64,
        /// Names the waiter in a wake-up notification.
        pub kh: u64,
        /// 1: notify when the state changes.
        pub flags: u32,
        /// Events asked for, as in poll(2).
        pub events: u32,
    }
}

wire_struct! {
    /// `struct fuse_poll_out`.
    pub struct PollOut {
        /// Events that hold, as in poll(2).
        pub revents: u32,
        pub padding: u32,
    }
}

wire_struct! {
    /// `struct fuse_bmap_in`.
    pub struct BmapIn {
        /// Block in the file.
        pub block: u64,
        pub blocksize: u32,
        pub padding: u32,
    }
}

wire_struct! {
    /// `struct fuse_syncfs_in`.
    pub struct SyncfsIn {
        pub padding: u64,
    }
}

sizes!(
    StatfsOut = 80,
    AccessIn = 8,
    InterruptIn = 8,
    IoctlIn = 32,
    IoctlOut = 16,
    PollIn = 24,
    PollOut = 8,
    BmapIn = 16,
    SyncfsIn = 8,
);
