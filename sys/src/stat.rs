//! File attributes by statx.

use std::os::fd::BorrowedFd;

use rustix::fs::{self as rfs, AtFlags, Statx, StatxFlags, StatxTimestamp};

use crate::errno::{Result, retry};
use crate::open::check_component;

/// A time stamp: seconds since 1970 (negative before) and nanoseconds below 10⁹, which are always added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment {
    /// Whole seconds since 1970-01-01 UTC.
    pub seconds: i64,
    /// Nanoseconds after that second.
    pub nanoseconds: u32,
}

/// A device number in two parts, because kernel interfaces differ in packing them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Device {
    /// Number of the driver.
    pub major: u32,
    /// Number of the device among those of the driver.
    pub minor: u32,
}

impl Device {
    /// Returns the C library's 64-bit `dev_t`, as passed to `mknod`.
    pub fn packed(self) -> u64 {
        rfs::makedev(self.major, self.minor)
    }
}

/// The attributes of one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// Type and permission bits, as in `st_mode`.
    pub mode: u32,
    /// Device number of the file system.
    pub device: Device,
    /// Inode number, unique within the device during the life of the file.
    pub inode: u64,
    /// Number of names (hard links); 0 for an unlinked file.
    pub links: u32,
    /// User id of the owner.
    pub uid: u32,
    /// Group id of the owning group.
    pub gid: u32,
    /// Length in bytes; of a symbolic link, that of its target.
    pub size_bytes: u64,
    /// Allocated space, in units of 512 bytes.
    pub blocks: u64,
    /// Preferred transfer size, in bytes.
    pub block_size_bytes: u32,
    /// Device number of a device node.
    pub special: Device,
    /// Time of the last access.
    pub accessed: Moment,
    /// Time of the last change of the data.
    pub modified: Moment,
    /// Time of the last change of data or attributes.
    pub changed: Moment,
    /// Time of creation; `None` where the file system does not record it.
    pub born: Option<Moment>,
    /// Id of the mount through which the file was accessed; 0 on kernels before 5.8.
    pub mount: u64,
}

impl Stat {
    /// Returns `true` for a directory.
    pub fn is_directory(&self) -> bool {
        self.kind() == S_IFDIR
    }

    /// Returns `true` for a regular file.
    pub fn is_regular(&self) -> bool {
        self.kind() == S_IFREG
    }

    /// Returns `true` for a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.kind() == S_IFLNK
    }

    /// Returns the type bits of the mode.
    pub fn kind(&self) -> u32 {
        self.mode & S_IFMT
    }
}

/// Mask of the type in a mode.
pub const S_IFMT: u32 = 0o170_000;
/// A directory.
pub const S_IFDIR: u32 = 0o040_000;
/// A regular file.
pub const S_IFREG: u32 = 0o100_000;
/// A symbolic link.
pub const S_IFLNK: u32 = 0o120_000;
/// A block device.
pub const S_IFBLK: u32 = 0o060_000;
/// A character device.
pub const S_IFCHR: u32 = 0o020_000;
/// A named pipe.
pub const S_IFIFO: u32 = 0o010_000;
/// A socket.
pub const S_IFSOCK: u32 = 0o140_000;
/// Set-user-id and set-group-id.
pub const S_ISUGID: u32 = 0o6000;

/// Returns the attributes of the object of `fd`. Does not block on a local file system: the inode is in
/// memory.
pub fn stat(fd: BorrowedFd<'_>) -> Result<Stat> {
    statx(fd, b"", AtFlags::EMPTY_PATH)
}

/// Returns the attributes of an entry of `dir`, without following a symbolic link.
///
/// `name` must be a single component, as for [`crate::open::open_entry`]. May block on disk I/O.
pub fn stat_entry(dir: BorrowedFd<'_>, name: &[u8]) -> Result<Stat> {
    check_component(name)?;
    statx(dir, name, AtFlags::SYMLINK_NOFOLLOW)
}

fn statx(fd: BorrowedFd<'_>, name: &[u8], flags: AtFlags) -> Result<Stat> {
    let mask = StatxFlags::BASIC_STATS | StatxFlags::BTIME | StatxFlags::MNT_ID;
    retry(|| rfs::statx(fd, name, flags | AtFlags::NO_AUTOMOUNT, mask)).map(|raw| plain(&raw))
}

fn plain(raw: &Statx) -> Stat {
    let has = |flag: StatxFlags| raw.stx_mask & flag.bits() != 0;
    Stat {
        mode: u32::from(raw.stx_mode),
        device: Device { major: raw.stx_dev_major, minor: raw.stx_dev_minor },
        inode: raw.stx_ino,
        links: raw.stx_nlink,
        uid: raw.stx_uid,
        gid: raw.stx_gid,
        size_bytes: raw.stx_size,
        blocks: raw.stx_blocks,
        block_size_bytes: raw.stx_blksize,
        special: Device { major: raw.stx_rdev_major, minor: raw.stx_rdev_minor },
        accessed: moment(raw.stx_atime),
        modified: moment(raw.stx_mtime),
        changed: moment(raw.stx_ctime),
        born: has(StatxFlags::BTIME).then(|| moment(raw.stx_btime)),
        mount: if has(StatxFlags::MNT_ID) { raw.stx_mnt_id } else { 0 },
    }
}

fn moment(raw: StatxTimestamp) -> Moment {
    Moment { seconds: raw.tv_sec, nanoseconds: raw.tv_nsec }
}
