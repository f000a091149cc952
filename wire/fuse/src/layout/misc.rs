//! STATFS, ACCESS, INTERRUPT, IOCTL, POLL, BMAP, SYNCFS.

use super::wire_struct;

wire_struct! {
    /// `struct fuse_kstatfs`: reply to STATFS.
    pub struct StatfsOut: 80 {
        /// Size of the file system in units of `frsize`.
        pub blocks: u64,
        /// Free blocks, including those reserved for the superuser.
        pub bfree: u64,
        /// Free blocks available to unprivileged users.
        pub bavail: u64,
        pub files: u64,
        /// Free inodes.
        pub ffree: u64,
        pub bsize: u32,
        /// Maximum length of a name, in bytes.
        pub namelen: u32,
        /// Unit of the block counts, in bytes.
        pub frsize: u32,
        pub padding: u32,
        pub spare: [u32; 6],
    }

    /// `struct fuse_access_in`.
    pub struct AccessIn: 8 {
        /// `R_OK`, `W_OK`, `X_OK`.
        pub mask: u32,
        pub padding: u32,
    }

    /// `struct fuse_interrupt_in`.
    pub struct InterruptIn: 8 {
        /// Identifier of the request to be interrupted.
        pub unique: u64,
    }

    /// `struct fuse_ioctl_in`; `in_size` bytes follow.
    pub struct IoctlIn: 32 {
        pub fh: u64,
        /// `FUSE_IOCTL_*`.
        pub flags: u32,
        pub cmd: u32,
        /// The caller's third argument.
        pub arg: u64,
        /// Length of the input, in bytes.
        pub in_size: u32,
        /// Maximum length of the output, in bytes.
        pub out_size: u32,
    }

    /// `struct fuse_ioctl_out`; data follows.
    pub struct IoctlOut: 16 {
        /// Return value of ioctl(2).
        pub result: i32,
        /// `FUSE_IOCTL_*`.
        pub flags: u32,
        /// For a retry: number of input vectors that follow.
        pub in_iovs: u32,
        /// For a retry: number of output vectors that follow.
        pub out_iovs: u32,
    }

    /// `struct fuse_poll_in`.
    pub struct PollIn: 24 {
        pub fh: u64,
        /// Identifier of the waiter in a wake-up notification.
        pub kh: u64,
        /// 1: notify when the state changes.
        pub flags: u32,
        /// Requested events, as in poll(2).
        pub events: u32,
    }

    /// `struct fuse_poll_out`.
    pub struct PollOut: 8 {
        /// Pending events, as in poll(2).
        pub revents: u32,
        pub padding: u32,
    }

    /// `struct fuse_bmap_in`.
    pub struct BmapIn: 16 {
        /// Number of the block in the file, in units of `blocksize`.
        pub block: u64,
        pub blocksize: u32,
        pub padding: u32,
    }

    /// `struct fuse_syncfs_in`.
    pub struct SyncfsIn: 8 {
        pub padding: u64,
    }
}
