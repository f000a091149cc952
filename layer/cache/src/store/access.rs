//! Reading and zeroing of data files, and their errors.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use tombolo_core::{Error, Result};
use tombolo_mem::Sink;
use tombolo_sys::Errno;
use tombolo_sys::ranges::{self, AllocateMode};
use tombolo_sys::rw::{self, TransferFlags};

/// Converts an error of writing, so that the caller can tell a full disk from other failures.
pub(super) fn not_kept(error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::StorageFull => Error::NoSpace,
        io::ErrorKind::QuotaExceeded => Error::QuotaExceeded,
        _ => Error::io(error),
    }
}

/// Zeroes a range by punching a hole, or by writing zeroes where holes are not supported.
pub(super) fn clear(file: &File, range: Range<u64>) -> Result<()> {
    let hole = AllocateMode::PUNCH_HOLE | AllocateMode::KEEP_SIZE;
    if ranges::allocate(file.as_fd(), hole, range.start, range.end - range.start).is_ok() {
        return Ok(());
    }
    let zeros = vec![0; 64 << 10];
    let mut at = range.start;
    while at < range.end {
        let len = (range.end - at).min(zeros.len() as u64);
        file.write_all_at(zeros.get(..len as usize).unwrap_or_default(), at).map_err(not_kept)?;
        at += len;
    }
    Ok(())
}

/// Reads from the page cache without blocking, where the file system supports that (RWF_NOWAIT); otherwise
/// may block. Returns `None` if the data are not in the page cache, or the read without blocking fails for
/// another reason.
pub(crate) fn read_now(file: &File, offset: u64, into: &Sink) -> Result<Option<usize>> {
    match rw::read(file.as_fd(), into, offset, TransferFlags::NOWAIT) {
        Ok(count) => Ok(Some(count)),
        Err(Errno::OPNOTSUPP) => Ok(Some(rw::read(file.as_fd(), into, offset, TransferFlags::empty())?)),
        Err(_) => Ok(None),
    }
}

/// Fills `into`, or reads up to the end of the file.
pub(crate) fn read_waiting(file: &File, offset: u64, into: &Sink) -> Result<usize> {
    let (mut rest, mut done) = (into.clone(), 0);
    while !rest.is_empty() {
        match rw::read(file.as_fd(), &rest, offset + done as u64, TransferFlags::empty())? {
            0 => break,
            count => {
                done += count;
                rest.advance(count);
            }
        }
    }
    Ok(done)
}
