//! The FUSE device: opening and cloning, requests and replies, mounting and unmounting.

use std::ffi::CString;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use tombolo_mem::{INLINE_SEGMENTS, Segment, Sink, Source};

use crate::errno::{Errno, Result, check, retry};

/// Flags of a mount (mount(2)).
pub use rustix::mount::MountFlags as Flags;

const DEVICE: &str = "/dev/fuse";

/// Opens the device. The descriptor belongs to no connection until it is passed to [`mount`].
pub fn open() -> Result<OwnedFd> {
    retry(|| rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()))
}

/// Returns another descriptor of the same connection with a processing queue of its own
/// (`FUSE_DEV_IOC_CLONE`): a reply must be written to the descriptor that its request was read from.
pub fn clone(device: BorrowedFd<'_>) -> Result<OwnedFd> {
    let copy = open()?;
    let original = device.as_raw_fd();
    // SAFETY: the request takes the address of a descriptor number, which outlives the call.
    let outcome = unsafe { libc::ioctl(copy.as_raw_fd(), FUSE_DEV_IOC_CLONE, &raw const original) };
    check(outcome.into())?;
    Ok(copy)
}

/// `_IOR(229, 0, uint32_t)`.
const FUSE_DEV_IOC_CLONE: libc::Ioctl = 0x8004_e500;

/// Returns `true` if this process may register backing files, which needs CAP_SYS_ADMIN, because tools such
/// as lsof(8) do not show backing files.
pub fn may_back() -> bool {
    let held = rustix::thread::capabilities(None);
    held.is_ok_and(|sets| sets.effective.contains(rustix::thread::CapabilitySet::SYS_ADMIN))
}

/// Registers `file` with the connection as a backing file (`FUSE_DEV_IOC_BACKING_OPEN`, since Linux 6.9),
/// which the kernel reads and writes for files whose OPEN refers to it. Returns its id in the connection. The
/// descriptor may be closed afterwards.
///
/// EPERM: passthrough was not negotiated, or this process is not privileged. ELOOP: the file is on a stacked
/// file system.
pub fn open_backing(device: BorrowedFd<'_>, file: BorrowedFd<'_>) -> Result<i32> {
    // struct fuse_backing_map: descriptor, flags, padding.
    let map: [u64; 2] = [u64::from(file.as_raw_fd().cast_unsigned()), 0];
    // SAFETY: the request takes the address of these 16 bytes, which outlive the call.
    let outcome = unsafe { libc::ioctl(device.as_raw_fd(), FUSE_DEV_IOC_BACKING_OPEN, &raw const map) };
    check(outcome.into())?;
    Ok(outcome)
}

/// Unregisters a backing file. Files that are open continue to use it.
pub fn close_backing(device: BorrowedFd<'_>, number: i32) -> Result<()> {
    // SAFETY: the request takes the address of a number, which outlives the call.
    let outcome = unsafe { libc::ioctl(device.as_raw_fd(), FUSE_DEV_IOC_BACKING_CLOSE, &raw const number) };
    check(outcome.into()).map(drop)
}

/// `_IOW(229, 1, struct fuse_backing_map)`.
const FUSE_DEV_IOC_BACKING_OPEN: libc::Ioctl = 0x4010_e501;
/// `_IOW(229, 2, uint32_t)`.
const FUSE_DEV_IOC_BACKING_CLOSE: libc::Ioctl = 0x4004_e502;

/// Waits for a request and reads it into the start of `into`. Returns its length.
///
/// ENODEV: unmounted. ENOENT: the request was withdrawn while being read; retry. EAGAIN: none, on a
/// nonblocking descriptor. EINVAL: `into` is shorter than the maximum request.
pub fn receive(device: BorrowedFd<'_>, into: &Sink) -> Result<usize> {
    let spans = spans(into.segments());
    retry(|| {
        // SAFETY: the spans are those of a borrowed Sink, which keeps the memory alive; the kernel copies,
        // and no Rust reference to those bytes exists.
        let outcome =
            unsafe { libc::syscall(libc::SYS_readv, device.as_raw_fd(), spans.as_ptr(), spans.len()) };
        check(outcome)
    })
}

/// Writes one reply or notification from memory that no other process can change; see [`send_from`] for
/// other memory.
///
/// ENOENT: no caller waits for it any more, or the name is not cached. ENODEV: unmounted.
pub fn send(device: BorrowedFd<'_>, reply: &[u8]) -> Result<()> {
    retry(|| rustix::io::write(device, reply)).map(drop)
}

/// Writes one reply from shared memory. The errors are those of [`send`].
pub fn send_from(device: BorrowedFd<'_>, reply: &Source) -> Result<()> {
    let spans = spans(reply.segments());
    retry(|| {
        // SAFETY: the spans are those of a borrowed Source, which keeps the memory alive; the kernel copies,
        // and no Rust reference to those bytes exists.
        let outcome =
            unsafe { libc::syscall(libc::SYS_writev, device.as_raw_fd(), spans.as_ptr(), spans.len()) };
        check(outcome)
    })
    .map(drop)
}

