//! Attributes: GETATTR, SETATTR, STATX, and the entry returned by LOOKUP and similar requests.

use super::wire_struct;
use bitflags::bitflags;

wire_struct! {
    /// `struct fuse_attr`.
    pub struct FuseAttr: 88 {
        pub ino: u64,
        pub size: u64,
        /// Space used, in units of 512 bytes.
        pub blocks: u64,
        /// Last access, seconds (negative ones wrap).
        pub atime: u64,
        pub mtime: u64,
        pub ctime: u64,
        pub atimensec: u32,
        pub mtimensec: u32,
        pub ctimensec: u32,
        /// File type and permission bits, as in `st_mode`.
        pub mode: u32,
        pub nlink: u32,
        pub uid: u32,
        pub gid: u32,
        /// Device number of a device node, in the kernel's 32-bit encoding.
        pub rdev: u32,
        pub blksize: u32,
        /// `FUSE_ATTR_*`.
        pub flags: u32,
    }

    /// `struct fuse_attr_out`: reply to GETATTR and SETATTR.
    pub struct AttrOut: 104 {
        pub attr_valid: u64,
        pub attr_valid_nsec: u32,
        pub dummy: u32,
        pub attr: FuseAttr,
    }

    /// `struct fuse_entry_out`: reply to LOOKUP, MKNOD, MKDIR, SYMLINK, LINK, and first part of the replies
    /// to CREATE and TMPFILE.
    pub struct EntryOut: 128 {
        /// The node; 0: the name does not exist, and its absence may be cached.
        pub nodeid: u64,
        /// Distinguishes reuses of a node id.
        pub generation: u64,
        pub entry_valid: u64,
        pub attr_valid: u64,
        pub entry_valid_nsec: u32,
        pub attr_valid_nsec: u32,
        pub attr: FuseAttr,
    }

    /// `struct fuse_getattr_in`.
    pub struct GetattrIn: 16 {
        /// [`GETATTR_FH`].
        pub getattr_flags: u32,
        pub dummy: u32,
        /// The open file, if the flag is set.
        pub fh: u64,
    }
}

/// `FUSE_GETATTR_FH`: the file handle is valid.
pub const GETATTR_FH: u32 = 1 << 0;

wire_struct! {
    /// `struct fuse_setattr_in`.
    pub struct SetattrIn: 88 {
        /// [`SetattrValid`].
        pub valid: u32,
        pub padding: u32,
        /// Handle of the open file, if [`SetattrValid::FH`] is set.
        pub fh: u64,
        pub size: u64,
        /// Owner of the locks that a truncation must respect.
        pub lock_owner: u64,
        pub atime: u64,
        pub mtime: u64,
        /// New change time, seconds (with the write-back cache only).
        pub ctime: u64,
        pub atimensec: u32,
        pub mtimensec: u32,
        pub ctimensec: u32,
        pub mode: u32,
        pub unused4: u32,
        pub uid: u32,
        pub gid: u32,
        pub unused5: u32,
    }
}

bitflags! {
    /// `FATTR_*`: valid fields of [`SetattrIn`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct SetattrValid: u32 {
        const MODE = 1 << 0;
        const UID = 1 << 1;
        const GID = 1 << 2;
        const SIZE = 1 << 3;
        const ATIME = 1 << 4;
        const MTIME = 1 << 5;
        const FH = 1 << 6;
        /// Set the access time to the server's clock.
        const ATIME_NOW = 1 << 7;
        /// Set the modification time to the server's clock.
        const MTIME_NOW = 1 << 8;
        const LOCKOWNER = 1 << 9;
        const CTIME = 1 << 10;
        /// Clear the set-user-id and set-group-id bits (HANDLE_KILLPRIV_V2).
        const KILL_SUIDGID = 1 << 11;
    }
}

wire_struct! {
    /// `struct fuse_sx_time`.
    pub struct SxTime: 16 {
        pub tv_sec: i64,
        /// Nanoseconds, 0 to 999,999,999.
        pub tv_nsec: u32,
        pub reserved: i32,
    }

    /// `struct fuse_statx`, laid out as `struct statx` of statx(2).
    pub struct FuseStatx: 256 {
        /// Valid fields: [`StatxMask`].
        pub mask: u32,
        pub blksize: u32,
        /// File attributes (`STATX_ATTR_*`).
        pub attributes: u64,
        pub nlink: u32,
        pub uid: u32,
        pub gid: u32,
        pub mode: u16,
        pub spare0: u16,
        pub ino: u64,
        pub size: u64,
        /// Space used, in units of 512 bytes.
        pub blocks: u64,
        /// Supported file attributes.
        pub attributes_mask: u64,
        pub atime: SxTime,
        pub btime: SxTime,
        pub ctime: SxTime,
        pub mtime: SxTime,
        pub rdev_major: u32,
        pub rdev_minor: u32,
        pub dev_major: u32,
        pub dev_minor: u32,
        pub spare2: [u64; 14],
    }
}

bitflags! {
    /// `STATX_*`: fields of [`FuseStatx`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct StatxMask: u32 {
        const TYPE = 1 << 0;
        const MODE = 1 << 1;
        const NLINK = 1 << 2;
        const UID = 1 << 3;
        const GID = 1 << 4;
        const ATIME = 1 << 5;
        const MTIME = 1 << 6;
        const CTIME = 1 << 7;
        const INO = 1 << 8;
        const SIZE = 1 << 9;
        const BLOCKS = 1 << 10;
        /// The fields of stat(2).
        const BASIC = 0x7ff;
        const BTIME = 1 << 11;
    }
}

wire_struct! {
    /// `struct fuse_statx_in`.
    pub struct StatxIn: 24 {
        /// [`GETATTR_FH`].
        pub getattr_flags: u32,
        pub reserved: u32,
        /// The open file, if the flag is set.
        pub fh: u64,
        /// `AT_STATX_*`.
        pub sx_flags: u32,
        /// Requested fields: [`StatxMask`].
        pub sx_mask: u32,
    }

    /// `struct fuse_statx_out`.
    pub struct StatxOut: 288 {
        pub attr_valid: u64,
        pub attr_valid_nsec: u32,
        pub flags: u32,
        pub spare: [u64; 2],
        pub stat: FuseStatx,
    }
}
