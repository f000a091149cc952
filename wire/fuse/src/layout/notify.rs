//! Notifications: unsolicited messages of the server.

use super::wire_struct;

wire_struct! {
    /// `struct fuse_notify_inval_inode_out`.
    pub struct InvalInodeOut: 24 {
        pub ino: u64,
        /// First byte whose cached page is dropped; negative: attributes only.
        pub off: i64,
        /// Number of bytes; 0 or less: up to the end.
        pub len: i64,
    }

    /// `struct fuse_notify_inval_entry_out`; the name and a NUL follow.
    pub struct InvalEntryOut: 16 {
        pub parent: u64,
        /// Length of the name without its NUL.
        pub namelen: u32,
        /// [`EXPIRE_ONLY`].
        pub flags: u32,
    }

    /// `struct fuse_notify_delete_out`; the name and a NUL follow.
    pub struct DeleteOut: 24 {
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
