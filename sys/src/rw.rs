//! Positional I/O, directly to and from memory that may be visible to others.

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

use smallvec::SmallVec;
use tombolo_mem::{INLINE_SEGMENTS, Segment, Sink, Source};

/// Flags of a transfer (`RWF_*`).
pub use rustix::io::ReadWriteFlags as TransferFlags;

use crate::errno::{Errno, Result, check, retry};

/// Maximum number of spans per call (`IOV_MAX`); the remaining ones need another call.
const SPANS_MAX: usize = 1024;

/// Reads from `offset` on into the start of `into`. Returns the number of bytes read, 0 only at the end of
/// the file or for an empty sink.
///
/// With `NOWAIT`, uncached data cause EAGAIN or a short count, and a file system without support EOPNOTSUPP.
/// EFAULT if the file beneath the memory was truncated.
pub fn read(fd: BorrowedFd<'_>, into: &Sink, offset: u64, flags: TransferFlags) -> Result<usize> {
    let spans = spans(into.segments());
    transfer(libc::SYS_preadv2, fd, &spans, offset, flags)
}

/// Writes the start of `from` at `offset`. Returns the number of bytes written.
///
/// The data are appended, and the offset is ignored, if the file was opened with `O_APPEND` (pwrite(2),
/// BUGS) or `flags` contain `RWF_APPEND`.
pub fn write(fd: BorrowedFd<'_>, from: &Source, offset: u64, flags: TransferFlags) -> Result<usize> {
    let spans = spans(from.segments());
    transfer(libc::SYS_pwritev2, fd, &spans, offset, flags)
}

/// Returns `true` if all `len` bytes from `offset` on exist and are cached, so that reading them does not
/// block on disk I/O; `false` also for more than 16 MiB. Takes as long as reading them: intended for small
/// ranges that are about to be processed within the kernel by a call without a nonblocking mode.
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

/// Size of the buffer for discarded data: small enough for the processor's cache.
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
        // SAFETY: each span is that of a borrowed Sink or Source, which keeps the memory alive, or the
        // caller's own scratch memory; the kernel copies, and no Rust reference to those bytes exists. The
        // position is passed in two halves, of which a 64-bit kernel uses the lower one only (preadv2(2),
        // NOTES).
        let outcome = unsafe {
            libc::syscall(call, fd.as_raw_fd(), spans.as_ptr(), spans.len(), offset, 0, flags.bits())
        };
        check(outcome)
    })
}
