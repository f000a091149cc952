//! Attributes: GETATTR, SETATTR, STATX, and the entry that LOOKUP and its relatives answer with.

use super::{sizes, wire_struct};
use bitflags::bitflags;

wire_struct! {
    /// `struct fuse_attr`.
    pub struct FuseAttr {
        /// Inode number shown to programs.
        pub ino: u64,
        /// Size in bytes.
        pub size: u64,
        /// Space used, in units of 512 bytes.
        pub blocks: u64,
        /// Last access, seconds (negative ones wrap).
        pub atime: u64,
        /// Last change of the data, seconds.
        pub mtime: u64,
        /// Last change of the attributes, seconds.
        pub ctime: u64,
        /// Last access, nanoseconds.
        pub atimensec: u32,
        /// Last change of the data, nanoseconds.
        pub mtimensec: u32,
        /// Last change of the attributes, nanoseconds.
        pub ctimensec: u32,
        /// File type and permission bits, as in `st_mode`.
        pub mode: u32,
        /// Number of hard links.
        pub nlink: u32,
        /// Owner.
        pub uid: u32,
        /// Group.
        pub gid: u32,
        /// Device number of a device node, in the kernel's 32-bit encoding.
        pub rdev: u32,
        /// Preferred size of an I/O in bytes.
        pub blksize: u32,
        /// [`AttrFlags`].
        pub flags: u32,
    }
}

bitflags! {
    /// `FUSE_ATTR_*`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct AttrFlags: u32 {
        /// The root of a submount.
        const SUBMOUNT = 1 << 0;
        /// Use DAX for this file.
        const DAX = 1 << 1;
    }
}

wire_struct! {
    /// `struct fuse_attr_out`: answers GETATTR and SETATTR.
    pub struct AttrOut {
        /// How long the attributes may be cached, seconds.
        pub attr_valid: u64,
        /// How long the attributes may be cached, nanoseconds.
        pub attr_valid_nsec: u32,
        /// Unused.
        pub dummy: u32,
        /// The attributes.
        pub attr: FuseAttr,
    }
}

wire_struct! {
    /// `struct fuse_entry_out`: answers LOOKUP, MKNOD, MKDIR, SYMLINK, LINK, and starts CREATE's answer.
    pub struct EntryOut {
        /// The node; 0 says that the name does not exist, and may be remembered.
        pub nodeid: u64,
        /// Tells a reused node id from its former owner.
        pub generation: u64,
        /// How long the name may be cached, seconds.
        pub entry_valid: u64,
        /// How long the attributes may be cached, seconds.
        pub attr_valid: u64,
        /// How long the name may be cached, nanoseconds.
        pub entry_valid_nsec: u32,
        /// How long the attributes may be cached, nanoseconds.
        pub attr_valid_nsec: u32,
        /// The attributes.
        pub attr: FuseAttr,
    }
}

wire_struct! {
    /// `struct fuse_getattr_in`.
    pub struct GetattrIn {
        /// [`GETATTR_FH`].
        pub getattr_flags: u32,
        /// Unused.
        pub dummy: u32,
        /// The open file to ask, if the flag says so.
        pub fh: u64,
    }
}

/// `FUSE_GETATTR_FH`: the file handle is valid.
pub const GETATTR_FH: u32 = 1 << 0;

wire_struct! {
    /// `struct fuse_setattr_in`.
    pub struct SetattrIn {
        /// [`SetattrValid`].
        pub valid: u32,
        /// Unused.
        pub padding: u32,
        /// The open file, if valid.
        pub fh: u64,
        /// New size in bytes.
        pub size: u64,
        /// Owner of the locks that a truncation must respect.
        pub lock_owner: u64,
        /// New access time, seconds.
        pub atime: u64,
        /// New modification time, seconds.
        pub mtime: u64,
        /// New change time, seconds (with the write-back cache only).
        pub ctime: u64,
        /// New access time, nanoseconds.
        pub atimensec: u32,
        /// New modification time, nanoseconds.
        pub mtimensec: u32,
        /// New change time, nanoseconds.
        pub ctimensec: u32,
        /// New permission bits.
        pub mode: u32,
        /// Unused.
        pub unused4: u32,
        /// New owner.
        pub uid: u32,
        /// New group.
        pub gid: u32,
        /// Unused.
        pub unused5: u32,
    }
}

