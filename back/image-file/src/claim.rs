//! Locks on images, compatible with QEMU's (`block/file-posix.c`): each user holds a shared lock on one byte
//! for each operation it performs and on another for each operation it denies to others, and checks for
//! conflicting locks of other users.
//!
//! In addition, the open file of an io_uring holds a lock on a byte unknown to QEMU. The kernel closes the
//! file when the ring's last transfer is done (io_uring(7)), possibly long after the process was killed. The
//! next user with whose operations the transfers could conflict waits until then, within a time limit.

use std::os::fd::BorrowedFd;
use std::thread;
use std::time::{Duration, Instant};

use tombolo_core::block::OpenOptions;
use tombolo_sys::lock::{LockKind, LockRange, conflict, try_lock};
use tombolo_sys::{Errno, Result};

/// Lock byte of the users that perform operation 0 (QEMU's `RAW_LOCK_PERM_BASE`); other operations' bytes
/// follow.
const DONE_BASE: u64 = 100;
/// Lock byte of the users that deny operation 0 to others (QEMU's `RAW_LOCK_SHARED_BASE`).
const REFUSED_BASE: u64 = 200;

/// An operation on an image: the offset of its lock bytes from [`DONE_BASE`] and [`REFUSED_BASE`], and
/// messages about its users.
struct Operation {
    offset: u64,
    done: &'static str,
    refused: &'static str,
}

const READS: Operation = Operation { offset: 0, done: "reads it", refused: "denies reading" };
const WRITES: Operation = Operation { offset: 1, done: "writes to it", refused: "denies writing" };
const RESIZES: Operation = Operation { offset: 3, done: "may resize it", refused: "denies resizing" };

/// Lock byte of a writer's ring. The bytes of readers' rings follow, by user number.
const RING_BASE: u64 = 1 << 32;

/// Maximum wait for the transfers of killed users; longer than a healthy disk takes.
const RING_TIMEOUT: Duration = Duration::from_secs(30);

/// A user of an image.
#[derive(Clone, Copy)]
pub(crate) struct User {
    pub(crate) is_writer: bool,
    /// Number that distinguishes a reader from others ([`OpenOptions::user`]).
    pub(crate) number: u32,
}

impl User {
    pub(crate) fn of(options: &OpenOptions) -> Self {
        Self { is_writer: !options.read_only, number: options.user }
    }

    fn ring(self) -> LockRange {
        byte_at(if self.is_writer { RING_BASE } else { RING_BASE + 1 + u64::from(self.number) })
    }

    /// Returns the rings whose end this user must await before it begins. A writer has already claimed the
    /// image, so all locked rings belong to killed processes. A reader awaits only the writers' rings and,
    /// unless its number is 0, those of its own number, because other readers' rings may be in use.
    fn rings_to_await(self) -> impl Iterator<Item = LockRange> {
        let all = LockRange { start: RING_BASE, len: 1 << 33 };
        let own = (!self.is_writer && self.number != 0).then(|| self.ring());
        [if self.is_writer { all } else { byte_at(RING_BASE) }].into_iter().chain(own)
    }

    /// Locks the user's ring through `file`, for as long as its open file description exists.
    pub(crate) fn lock_ring(self, file: BorrowedFd<'_>) -> Result<()> {
        try_lock(file, LockKind::Shared, self.ring())
    }

    /// Waits until the transfers of killed users are done; `false` on timeout.
    fn wait_for_rings(self, file: BorrowedFd<'_>) -> Result<bool> {
        let deadline = Instant::now() + RING_TIMEOUT;
        for range in self.rings_to_await() {
            while conflict(file, LockKind::Exclusive, range)?.is_some() {
                if Instant::now() > deadline {
                    return Ok(false);
                }
                thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(true)
    }
}

/// Takes the locks of a reader or a writer, and waits for the transfers of killed users. Returns the conflict
/// with another user, worded for an error message; `None` on success.
pub(crate) fn claim(file: BorrowedFd<'_>, user: User) -> Result<Option<&'static str>> {
    let conflict = take_locks(file, user.is_writer)?;
    if conflict.is_none() && !user.wait_for_rings(file)? {
        return Ok(Some("was killed but has transfers in flight"));
    }
    Ok(conflict)
}

fn take_locks(file: BorrowedFd<'_>, is_writer: bool) -> Result<Option<&'static str>> {
    let done: &[Operation] = if is_writer { &[READS, WRITES, RESIZES] } else { &[READS] };
    let refused = [WRITES, RESIZES];
    // The locks are taken before the check, so that of two concurrent users at least one finds the other.
    for byte in
        done.iter().map(|it| DONE_BASE + it.offset).chain(refused.iter().map(|it| REFUSED_BASE + it.offset))
    {
        match try_lock(file, LockKind::Shared, byte_at(byte)) {
            Ok(()) => {}
            Err(Errno::AGAIN) => return Ok(Some("has locked it")),
            Err(errno) => return Err(errno),
        }
    }
    for it in done {
        if is_locked(file, REFUSED_BASE + it.offset)? {
            return Ok(Some(it.refused));
        }
    }
    for it in &refused {
        if is_locked(file, DONE_BASE + it.offset)? {
            return Ok(Some(it.done));
        }
    }
    Ok(None)
}

fn is_locked(file: BorrowedFd<'_>, byte: u64) -> Result<bool> {
    Ok(conflict(file, LockKind::Exclusive, byte_at(byte))?.is_some())
}

fn byte_at(start: u64) -> LockRange {
    LockRange { start, len: 1 }
}
