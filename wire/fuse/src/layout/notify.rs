//! Notifications: unsolicited messages of the server.

use super::{sizes, wire_struct};

wire_struct! {
    /// `struct fuse_notify_inval_inode_out`.
    pub struct InvalInodeOut {
        pub ino: u64,
        /// First byte whose cached page is dropped; negative: attributes only.
        pub off: i64,
        /// Number of bytes; 0 or less: up to the end.
        pub len: i64,
    }
}

wire_struct! {
    /// `struct fuse_notify_inval_entry_out`; the name and a NUL follow.
    pub struct InvalEntryOut {
        pub parent: u64,
        /// Length of the name without its NUL.
        pub namelen: u32,
        /// [`EXPIRE_ONLY`].
        pub flags: u32,
    }
}

wire_struct! {
    /// `struct fuse_notify_delete_out`; the name and a NUL follow.
    pub struct DeleteOut {
        pub parent: u64,
        /// The node id of the removed name.
        pub child: u64,
        /// Length of the name without its NUL.
        pub namelen: u32,
        pub padding: u32,
    }
}

/// `FUSE_EXPIRE_ONLY`: revalidate the name at its next use without dropping its subtree (since 7.38).
pub const EXPIRE_ONLY: u32 = 1 << 0;

sizes!(InvalInodeOut = 24, InvalEntryOut = 16, DeleteOut = 24);
