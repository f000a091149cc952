//! Changes of a file's attributes, through any descriptor, including `O_PATH`; only [`length`] needs one
//! that is open for writing. No function follows a symbolic link; see also [`permissions`].

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::fs::{self as rfs, AtFlags, Gid, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid};

use crate::errno::{Errno, Result, check, retry};
use crate::open::{OwnPath, permission};
use crate::stat::Moment;

/// The new value of a time stamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SetTime {
    /// No change.
    #[default]
    Keep,
    /// This machine's clock; if given for both times, allowed to every user with write permission.
    Now,
    /// A given time; allowed to the owner and the superuser only.
    To(Moment),
}

/// Sets the permission bits. Symbolic links have none: EOPNOTSUPP. Before Linux 6.6, which has no fchmodat2,
/// it is left to the link's file system to refuse, unless the kernel was patched.
pub fn permissions(fd: BorrowedFd<'_>, mode: u32) -> Result<()> {
    match permissions_in_place(fd, mode) {
        // Linux before 6.6. The path leads to the object itself, even if that is a symbolic link.
        Err(Errno::NOSYS) => {
            let path = OwnPath::of(fd);
            retry(|| rfs::chmod(path.as_bytes(), permission(mode)))
        }
        outcome => outcome,
    }
}

/// Sets the user, the group, or both; `None` leaves one unchanged. The kernel also clears the set-user-id
/// bit of a file, and its set-group-id bit if the group may execute it, even for user 0.
pub fn owner(fd: BorrowedFd<'_>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
    // The number with all bits set is no id: the kernel interprets it as "unchanged".
    if uid == Some(u32::MAX) || gid == Some(u32::MAX) {
        return Err(Errno::INVAL);
    }
    let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
    retry(|| rfs::chownat(fd, "", uid, gid, AtFlags::EMPTY_PATH))
}

/// Sets the times of last access and last modification.
pub fn times(fd: BorrowedFd<'_>, accessed: SetTime, modified: SetTime) -> Result<()> {
    let times = Timestamps { last_access: timespec(accessed)?, last_modification: timespec(modified)? };
    retry(|| rfs::utimensat(fd, "", &times, AtFlags::EMPTY_PATH))
}

/// Truncates or extends a file that is open for writing.
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
