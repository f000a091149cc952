//! Conversion between the kernel's attributes and the waist's.

use tombolo_core::fs::{Attr, Device, FileType, Mode, SetTime, Timestamp};
use tombolo_sys::change;
use tombolo_sys::stat::{self, Moment, Stat};

/// Converts the kernel's attributes. An unknown file type becomes a regular file.
pub(crate) fn attr_of(stat: &Stat) -> Attr {
    Attr {
        file_type: file_type(stat.kind()).unwrap_or(FileType::Regular),
        mode: Mode::new(stat.mode),
        nlink: stat.links,
        uid: stat.uid,
        gid: stat.gid,
        size: stat.size_bytes,
        blocks: stat.blocks,
        block_size: stat.block_size_bytes,
        rdev: Device { major: stat.special.major, minor: stat.special.minor },
        fsid: stat.device.packed(),
        fileid: stat.inode,
        generation: birth_mark(stat),
        atime: timestamp(stat.accessed),
        mtime: timestamp(stat.modified),
        ctime: timestamp(stat.changed),
        btime: stat.born.map(timestamp),
        volatile: false,
    }
}

/// Returns the birth time in nanoseconds, which distinguishes a file from an earlier one with the same inode
/// number; 0 where the file system does not record it.
pub(crate) fn birth_mark(stat: &Stat) -> u64 {
    let Some(born) = stat.born else { return 0 };
    born.seconds.unsigned_abs().wrapping_mul(1_000_000_000).wrapping_add(u64::from(born.nanoseconds))
}

/// Returns the file type for a mode's type bits; `None` for other bits, such as 0, which listings use for
/// "unknown".
pub(crate) fn file_type(kind: u32) -> Option<FileType> {
    Some(match kind {
        stat::S_IFREG => FileType::Regular,
        stat::S_IFDIR => FileType::Directory,
        stat::S_IFLNK => FileType::Symlink,
        stat::S_IFBLK => FileType::BlockDevice,
        stat::S_IFCHR => FileType::CharDevice,
        stat::S_IFIFO => FileType::Fifo,
        stat::S_IFSOCK => FileType::Socket,
        _ => return None,
    })
}

/// Returns the type bits that a mode has for this file type.
pub(crate) fn kind_bits(file_type: FileType) -> u32 {
    match file_type {
        FileType::Regular => stat::S_IFREG,
        FileType::Directory => stat::S_IFDIR,
        FileType::Symlink => stat::S_IFLNK,
        FileType::BlockDevice => stat::S_IFBLK,
        FileType::CharDevice => stat::S_IFCHR,
        FileType::Fifo => stat::S_IFIFO,
        FileType::Socket => stat::S_IFSOCK,
    }
}

/// Converts a time to set; `None` leaves the file's time unchanged.
pub(crate) fn set_time(time: Option<SetTime>) -> change::SetTime {
    match time {
        None => change::SetTime::Keep,
        Some(SetTime::Now) => change::SetTime::Now,
        Some(SetTime::At(at)) => change::SetTime::To(Moment { seconds: at.secs, nanoseconds: at.nanos }),
    }
}

fn timestamp(moment: Moment) -> Timestamp {
    Timestamp { secs: moment.seconds, nanos: moment.nanoseconds }
}
