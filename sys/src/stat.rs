//! What a file is: statx into a plain structure.

use std::os::fd::BorrowedFd;

use rustix::fs::{self as rfs, AtFlags, Statx, StatxAttributes, StatxFlags, StatxTimestamp};

use crate::errno::{Result, retry};
use crate::open::check_component;

/// A moment: seconds since 1970 (before it: negative) and nanoseconds below 10⁹, always counted upwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment {
    /// Whole seconds since 1970-01-01 UTC.
    pub seconds: i64,
    /// Nanoseconds after that second.
    pub nanoseconds: u32,
}

/// A device number in its two halves: how kernel interfaces pack them differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Device {
    /// Which driver.
    pub major: u32,
    /// Which of its devices.
    pub minor: u32,
}

impl Device {
    /// The C library's 64-bit `dev_t`, as `mknod` takes it.
    pub fn packed(self) -> u64 {
        rfs::makedev(self.major, self.minor)
    }
}

/// The attributes of one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// Type and permission bits, as in `st_mode`.
    pub mode: u32,
    /// The device of the file system.
    pub device: Device,
    /// The inode number, unique within the device while the file lives.
    pub inode: u64,
    /// How many names the file has.
    pub links: u32,
    /// The owner.
    pub uid: u32,
    /// The owning group.
    pub gid: u32,
    /// The length in bytes.
    pub size_bytes: u64,
    /// Space taken, in units of 512 bytes.
    pub blocks: u64,
    /// The preferred size of transfers, in bytes.
    pub block_size_bytes: u32,
    /// What a device node stands for.
    pub special: Device,
    /// Last read.
    pub accessed: Moment,
    /// Last change of the content.
    pub modified: Moment,
    /// Last change of anything.
    pub changed: Moment,
    /// Creation, where the file system keeps it.
    pub born: Option<Moment>,
    /// The mount through which it was reached; 0 on kernels before 5.8.
    pub mount: u64,
    /// Whether it is the root of a mount.
    pub mount_root: bool,
}

impl Stat {
    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        self.kind() == S_IFDIR
    }

    /// Whether it is a regular file.
    pub fn is_regular(&self) -> bool {
        self.kind() == S_IFREG
    }

    /// Whether it is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.kind() == S_IFLNK
    }

    /// The type bits of the mode.
    pub fn kind(&self) -> u32 {
        self.mode & S_IFMT
    }
}

/// The bits of a mode that hold the type.
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

/// Asks about what `fd` stands for. Does not block on a local file system: the inode is in memory.
pub fn stat(fd: BorrowedFd<'_>) -> Result<Stat> {
    statx(fd, b"", AtFlags::EMPTY_PATH)
}

/// Asks about one entry of `dir`, about the link itself if it is one.
///
/// `name` is a single component, as for [`crate::open::open_entry`]. May wait for a disk.
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
        mount_root: raw.stx_attributes.contains(StatxAttributes::MOUNT_ROOT),
    }
}

fn moment(raw: StatxTimestamp) -> Moment {
    Moment { seconds: raw.tv_sec, nanoseconds: raw.tv_nsec }
}