/// Makes reads of the descriptor blocking (`waiting`) or nonblocking. Affects all duplicates of the
/// descriptor.
pub fn set_waiting(device: BorrowedFd<'_>, waiting: bool) -> Result<()> {
    let mut flags = rustix::fs::fcntl_getfl(device)?;
    flags.set(OFlags::NONBLOCK, !waiting);
    rustix::fs::fcntl_setfl(device, flags)
}

/// Waits until a request can be read, or the file system is unmounted. Also returns on a signal.
pub fn wait(device: BorrowedFd<'_>) -> Result<()> {
    let mut polled = [rustix::event::PollFd::new(&device, rustix::event::PollFlags::IN)];
    match rustix::event::poll(&mut polled, None) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error),
    }
}

type Spans = smallvec::SmallVec<[libc::iovec; INLINE_SEGMENTS]>;

fn spans(segments: impl Iterator<Item = Segment>) -> Spans {
    segments.map(|segment| libc::iovec { iov_base: segment.ptr.cast(), iov_len: segment.len }).collect()
}

/// Mounts a connection; needs CAP_SYS_ADMIN. `options` are the options of fuse(8) except `fd`, which this
/// function adds.
pub fn mount(
    device: BorrowedFd<'_>,
    source: &str,
    target: &Path,
    subtype: &str,
    flags: MountFlags,
    options: &str,
) -> Result<()> {
    let data = CString::new(format!("fd={},{options}", device.as_raw_fd())).map_err(|_| Errno::INVAL)?;
    rustix::mount::mount(source, target, format!("fuse.{subtype}"), flags, data.as_c_str())
}

/// Replaces the flags of a mount and of its file system (mount(2), MS_REMOUNT), so that read-only also
/// applies to its other mounts. Needs CAP_SYS_ADMIN. EINVAL: not a mount point.
pub fn remount(target: &Path, flags: MountFlags) -> Result<()> {
    rustix::mount::mount_remount(target, flags, c"")
}

/// Mounts through the set-user-id helper `fusermount3`, for users without the right to mount, and returns the
/// connection. If the helper refuses, the error contains its message.
pub fn mount_by_helper(target: &Path, options: &str) -> std::io::Result<OwnedFd> {
    let (ours, theirs) = UnixStream::pair()?;
    // The helper sends the descriptor over the socket whose number is in its environment: its standard input.
    let helper = Command::new("fusermount3")
        .arg("-o")
        .arg(options)
        .arg("--")
        .arg(target)
        .env("_FUSE_COMMFD", "0")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .output()?;
    if !helper.status.success() {
        let message = String::from_utf8_lossy(&helper.stderr).trim().to_owned();
        return Err(std::io::Error::other(if message.is_empty() {
            "fusermount3 refused".into()
        } else {
            message
        }));
    }
    Ok(receive_descriptor(&ours)?)
}

fn receive_descriptor(socket: &UnixStream) -> Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let flags = RecvFlags::CMSG_CLOEXEC;
    retry(|| rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, flags))?;
    let rights = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    rights.ok_or(Errno::PROTO)
}

/// Unmounts. `detach` hides the mount at once and removes it when its last user has finished.
///
/// EBUSY: in use. EINVAL: not a mount point.
pub fn unmount(target: &Path, detach: bool) -> Result<()> {
    let flags = if detach { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    rustix::mount::unmount(target, flags | UnmountFlags::NOFOLLOW)
}

/// Unmounts through `fusermount3`, for users without the right to unmount. Returns `false` if it refuses.
pub fn unmount_by_helper(target: &Path, detach: bool) -> std::io::Result<bool> {
    let mut helper = Command::new("fusermount3");
    helper.arg("-u").arg("-q");
    if detach {
        helper.arg("-z");
    }
    Ok(helper.arg("--").arg(target).stdin(Stdio::null()).status()?.success())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use tombolo_mem::Region;

    #[test]
    fn a_device_without_a_mount_has_no_requests() {
        let Ok(device) = open() else {
            panic!("/dev/fuse cannot be opened here");
        };
        let buffer = Region::heap(8192);
        assert_eq!(receive(device.as_fd(), &Sink::from(&buffer)), Err(Errno::PERM));
        assert_eq!(send(device.as_fd(), &[0; 16]), Err(Errno::PERM));
        assert!(clone(device.as_fd()).is_err());
    }

    #[test]
    fn unmount_refuses_directory_without_mount() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(unmount(dir.path(), false), Err(Errno::INVAL));
        assert_eq!(remount(dir.path(), Flags::RDONLY), Err(Errno::INVAL));
    }
}
