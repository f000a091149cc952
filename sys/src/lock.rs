//! File locks of open file descriptions: range locks (OFD) and whole-file locks (flock).
//!
//! OFD locks also conflict with POSIX locks, even of the same process; neither conflicts with flock.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::fs::FlockOperation;

use crate::errno::{Errno, Result, check, retry};

/// The mode of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockKind {
    /// Others may hold shared locks too.
    Shared,
    /// No other owner may hold any lock.
    Exclusive,
}

/// A byte range; with a `len` of 0 it extends to the end of the file, wherever that will be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockRange {
    /// The first byte.
    pub start: u64,
    /// Number of bytes, or 0.
    pub len: u64,
}

/// A conflicting lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conflict {
    /// Mode of the other owner's lock.
    pub kind: LockKind,
    /// Range of the other owner's lock, which may exceed the requested one.
    pub range: LockRange,
    /// Owning process; 0 for an open file description.
    pub pid: u32,
}

/// Locks a range for the open file description of `fd`; EAGAIN on a conflict.
///
/// A shared lock needs a description open for reading, an exclusive one for writing: EBADF otherwise.
pub fn try_lock(fd: BorrowedFd<'_>, kind: LockKind, range: LockRange) -> Result<()> {
    let mut raw = raw_lock(lock_type(kind), range)?;
    match control(fd, libc::F_OFD_SETLK, &mut raw) {
        Err(Errno::ACCESS) => Err(Errno::AGAIN),
        outcome => outcome,
    }
}

/// Unlocks a range, which may be a part of a locked one.
pub fn unlock(fd: BorrowedFd<'_>, range: LockRange) -> Result<()> {
    control(fd, libc::F_OFD_SETLK, &mut raw_lock(libc::F_UNLCK, range)?)
}

/// Returns another owner's lock that conflicts with this one, if any.
pub fn conflict(fd: BorrowedFd<'_>, kind: LockKind, range: LockRange) -> Result<Option<Conflict>> {
    let mut raw = raw_lock(lock_type(kind), range)?;
    control(fd, libc::F_OFD_GETLK, &mut raw)?;
    let kind = match libc::c_int::from(raw.l_type) {
        libc::F_UNLCK => return Ok(None),
        libc::F_RDLCK => LockKind::Shared,
        _ => LockKind::Exclusive,
    };
    let range = LockRange { start: raw.l_start.unsigned_abs(), len: raw.l_len.unsigned_abs() };
    Ok(Some(Conflict { kind, range, pid: u32::try_from(raw.l_pid).unwrap_or(0) }))
}

/// Locks the whole file for the open file description of `fd`; EAGAIN on a conflict.
pub fn try_flock(fd: BorrowedFd<'_>, kind: LockKind) -> Result<()> {
    let operation = match kind {
        LockKind::Shared => FlockOperation::NonBlockingLockShared,
        LockKind::Exclusive => FlockOperation::NonBlockingLockExclusive,
    };
    retry(|| rustix::fs::flock(fd, operation))
}

/// Releases the whole-file lock.
pub fn unflock(fd: BorrowedFd<'_>) -> Result<()> {
    retry(|| rustix::fs::flock(fd, FlockOperation::Unlock))
}

fn lock_type(kind: LockKind) -> libc::c_int {
    match kind {
        LockKind::Shared => libc::F_RDLCK,
        LockKind::Exclusive => libc::F_WRLCK,
    }
}

fn raw_lock(kind: libc::c_int, range: LockRange) -> Result<libc::flock> {
    Ok(libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: i64::try_from(range.start).map_err(|_| Errno::OVERFLOW)?,
        l_len: i64::try_from(range.len).map_err(|_| Errno::OVERFLOW)?,
        // F_OFD_* commands require 0.
        l_pid: 0,
    })
}

fn control(fd: BorrowedFd<'_>, command: libc::c_int, lock: &mut libc::flock) -> Result<()> {
    retry(|| {
        // SAFETY: the lock commands read and write one `struct flock`, which lives through the call.
        let outcome = unsafe { libc::fcntl(fd.as_raw_fd(), command, &raw mut *lock) };
        check(outcome.into()).map(drop)
    })
}
