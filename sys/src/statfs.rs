//! What a file system has left.

use std::os::fd::BorrowedFd;

use crate::errno::{Result, retry};

/// Space and limits of one file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileSystemStat {
    /// The unit of the three counts of blocks, in bytes.
    pub block_size_bytes: u32,
    /// The preferred size of transfers, in bytes.
    pub io_size_bytes: u32,
    /// All blocks.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Free blocks for users without privileges.
    pub blocks_available: u64,
    /// All inodes, 0 where they are not limited.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
    /// The longest name, in bytes.
    pub name_max_len: u32,
    /// The identity of the file system, as far as it has one.
    pub id: u64,
    /// The magic number of its type (`EXT4_SUPER_MAGIC` and so on).
    pub magic: u64,
}

/// ext2, ext3 and ext4.
pub const MAGIC_EXT4: u64 = 0xEF53;
/// XFS.
pub const MAGIC_XFS: u64 = 0x5846_5342;
/// Btrfs.
pub const MAGIC_BTRFS: u64 = 0x9123_683E;
/// tmpfs.
pub const MAGIC_TMPFS: u64 = 0x0102_1994;
/// F2FS.
pub const MAGIC_F2FS: u64 = 0xF2F5_2010;
/// overlayfs.
pub const MAGIC_OVERLAY: u64 = 0x794C_7630;

/// Asks the file system in which `fd` lies.
pub fn file_system_stat(fd: BorrowedFd<'_>) -> Result<FileSystemStat> {
    let raw = retry(|| rustix::fs::fstatfs(fd))?;
    let standard = retry(|| rustix::fs::fstatvfs(fd))?;
    Ok(FileSystemStat {
        block_size_bytes: standard.f_frsize as u32,
        io_size_bytes: standard.f_bsize as u32,
        blocks: standard.f_blocks,
        blocks_free: standard.f_bfree,
        blocks_available: standard.f_bavail,
        files: standard.f_files,
        files_free: standard.f_ffree,
        name_max_len: standard.f_namemax as u32,
        id: standard.f_fsid,
        magic: raw.f_type.unsigned_abs() & 0xFFFF_FFFF,
    })
}
