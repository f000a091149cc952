//! The header of every request and every reply, and of the extensions that may follow a request.

use super::{sizes, wire_struct};

wire_struct! {
    /// `struct fuse_in_header`: starts every request.
    pub struct InHeader {
        /// Length of the whole request in bytes, this header and the extensions included.
        pub len: u32,
        /// What is asked; see [`crate::Opcode`].
        pub opcode: u32,
        /// Names the request in its reply and in an INTERRUPT. The top bit marks a request sent again.
        pub unique: u64,
        /// The node the request is about; 0 where it is about none.
        pub nodeid: u64,
        /// User id of the caller; [`INVALID_ID`] where an id-mapped mount hides it.
        pub uid: u32,
        /// Group id of the caller; [`INVALID_ID`] where an id-mapped mount hides it.
        pub gid: u32,
        /// Process id of the caller, 0 if it is not visible to the server.
        pub pid: u32,
        /// Length of the extensions at the end of the request, in units of 8 bytes (since 7.38).
        pub total_extlen: u16,
        pub padding: u16,
    }
}

wire_struct! {
    /// `struct fuse_out_header`: starts every reply and notification.
    pub struct OutHeader {
        /// Length of the whole reply in bytes, this header included.
        pub len: u32,
        /// 0, or a negated errno; in a notification its code, positive.
        pub error: i32,
        /// The request that is answered; 0 in a notification.
        pub unique: u64,
    }
}

wire_struct! {
    /// `struct fuse_ext_header`: starts an extension. Types up to 31 (`FUSE_MAX_NR_SECCTX`) are the number of
    /// security contexts in a `fuse_secctx_header`.
    pub struct ExtHeader {
        /// Length of the extension in bytes, this header included.
        pub size: u32,
        /// [`EXT_GROUPS`], or a number of security contexts.
        pub kind: u32,
    }
}

sizes!(InHeader = 40, OutHeader = 16, ExtHeader = 8);

/// `FUSE_EXT_GROUPS`: supplementary groups of the caller.
pub const EXT_GROUPS: u32 = 32;
/// `FUSE_UNIQUE_RESEND`: the kernel sent this request before.
pub const UNIQUE_RESEND: u64 = 1 << 63;
/// `FUSE_INVALID_UIDGID`.
pub const INVALID_ID: u32 = u32::MAX;
/// `FUSE_MIN_READ_BUFFER`: the least a read of the device must offer.
pub const MIN_READ_BUFFER: usize = 8192;
