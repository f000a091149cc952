//! Byte streams as wake-ups: FIFOs, serial lines and sockets. Only [`wait_readable`] blocks.

use std::fs::{File, OpenOptions};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use rustix::io;
use smallvec::SmallVec;

use crate::errno::{Errno, Result, retry};

/// Opens a FIFO or a character device for reading and writing, without blocking, and without a controlling
/// terminal. A FIFO opened for both never reports the end of its stream.
pub fn open(path: &Path) -> std::io::Result<File> {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    OpenOptions::new().read(true).write(true).custom_flags(flags.bits().cast_signed()).open(path)
}

/// Makes a FIFO for this user only. EEXIST if the path exists.
pub fn make_fifo(path: &Path) -> Result<()> {
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
}

/// Waits until one of `streams` can be read, has ended or has failed, at most for `timeout`. Returns `true`
/// for each that is ready, and `false` for `None`. An interruption by a signal ends the wait.
pub fn wait_readable<const N: usize>(
    streams: [Option<BorrowedFd<'_>>; N],
    timeout: Duration,
) -> Result<[bool; N]> {
    let timeout = Timespec::try_from(timeout).map_err(|_| Errno::INVAL)?;
    let given = streams.into_iter().flatten();
    let mut polled: SmallVec<[_; 4]> = given.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    match poll(&mut polled, Some(&timeout)) {
        Ok(_) => {
            let mut ready = polled.iter().map(|fd| !fd.revents().is_empty());
            Ok(streams.map(|stream| stream.is_some() && ready.next().unwrap_or_default()))
        }
        Err(Errno::INTR) => Ok([false; N]),
        Err(error) => Err(error),
    }
}

/// Result of [`drain`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// Bytes were read; more may follow.
    Bytes,
    /// There was nothing to read.
    Nothing,
    /// The stream has ended or failed.
    Ended,
}

/// Maximum number of bytes per read.
const DRAIN_BYTES: usize = 4096;
/// Maximum number of reads per call of [`drain`]: more than a virtio port has buffers, each of which takes
/// one read and may hold a single byte.
const DRAINS_MAX: usize = 256;

/// Reads and discards all bytes in the stream, but at most 1 MiB, because a peer may keep writing.
pub fn drain(stream: BorrowedFd<'_>) -> Drained {
    let mut drained = Drained::Nothing;
    let mut bytes = [MaybeUninit::<u8>::uninit(); DRAIN_BYTES];
    for _ in 0..DRAINS_MAX {
        match retry(|| io::read(stream, &mut bytes).map(|(read, _)| read.len())) {
            Ok(0) => return Drained::Ended,
            Ok(_) => drained = Drained::Bytes,
            Err(Errno::AGAIN) => return drained,
            Err(_) => return Drained::Ended,
        }
    }
    drained
}

/// Writes one byte. EAGAIN if the stream is full.
pub fn ring(stream: impl AsFd) -> Result<()> {
    retry(|| io::write(&stream, &[0])).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fifo_rings_are_drained_without_blocking() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("bell");
        make_fifo(&path).expect("made");
        assert_eq!(make_fifo(&path), Err(Errno::EXIST));
        let (one, other) = (open(&path).expect("open"), open(&path).expect("open"));
        assert_eq!(drain(one.as_fd()), Drained::Nothing);
        let rung = || wait_readable([Some(one.as_fd())], Duration::ZERO).expect("poll")[0];
        assert!(!rung());
        while ring(&other).is_ok() {}
        assert!(rung());
        assert_eq!(drain(one.as_fd()), Drained::Bytes);
        assert!(!rung());
    }

    #[test]
    fn end_of_stream_is_reported() {
        let (one, other) = std::os::unix::net::UnixStream::pair().expect("a pair");
        drop(other);
        let all = [Some(one.as_fd()), None, Some(one.as_fd())];
        assert_eq!(wait_readable(all, Duration::ZERO), Ok([true, false, true]));
        assert_eq!(drain(one.as_fd()), Drained::Ended);
    }
}
