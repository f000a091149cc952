//! Headers of requests, replies and extensions.

use super::wire_struct;

wire_struct! {
    /// `struct fuse_in_header`: first part of every request.
    pub struct InHeader: 40 {
        /// Length of the whole request, in bytes, including this header and the extensions.
        pub len: u32,
        /// Operation; see [`crate::Opcode`].
        pub opcode: u32,
        /// Identifier of the request in its reply and in an INTERRUPT. The top bit marks a resent request.
        pub unique: u64,
        /// The request's node; 0 for none.
        pub nodeid: u64,
        /// User id of the caller; [`INVALID_ID`] if hidden by an id-mapped mount.
        pub uid: u32,
        /// Group id of the caller; [`INVALID_ID`] if hidden by an id-mapped mount.
        pub gid: u32,
        /// Thread id of the caller; 0 if not visible to the server.
        pub pid: u32,
        /// Length of the extensions at the end of the request, in units of 8 bytes (since 7.38).
        pub total_extlen: u16,
        pub padding: u16,
    }

    /// `struct fuse_out_header`: first part of every reply and notification.
    pub struct OutHeader: 16 {
        /// Length of the whole reply, in bytes, including this header.
        pub len: u32,
        /// 0, or a negated errno; in a notification its positive code.
        pub error: i32,
        /// Identifier of the request; 0 in a notification.
        pub unique: u64,
    }

    /// `struct fuse_ext_header`: first part of an extension. Types up to 31 (`FUSE_MAX_NR_SECCTX`) are the
    /// number of security contexts in a `fuse_secctx_header`.
    pub struct ExtHeader: 8 {
        /// Length of the extension, in bytes, including this header.
        pub size: u32,
        /// [`EXT_GROUPS`], or a number of security contexts.
        pub kind: u32,
    }
}

/// `FUSE_EXT_GROUPS`: supplementary groups of the caller.
pub const EXT_GROUPS: u32 = 32;
/// `FUSE_UNIQUE_RESEND`: mark of a resent request.
pub const UNIQUE_RESEND: u64 = 1 << 63;
/// `FUSE_INVALID_UIDGID`.
pub const INVALID_ID: u32 = u32::MAX;
/// `FUSE_MIN_READ_BUFFER`: minimum buffer size for a read of the device, in bytes.
pub const MIN_READ_BUFFER: usize = 8192;
