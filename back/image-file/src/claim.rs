//! Locks by which users of one image know of each other, as QEMU has them (`block/file-posix.c`): each user holds a shared lock on one byte
//! for each thing that it does, and on another for each that it does not let others do; and looks whether another holds those that do not
//! go together with it.

use std::os::fd::BorrowedFd;

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

/// Takes the locks of a reader, or of a writer. What another does that does not go together with it, if one does.
pub(crate) fn claim(file: BorrowedFd<'_>, is_writer: bool) -> Result<Option<&'static str>> {
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
