//! Attributes of nodes and of file systems.

use tombolo_sys::stat::{S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFLNK, S_IFMT, S_IFREG, S_IFSOCK};

/// The type of a node (POSIX file types).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileType {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A block device.
    BlockDevice,
    /// A character device.
    CharDevice,
    /// A named pipe.
    Fifo,
    /// A Unix socket.
    Socket,
}

impl FileType {
    /// All types. Keep the order: the index is stored by layers (`host/runtime/src/rows.rs`).
    pub const ALL: [Self; 7] = [
        Self::Regular,
        Self::Directory,
        Self::Symlink,
        Self::BlockDevice,
        Self::CharDevice,
        Self::Fifo,
        Self::Socket,
    ];

    /// Returns the type bits of a node's mode.
    pub const fn mode_bits(self) -> u32 {
        match self {
            Self::Regular => S_IFREG,
            Self::Directory => S_IFDIR,
            Self::Symlink => S_IFLNK,
            Self::BlockDevice => S_IFBLK,
            Self::CharDevice => S_IFCHR,
            Self::Fifo => S_IFIFO,
            Self::Socket => S_IFSOCK,
        }
    }

    /// Returns the type in a mode's bits; `None` for other bits, such as 0, which listings use for "unknown".
    pub fn of_mode(mode: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|file_type| file_type.mode_bits() == mode & S_IFMT)
    }
}

/// Permission bits, set-user-id, set-group-id and sticky: the low twelve bits of a POSIX mode, no type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Mode(u16);

impl Mode {
    /// Mask of the twelve permission bits.
    pub const MASK: u32 = 0o7777;
    /// Set user id on execution.
    pub const SET_UID: u32 = 0o4000;
    /// Set group id on execution; on a directory: new entries inherit its group.
    pub const SET_GID: u32 = 0o2000;
    /// Restricted deletion: only the owner of an entry or of its directory, or the superuser, may remove it.
    pub const STICKY: u32 = 0o1000;

    /// Returns the mode of the low twelve bits of `bits`.
    #[inline]
    pub const fn new(bits: u32) -> Self {
        Self((bits & Self::MASK) as u16)
    }

    /// Returns the bits.
    #[inline]
    pub const fn bits(self) -> u32 {
        self.0 as u32
    }

    /// Returns the mode without the bits of `umask`.
    #[inline]
    pub const fn without(self, umask: Mode) -> Self {
        Self(self.0 & !umask.0)
    }
}

/// A point in time: seconds since 1970 and nanoseconds below 10⁹.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Timestamp {
    /// Seconds since 1970-01-01 UTC; negative before.
    pub secs: i64,
    /// Nanoseconds below 10⁹, which are added to `secs` even if it is negative.
    pub nanos: u32,
}

/// A device number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Device {
    /// Major number, which identifies the driver.
    pub major: u32,
    /// Minor number, which the driver interprets.
    pub minor: u32,
}

/// The attributes of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// File type, which never changes.
    pub file_type: FileType,
    /// Permission bits, without the type.
    pub mode: Mode,
    /// Number of names (hard links); 0 for an unlinked file that is open.
    pub nlink: u32,
    /// User id of the owner.
    pub uid: u32,
    /// Group id of the owning group.
    pub gid: u32,
    /// Size in bytes; of a symbolic link, the length of its target.
    pub size: u64,
    /// Space used, in units of 512 bytes.
    pub blocks: u64,
    /// Preferred size of transfers, in bytes.
    pub block_size: u32,
    /// Device number of a device node.
    pub rdev: Device,
    /// Id of the node's file system. Differs between submounts of one export.
    pub fsid: u64,
    /// Inode number, unique within `fsid` among live nodes.
    pub fileid: u64,
    /// Number that distinguishes reuses of an inode number; 0 where the file system has no generations.
    pub generation: u64,
    /// Time of the last read.
    pub atime: Timestamp,
    /// Last change of the data.
    pub mtime: Timestamp,
    /// Last change of the data or the attributes.
    pub ctime: Timestamp,
    /// Creation time, where the file system records it.
    pub btime: Option<Timestamp>,
    /// The node may change without a notice and without a new version: clients must request attributes and
    /// data each time.
    pub volatile: bool,
}

/// The attributes that reveal a change of a node between two samples (RFC 1813 §2.6, `wcc_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeakAttr {
    /// Size in bytes.
    pub size: u64,
    /// Last change of the data.
    pub mtime: Timestamp,
    /// Last change of the data or the attributes.
    pub ctime: Timestamp,
}

impl From<&Attr> for WeakAttr {
    fn from(attr: &Attr) -> Self {
        Self { size: attr.size, mtime: attr.mtime, ctime: attr.ctime }
    }
}

/// The attributes of a node before and after a mutation, as far as available. Both fields are `None` unless
/// the caller requested [`Want::CHANGE_ATTRS`](crate::Want::CHANGE_ATTRS). Of a directory, a back end that
/// cannot sample both atomically with the operation omits `before`, as RFC 1813 §2.6 allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Attributes before the change; `None` if not requested, unavailable, or, of a directory, if another
    /// change through the back end may have overlapped. Of a file, another change may lie between the sample
    /// and the change.
    pub before: Option<WeakAttr>,
    /// Attributes after the change; `None` if not requested, or unavailable.
    pub after: Option<Attr>,
}

/// A new value for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The current time of the server that stores the node.
    Now,
    /// The given time, of the client's clock.
    At(Timestamp),
}

/// Attribute changes. `None` leaves an attribute unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// New permission bits.
    pub mode: Option<Mode>,
    /// User id of the new owner.
    pub uid: Option<u32>,
    /// Group id of the new owning group.
    pub gid: Option<u32>,
    /// Size in bytes: truncates, or extends with zeros.
    pub size: Option<u64>,
    /// New time of the last read.
    pub atime: Option<SetTime>,
    /// New time of the last change of the data.
    pub mtime: Option<SetTime>,
    /// Fail with [`Error::NotSync`](crate::Error::NotSync), changing nothing, unless the node has this ctime
    /// (RFC 1813 §3.3.2, `sattrguard3`).
    pub guard_ctime: Option<Timestamp>,
    /// Drop set-user-id, set-group-id and file capabilities, as changes by unprivileged users must.
    pub kill_privileges: bool,
}

/// Space and limits of a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatFs {
    /// Size of a block, in bytes; the unit of the block counts.
    pub block_size: u32,
    /// Total number of blocks.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Free blocks available to unprivileged users.
    pub blocks_available: u64,
    /// Total nodes; 0 where the file system does not count them.
    pub files: u64,
    /// Number of nodes that can still be created; 0 if `files` is 0.
    pub files_free: u64,
    /// Longest name, in bytes.
    pub name_max: u32,
}
