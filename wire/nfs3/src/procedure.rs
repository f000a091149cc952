//! The procedures (RFC 1813 §3).

use tombolo_wire_xdr::xdr_enum;

/// RPC program number of NFS.
pub const PROGRAM: u32 = 100_003;
/// Implemented version of NFS.
pub const VERSION: u32 = 3;

xdr_enum! {
    /// A procedure. RPC answers PROC_UNAVAIL to any other number.
    pub enum Procedure {
        /// No operation.
        Null = 0,
        /// Get attributes.
        Getattr = 1,
        /// Set attributes.
        Setattr = 2,
        /// Look a name up.
        Lookup = 3,
        /// Check access rights.
        Access = 4,
        /// Read the target of a symbolic link.
        Readlink = 5,
        /// Read from a file.
        Read = 6,
        /// Write to a file.
        Write = 7,
        /// Create a file.
        Create = 8,
        /// Create a directory.
        Mkdir = 9,
        /// Create a symbolic link.
        Symlink = 10,
        /// Create a special node.
        Mknod = 11,
        /// Remove a name of a file.
        Remove = 12,
        /// Remove a directory.
        Rmdir = 13,
        /// Rename a directory entry.
        Rename = 14,
        /// Create another name of a node.
        Link = 15,
        /// List a directory.
        Readdir = 16,
        /// List a directory with attributes and handles.
        Readdirplus = 17,
        /// Get the usage of a file system.
        Fsstat = 18,
        /// Get the properties of a server.
        Fsinfo = 19,
        /// Get POSIX limits.
        Pathconf = 20,
        /// Make written data stable.
        Commit = 21,
    }
}
