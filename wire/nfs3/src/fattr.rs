//! Attributes (RFC 1813 §2.6).

use tombolo_wire_xdr::{xdr_enum, xdr_struct};

/// Encoded length of [`Fattr3`], in bytes.
pub const FATTR_BYTES: usize = 84;

xdr_enum! {
    /// The type of a node (`ftype3`).
    pub enum FileType3 {
        /// Regular file.
        Regular = 1,
        /// Directory.
        Directory = 2,
        /// Block device.
        BlockDevice = 3,
        /// Character device.
        CharDevice = 4,
        /// Symbolic link.
        Symlink = 5,
        /// Socket.
        Socket = 6,
        /// Named pipe.
        Fifo = 7,
    }
}

xdr_struct! {
    /// A device number.
    pub struct SpecData3 {
        /// Major number, which identifies the driver.
        pub major: u32,
        /// Minor number, which the driver interprets.
        pub minor: u32,
    }

    /// A point in time (`nfstime3`): 1970 to 2106.
    pub struct NfsTime3 {
        /// Seconds since 1970-01-01 UTC.
        pub seconds: u32,
        /// Nanoseconds; a peer may send 10⁹ or more.
        pub nseconds: u32,
    }

    /// All attributes of a node.
    pub struct Fattr3 {
        /// File type; not included in `mode`.
        pub file_type: FileType3,
        /// Permission bits: the low twelve.
        pub mode: u32,
        /// Number of names.
        pub nlink: u32,
        /// Owner.
        pub uid: u32,
        /// Group.
        pub gid: u32,
        /// Size in bytes.
        pub size: u64,
        /// Space used, in bytes.
        pub used: u64,
        /// Device number of a device node.
        pub rdev: SpecData3,
        /// Id of the file system, unique on the server.
        pub fsid: u64,
        /// Number of the node within the file system.
        pub fileid: u64,
        /// Last read.
        pub atime: NfsTime3,
        /// Last change of the data.
        pub mtime: NfsTime3,
        /// Last change of the data or the attributes.
        pub ctime: NfsTime3,
    }
}

/// Attributes after an operation, if available (`post_op_attr`).
pub type PostOpAttr = Option<Fattr3>;

xdr_struct! {
    /// The attributes that reveal a change of a node between two samples (`wcc_attr`).
    pub struct WccAttr {
        /// Size in bytes.
        pub size: u64,
        /// Last change of the data.
        pub mtime: NfsTime3,
        /// Last change of the data or the attributes.
        pub ctime: NfsTime3,
    }

    /// The attributes of a node before and after an operation (`wcc_data`).
    pub struct WccData {
        /// Attributes before the operation, if available (`pre_op_attr`).
        pub before: Option<WccAttr>,
        /// Attributes after the operation, if available.
        pub after: PostOpAttr,
    }
}

impl WccData {
    /// The value of a server that does not supply attributes.
    pub const NONE: Self = Self { before: None, after: None };
}
