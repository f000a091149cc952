//! Locks by which users of one image know of each other, as QEMU has them (`block/file-posix.c`): each user
//! holds a shared lock on one byte for each thing that it does, and on another for each that it does not let
//! others do; and looks whether another holds those that do not go together with it.
//!
//! Beside those, what a ring has open locks a byte that QEMU knows nothing of. The kernel lets go of a ring's
//! files when all that it was given is done (io_uring(7)), which may be long after the process was killed
//! that made it. A user that comes after waits for that.

use std::os::fd::BorrowedFd;
use std::thread;
use std::time::{Duration, Instant};

use tombolo_core::block::OpenOptions;
use tombolo_sys::lock::{LockKind, LockRange, conflict, try_lock};
use tombolo_sys::{Errno, Result};

/// The byte of the first thing that is done, and of the first that others must not do.
const DONE_BASE: u64 = 100;
const REFUSED_BASE: u64 = 200;

/// One thing that is done with an image: its place, and how it is told.
struct Use {
    place: u64,
    done: &'static str,
    refused: &'static str,
}

const READS: Use = Use { place: 0, done: "reads it", refused: "lets no other read it" };
const WRITES: Use = Use { place: 1, done: "writes to it", refused: "lets no other write to it" };
const RESIZES: Use = Use { place: 3, done: "may resize it", refused: "lets no other resize it" };

/// The byte of a writer's ring. Those of readers' follow, by the numbers of their users.
const RING_BASE: u64 = 1 << 32;

/// Longer than disks take that are not broken.
const RING_TIMEOUT: Duration = Duration::from_secs(30);

/// One that uses an image.
#[derive(Clone, Copy)]
pub(crate) struct User {
    pub(crate) is_writer: bool,
    /// Of readers, of which there may be many: which it is.
    pub(crate) number: u32,
}

impl User {
    pub(crate) fn of(options: &OpenOptions) -> Self {
        Self { is_writer: !options.read_only, number: options.user }
    }

    fn ring(self) -> LockRange {
        byte_at(if self.is_writer { RING_BASE } else { RING_BASE + 1 + u64::from(self.number) })
    }

    /// Rings that must be gone before it begins. A writer has claimed the image, so none of them belongs to a
    /// user that lives; of readers others may.
    fn awaited(self) -> impl Iterator<Item = LockRange> {
        let all = LockRange { start: RING_BASE, len: 1 << 33 };
        let own = (!self.is_writer && self.number != 0).then(|| self.ring());
        [if self.is_writer { all } else { byte_at(RING_BASE) }].into_iter().chain(own)
    }

    /// Says for as long as this open file lives that the user's ring has it.
    pub(crate) fn lock_ring(self, file: BorrowedFd<'_>) -> Result<()> {
        try_lock(file, LockKind::Shared, self.ring())
    }

    /// Waits until nothing is under way of users that were killed; false if that takes too long.
    fn wait_for_rings(self, file: BorrowedFd<'_>) -> Result<bool> {
        let deadline = Instant::now() + RING_TIMEOUT;
        for range in self.awaited() {
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

/// Takes the locks of a reader, or of a writer. What another does that does not go together with it, if one
/// does.
pub(crate) fn claim(file: BorrowedFd<'_>, user: User) -> Result<Option<&'static str>> {
    let held = claim_of_living(file, user.is_writer)?;
    if held.is_none() && !user.wait_for_rings(file)? {
        return Ok(Some("was killed, and whose transfers have not ended"));
    }
    Ok(held)
}

fn claim_of_living(file: BorrowedFd<'_>, is_writer: bool) -> Result<Option<&'static str>> {
    let done: &[Use] = if is_writer { &[READS, WRITES, RESIZES] } else { &[READS] };
    let refused = [WRITES, RESIZES];
    // First taken, then looked at: of two that come at once at least one sees the other.
    for byte in
        done.iter().map(|it| DONE_BASE + it.place).chain(refused.iter().map(|it| REFUSED_BASE + it.place))
    {
        match try_lock(file, LockKind::Shared, byte_at(byte)) {
            Ok(()) => {}
            Err(Errno::AGAIN) => return Ok(Some("has locked it")),
            Err(errno) => return Err(errno),
        }
    }
    for it in done {
        if is_held(file, REFUSED_BASE + it.place)? {
            return Ok(Some(it.refused));
        }
    }
    for it in &refused {
        if is_held(file, DONE_BASE + it.place)? {
            return Ok(Some(it.done));
        }
    }
    Ok(None)
}

fn is_held(file: BorrowedFd<'_>, byte: u64) -> Result<bool> {
    Ok(conflict(file, LockKind::Exclusive, byte_at(byte))?.is_some())
}

fn byte_at(start: u64) -> LockRange {
    LockRange { start, len: 1 }
}
