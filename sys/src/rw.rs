//! Reading and writing at a position, straight from and into memory that others may see.

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

use smallvec::SmallVec;
use tombolo_mem::{INLINE_SEGMENTS, Segment, Sink, Source};

/// How to read or write (`RWF_*`).
pub use rustix::io::ReadWriteFlags as TransferFlags;

use crate::errno::{Errno, Result, check, retry};

/// The kernel takes no more spans than this in one call (`IOV_MAX`); the rest waits for the next.
const SPANS_MAX: usize = 1024;

/// Reads from `offset` on into the start of `into`; returns how many bytes came, 0 only at the end of the
/// file or for an empty sink.
///
/// With `NOWAIT`, EAGAIN or a short count stand for what is not in memory, and EOPNOTSUPP for a file system
/// that cannot tell. EFAULT when the memory is gone.
pub fn read(fd: BorrowedFd<'_>, into: &Sink, offset: u64, flags: TransferFlags) -> Result<usize> {
    let spans = spans(into.segments());
    transfer(libc::SYS_preadv2, fd, &spans, offset, flags)
}

/// Writes the start of `from` at `offset`; returns how many bytes went.
///
/// On a description opened with `APPEND`, and with the flag of that name, the offset does not count
/// (pwrite(2), BUGS).
pub fn write(fd: BorrowedFd<'_>, from: &Source, offset: u64, flags: TransferFlags) -> Result<usize> {
    let spans = spans(from.segments());
    transfer(libc::SYS_pwritev2, fd, &spans, offset, flags)
}

/// Whether all `len` bytes from `offset` on are there and in memory, so that reading them waits for no disk.
/// Takes as long as reading them: it is for what is about to be done with a few of them within the kernel,
/// which cannot be told not to wait.
pub fn is_in_memory(fd: BorrowedFd<'_>, offset: u64, len: usize) -> bool {
    let mut scratch = [MaybeUninit::<u8>::uninit(); SCRATCH_BYTES];
    let iov_base = scratch.as_mut_ptr().cast();
    let spans: Spans = (0..len)
        .step_by(SCRATCH_BYTES)
        .take(SPANS_MAX)
        .map(|at| libc::iovec { iov_base, iov_len: SCRATCH_BYTES.min(len - at) })
        .collect();
    transfer(libc::SYS_preadv2, fd, &spans, offset, TransferFlags::NOWAIT) == Ok(len)
}

/// Where data go that are not wanted: few enough bytes to stay in the processor's cache.
const SCRATCH_BYTES: usize = 16 << 10;

pub(crate) type Spans = SmallVec<[libc::iovec; INLINE_SEGMENTS]>;

pub(crate) fn spans(segments: impl Iterator<Item = Segment>) -> Spans {
    segments
        .take(SPANS_MAX)
        .map(|segment| libc::iovec { iov_base: segment.ptr.cast(), iov_len: segment.len })
        .collect()
}

fn transfer(
    call: i64,
    fd: BorrowedFd<'_>,
    spans: &Spans,
    offset: u64,
    flags: TransferFlags,
) -> Result<usize> {
    let offset = i64::try_from(offset).map_err(|_| Errno::INVAL)?;
    retry(|| {
        // SAFETY: each span comes from a Sink or Source that the caller borrows to us, which keeps the memory
        // alive, or is the caller's own scratch memory; the kernel copies, and no Rust reference to those
        // bytes exists. The position is passed in two halves, of which a 64-bit kernel takes the lower one
        // for all (preadv2(2), NOTES).
        let outcome = unsafe {
            libc::syscall(call, fd.as_raw_fd(), spans.as_ptr(), spans.len(), offset, 0, flags.bits())
        };
        check(outcome)
    })
}
