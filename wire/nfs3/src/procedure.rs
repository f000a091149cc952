//! The procedures (RFC 1813 §3).

use tombolo_wire_xdr::xdr_enum;

/// NFS among the RPC programs.
pub const PROGRAM: u32 = 100_003;
/// The version of NFS that this is.
pub const VERSION: u32 = 3;

xdr_enum! {
    /// What a call asks for. RPC answers PROC_UNAVAIL to any other number.
    pub enum Procedure {
        /// Nothing.
        Null = 0,
        /// Attributes.
        Getattr = 1,
        /// Change attributes.
        Setattr = 2,
        /// A node by its name.
        Lookup = 3,
        /// What a user may do.
        Access = 4,
        /// Where a symbolic link points.
        Readlink = 5,
        /// File data.
        Read = 6,
        /// Write file data.
        Write = 7,
        /// A new file.
        Create = 8,
        /// A new directory.
        Mkdir = 9,
        /// A new symbolic link.
        Symlink = 10,
        /// A new special node.
        Mknod = 11,
        /// Take a name of a file away.
        Remove = 12,
        /// Take a directory away.
        Rmdir = 13,
        /// Another name instead.
        Rename = 14,
        /// Another name in addition.
        Link = 15,
        /// A directory's entries.
        Readdir = 16,
        /// A directory's entries with attributes and handles.
        Readdirplus = 17,
        /// How full a file system is.
        Fsstat = 18,
        /// What a server can do.
        Fsinfo = 19,
        /// POSIX limits.
        Pathconf = 20,
        /// Make written data stable.
        Commit = 21,
    }
}
