//! Transfers from and to memory that the kernel cannot pin: a PCI BAR, or what `/dev/mmapper` maps, in a guest that serves.
//!
//! Copying to and from such memory is no trouble, so a file that goes through the page cache never gets here. A file opened with
//! O_DIRECT, or one of a FUSE mount without a cache, wants the pages themselves, and says EFAULT. Then the bytes go through private memory, a
//! piece at a time. Memory whose file is gone says EFAULT too, and goes on saying it.

use tombolo_mem::{Buffer, Sink, Source};
use tombolo_sys::rw::{self, TransferFlags};
use tombolo_sys::{Errno, Result};

use crate::files::OpenFile;

/// How much private memory a transfer takes at most, for as long as it lasts.
const PIECE_BYTES: usize = 1 << 20;

/// As [`rw::read`]; a short count does not mean the end of the file.
pub fn read(open: &OpenFile, into: &Sink, offset: u64) -> Result<usize> {
    match rw::read(open.fd(), into, offset, TransferFlags::empty()) {
        Err(Errno::FAULT) if !into.is_poisoned() => {
            let piece = Buffer::new(into.len().min(PIECE_BYTES));
            let count = rw::read(open.fd(), &piece.sink(0..piece.len()), offset, TransferFlags::empty())?;
            piece.source(0..count).copy_to_sink(into);
            if into.is_poisoned() { Err(Errno::FAULT) } else { Ok(count) }
        }
        done => done,
    }
}

/// As [`rw::write`].
pub fn write(open: &OpenFile, from: &Source, offset: u64, flags: TransferFlags) -> Result<usize> {
    match rw::write(open.fd(), from, offset, flags) {
        Err(Errno::FAULT) if !from.is_poisoned() => {
            let piece = Buffer::new(from.len().min(PIECE_BYTES));
            from.copy_to_sink(&piece.sink(0..piece.len()));
            if from.is_poisoned() {
                return Err(Errno::FAULT);
            }
            rw::write(open.fd(), &piece.source(0..piece.len()), offset, flags)
        }
        done => done,
    }
}