bitflags! {
    /// `FATTR_*`: which fields of [`SetattrIn`] count.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct SetattrValid: u32 {
        /// The permission bits.
        const MODE = 1 << 0;
        /// The owner.
        const UID = 1 << 1;
        /// The group.
        const GID = 1 << 2;
        /// The size.
        const SIZE = 1 << 3;
        /// The access time.
        const ATIME = 1 << 4;
        /// The modification time.
        const MTIME = 1 << 5;
        /// The file handle.
        const FH = 1 << 6;
        /// The access time is the server's clock.
        const ATIME_NOW = 1 << 7;
        /// The modification time is the server's clock.
        const MTIME_NOW = 1 << 8;
        /// The lock owner.
        const LOCKOWNER = 1 << 9;
        /// The change time.
        const CTIME = 1 << 10;
        /// Clear the set-user-id and set-group-id bits (HANDLE_KILLPRIV_V2).
        const KILL_SUIDGID = 1 << 11;
    }
}

wire_struct! {
    /// `struct fuse_sx_time`.
    pub struct SxTime {
        /// Seconds since the epoch.
        pub tv_sec: i64,
        /// Nanoseconds, 0 to 999,999,999.
        pub tv_nsec: u32,
        /// Unused.
        pub reserved: i32,
    }
}

wire_struct! {
    /// `struct fuse_statx`, laid out as `struct statx` of statx(2).
    pub struct FuseStatx {
        /// Which fields are filled in: [`StatxMask`].
        pub mask: u32,
        /// Preferred size of an I/O in bytes.
        pub blksize: u32,
        /// File attributes (`STATX_ATTR_*`).
        pub attributes: u64,
        /// Number of hard links.
        pub nlink: u32,
        /// Owner.
        pub uid: u32,
        /// Group.
        pub gid: u32,
        /// File type and permission bits.
        pub mode: u16,
        /// Unused.
        pub spare0: u16,
        /// Inode number.
        pub ino: u64,
        /// Size in bytes.
        pub size: u64,
        /// Space used, in units of 512 bytes.
        pub blocks: u64,
        /// Which file attributes are supported.
        pub attributes_mask: u64,
        /// Last access.
        pub atime: SxTime,
        /// Birth.
        pub btime: SxTime,
        /// Last change of the attributes.
        pub ctime: SxTime,
        /// Last change of the data.
        pub mtime: SxTime,
        /// Device number of a device node, major.
        pub rdev_major: u32,
        /// Device number of a device node, minor.
        pub rdev_minor: u32,
        /// Device that holds the file, major.
        pub dev_major: u32,
        /// Device that holds the file, minor.
        pub dev_minor: u32,
        /// Unused.
        pub spare2: [u64; 14],
    }
}

bitflags! {
    /// `STATX_*`: fields of [`FuseStatx`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct StatxMask: u32 {
        /// File type.
        const TYPE = 1 << 0;
        /// Permission bits.
        const MODE = 1 << 1;
        /// Number of links.
        const NLINK = 1 << 2;
        /// Owner.
        const UID = 1 << 3;
        /// Group.
        const GID = 1 << 4;
        /// Access time.
        const ATIME = 1 << 5;
        /// Modification time.
        const MTIME = 1 << 6;
        /// Change time.
        const CTIME = 1 << 7;
        /// Inode number.
        const INO = 1 << 8;
        /// Size.
        const SIZE = 1 << 9;
        /// Blocks.
        const BLOCKS = 1 << 10;
        /// What stat(2) gives.
        const BASIC = 0x7ff;
        /// Birth time.
        const BTIME = 1 << 11;
    }
}

wire_struct! {
    /// `struct fuse_statx_in`.
    pub struct StatxIn {
        /// [`GETATTR_FH`].
        pub getattr_flags: u32,
        /// Unused.
        pub reserved: u32,
        /// The open file to ask, if the flag says so.
        pub fh: u64,
        /// `AT_STATX_*`.
        pub sx_flags: u32,
        /// Wanted fields: [`StatxMask`].
        pub sx_mask: u32,
    }
}

wire_struct! {
    /// `struct fuse_statx_out`.
    pub struct StatxOut {
        /// How long the attributes may be cached, seconds.
        pub attr_valid: u64,
        /// How long the attributes may be cached, nanoseconds.
        pub attr_valid_nsec: u32,
        /// Unused.
        pub flags: u32,
        /// Unused.
        pub spare: [u64; 2],
        /// The attributes.
        pub stat: FuseStatx,
    }
}

sizes!(
    FuseAttr = 88,
    AttrOut = 104,
    EntryOut = 128,
    GetattrIn = 16,
    SetattrIn = 88,
    SxTime = 16,
    FuseStatx = 256,
    StatxIn = 24,
    StatxOut = 288,
);
