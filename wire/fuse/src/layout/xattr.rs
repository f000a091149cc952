//! Extended attributes.

use super::wire_struct;

wire_struct! {
    /// `struct fuse_setxattr_in`; name and value follow. Without SETXATTR_EXT only the first 8 bytes are
    /// sent.
    pub struct SetxattrIn: 16 {
        /// Length of the value in bytes.
        pub size: u32,
        /// `XATTR_CREATE`, `XATTR_REPLACE` or 0.
        pub flags: u32,
        /// [`SETXATTR_ACL_KILL_SGID`] or 0.
        pub setxattr_flags: u32,
        pub padding: u32,
    }
}

/// Length of [`SetxattrIn`] without SETXATTR_EXT, in bytes.
pub const SETXATTR_IN_SHORT: usize = 8;
/// `FUSE_SETXATTR_ACL_KILL_SGID`: clear the set-group-id bit when an access ACL is set.
pub const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;

wire_struct! {
    /// `struct fuse_getxattr_in`: GETXATTR (the name follows) and LISTXATTR.
    pub struct GetxattrIn: 8 {
        /// Maximum length of the value or list; 0 queries its length.
        pub size: u32,
        pub padding: u32,
    }

    /// `struct fuse_getxattr_out`: the length, in reply to size 0.
    pub struct GetxattrOut: 8 {
        pub size: u32,
        pub padding: u32,
    }
}
