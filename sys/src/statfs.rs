//! Space and identity of file systems.

use std::os::fd::{AsRawFd, BorrowedFd};

use crate::errno::{Result, check, retry};

/// Space and limits of one file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileSystemStat {
    /// Unit of the three counts of blocks, in bytes.
    pub block_size_bytes: u32,
    /// Total number of blocks.
    pub blocks: u64,
    /// Free blocks, including those reserved for the superuser.
    pub blocks_free: u64,
    /// Free blocks available to unprivileged users.
    pub blocks_available: u64,
    /// Total inodes; 0 if unlimited.
    pub files: u64,
    /// Number of inodes that can still be created; 0 if `files` is 0.
    pub files_free: u64,
    /// Maximum length of a name, in bytes.
    pub name_max_len: u32,
    /// Id of the file system (`f_fsid`); 0 if it has none.
    pub id: u64,
    /// Magic number of the type (`EXT4_SUPER_MAGIC` and others).
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

/// Returns space, limits and identity of the file system of `fd`.
pub fn file_system_stat(fd: BorrowedFd<'_>) -> Result<FileSystemStat> {
    let raw = retry(|| rustix::fs::fstatfs(fd))?;
    let standard = retry(|| rustix::fs::fstatvfs(fd))?;
    Ok(FileSystemStat {
        block_size_bytes: standard.f_frsize as u32,
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

/// Returns the identity of the file system of `fd`: its UUID if the kernel reports it (Linux 6.9), the same
/// on every machine; otherwise `f_fsid` and zeroes, all zeroes if it has none. `f_fsid` is derived from the
/// UUID on ext4 and btrfs; on XFS it is the device number. `fd` must not have been opened with `O_PATH`: the
/// UUID cannot be queried through it, so that the result would be `f_fsid`.
pub fn volume_id(fd: BorrowedFd<'_>) -> Result<[u8; 16]> {
    if let Some(uuid) = uuid(fd) {
        return Ok(uuid);
    }
    let id = retry(|| rustix::fs::fstatvfs(fd))?.f_fsid;
    Ok(u128::from(id).to_le_bytes())
}

fn uuid(fd: BorrowedFd<'_>) -> Option<[u8; 16]> {
    /// `struct fsuuid2`: the length, then the UUID.
    const REPLY_LEN: usize = 17;
    /// FS_IOC_GETFSUUID: `_IOR(0x15, 0, struct fsuuid2)`.
    const GET_UUID: u32 = 2 << 30 | (REPLY_LEN as u32) << 16 | 0x15 << 8;
    let mut reply = [0_u8; REPLY_LEN];
    // SAFETY: the kernel writes the 17 bytes encoded in the request's number, into a buffer of that size.
    let outcome = unsafe { libc::ioctl(fd.as_raw_fd(), libc::Ioctl::from(GET_UUID), reply.as_mut_ptr()) };
    check(outcome.into()).ok()?;
    let (&len, uuid) = reply.split_first()?;
    // A UUID of all zeroes means that the file system has none.
    let is_set = usize::from(len) == uuid.len() && uuid.iter().any(|&byte| byte != 0);
    uuid.first_chunk().copied().filter(|_| is_set)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn volume_ids_are_stable_and_distinct() {
        let id = |path: &str| {
            let at = File::open(path).expect("open");
            (volume_id(at.as_fd()).expect("its name"), file_system_stat(at.as_fd()).expect("statfs").magic)
        };
        let (root, proc) = (id("/"), id("/proc"));
        assert_eq!(root, id("/"));
        assert_eq!(root, id("/etc"));
        assert_ne!(root.0, [0; 16]);
        assert_ne!(root, proc);
        let memory = id("/dev/shm");
        assert!(memory.1 != MAGIC_TMPFS || memory.0 != root.0);
    }
}
