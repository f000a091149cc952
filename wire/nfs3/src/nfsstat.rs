//! Error statuses (RFC 1813 §2.6, `nfsstat3`).

use tombolo_wire_xdr::xdr_enum;

xdr_enum! {
    /// A status other than NFS3_OK, for the failed arm of a [`Reply`](crate::Reply).
    pub enum Status {
        /// The caller is not the owner, or lacks the privilege.
        Perm = 1,
        /// The name does not exist.
        NoEnt = 2,
        /// I/O error.
        Io = 5,
        /// The device does not exist, or the request is outside of it (ENXIO).
        NxIo = 6,
        /// Permission denied.
        Acces = 13,
        /// The name exists.
        Exist = 17,
        /// Crosses file systems.
        XDev = 18,
        /// The device does not support the operation (ENODEV).
        NoDev = 19,
        /// The object is not a directory.
        NotDir = 20,
        /// The object is a directory.
        IsDir = 21,
        /// Invalid argument.
        Inval = 22,
        /// File too large.
        FBig = 27,
        /// No space is left in the file system.
        NoSpc = 28,
        /// Read-only file system.
        RoFs = 30,
        /// Too many links.
        MLink = 31,
        /// Name too long.
        NameTooLong = 63,
        /// Directory not empty.
        NotEmpty = 66,
        /// Quota exceeded.
        DQuot = 69,
        /// The handle's node no longer exists.
        Stale = 70,
        /// The path leads from the server to another server's file system, which it does not re-export.
        Remote = 71,
        /// The handle is not one of this server.
        BadHandle = 10_001,
        /// The guard of a SETATTR does not match.
        NotSync = 10_002,
        /// The cookie of a READDIR or READDIRPLUS is no longer valid.
        BadCookie = 10_003,
        /// The operation is not supported.
        NotSupp = 10_004,
        /// The client's limit is too small for any result, such as one entry of READDIR.
        TooSmall = 10_005,
        /// An error without a status of its own.
        ServerFault = 10_006,
        /// A node of this type cannot be created.
        BadType = 10_007,
        /// Temporarily unavailable: try again later.
        Jukebox = 10_008,
    }
}
