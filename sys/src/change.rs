//! Changing attributes, on places (`O_PATH`) too, and of the link itself where the place is one.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::fs::{self as rfs, AtFlags, Gid, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid};

use crate::errno::{Errno, Result, check, retry};
use crate::open::{OwnPath, permission};
use crate::stat::Moment;

/// What to do with a time stamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SetTime {
    /// Leave it.
    #[default]
    Keep,
    /// The server's clock; each user that may write may do this.
    Now,
    /// A given moment; only the owner may do this.
    To(Moment),
}

/// Sets the permission bits. A symbolic link has none to set: EOPNOTSUPP.
pub fn permissions(fd: BorrowedFd<'_>, mode: u32) -> Result<()> {
    match permissions_in_place(fd, mode) {
        // Linux before 6.6.
        Err(Errno::NOSYS) => {
            let path = OwnPath::of(fd);
            retry(|| rfs::chmod(path.as_bytes(), permission(mode)))
        }
        outcome => outcome,
    }
}

/// Sets user and group, each if given. The kernel takes set-user-id bits away, for every caller.
pub fn owner(fd: BorrowedFd<'_>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
    // The number with all bits set is "keep" on the kernel's side, and no id.
    if uid == Some(u32::MAX) || gid == Some(u32::MAX) {
        return Err(Errno::INVAL);
    }
    let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
    retry(|| rfs::chownat(fd, "", uid, gid, AtFlags::EMPTY_PATH))
}

/// Sets the times of last read and last change of content.
pub fn times(fd: BorrowedFd<'_>, accessed: SetTime, modified: SetTime) -> Result<()> {
    let times = Timestamps { last_access: timespec(accessed)?, last_modification: timespec(modified)? };
    retry(|| rfs::utimensat(fd, "", &times, AtFlags::EMPTY_PATH))
}

/// Cuts or extends a file that is open for writing.
pub fn length(fd: BorrowedFd<'_>, size_bytes: u64) -> Result<()> {
    retry(|| rfs::ftruncate(fd, size_bytes))
}

fn permissions_in_place(fd: BorrowedFd<'_>, mode: u32) -> Result<()> {
    retry(|| {
        // SAFETY: the path is an empty C string, and the kernel reads nothing else of ours.
        let outcome = unsafe {
            libc::syscall(
                libc::SYS_fchmodat2,
                fd.as_raw_fd(),
                c"".as_ptr(),
                permission(mode).as_raw_mode(),
                libc::AT_EMPTY_PATH,
            )
        };
        check(outcome).map(drop)
    })
}

fn timespec(time: SetTime) -> Result<Timespec> {
    Ok(match time {
        SetTime::Keep => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        SetTime::Now => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        SetTime::To(Moment { nanoseconds: 1_000_000_000.., .. }) => return Err(Errno::INVAL),
        SetTime::To(moment) => Timespec { tv_sec: moment.seconds, tv_nsec: moment.nanoseconds.into() },
    })
}
