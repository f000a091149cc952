//! STATFS, ACCESS, INTERRUPT, IOCTL, SYNCFS.

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

    /// `struct fuse_syncfs_in`.
    pub struct SyncfsIn: 8 {
        pub padding: u64,
    }
}
