//! Conversion between the kernel's attributes and the waist's.

use tombolo_core::fs::{Attr, Device, FileType, Mode, SetTime, Timestamp};
use tombolo_sys::change;
use tombolo_sys::stat::{Moment, Stat};

/// Converts the kernel's attributes. An unknown file type becomes a regular file.
pub(crate) fn attr_of(stat: &Stat) -> Attr {
    Attr {
        file_type: FileType::of_mode(stat.mode).unwrap_or(FileType::Regular),
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
        generation: birth_ns(stat),
        atime: timestamp(stat.accessed),
        mtime: timestamp(stat.modified),
        ctime: timestamp(stat.changed),
        btime: stat.born.map(timestamp),
        volatile: false,
    }
}

/// Returns the birth time in nanoseconds, which distinguishes a file from an earlier one with the same inode
/// number; 0 where the file system does not record it.
pub(crate) fn birth_ns(stat: &Stat) -> u64 {
    let Some(born) = stat.born else { return 0 };
    born.seconds.unsigned_abs().wrapping_mul(1_000_000_000).wrapping_add(u64::from(born.nanoseconds))
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
