//! Creation, renaming and removal of names. Every name must be a single component (EINVAL otherwise).

use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;

use rustix::fs::{self as rfs, AtFlags, CWD, FileType};

/// Options of a rename (`RENAME_*`).
pub use rustix::fs::RenameFlags;

use crate::errno::{Errno, Result, retry};
use crate::open::{OwnPath, check_component, permission};
use crate::stat::{Device, S_IFMT};

/// Creates a directory with the permission bits of `mode`, subject to the umask.
pub fn make_directory(dir: BorrowedFd<'_>, name: &[u8], mode: u32) -> Result<()> {
    check_component(name)?;
    retry(|| rfs::mkdirat(dir, name, permission(mode)))
}

/// Creates a regular file, pipe, socket or device node, according to the type bits of `mode`.
pub fn make_node(dir: BorrowedFd<'_>, name: &[u8], mode: u32, device: Device) -> Result<()> {
    check_component(name)?;
    let kind = FileType::from_raw_mode(mode & S_IFMT);
    retry(|| rfs::mknodat(dir, name, kind, permission(mode), device.packed()))
}

/// Creates a symbolic link; `target` may be any text without NUL.
pub fn make_symlink(target: &[u8], dir: BorrowedFd<'_>, name: &[u8]) -> Result<()> {
    check_component(name)?;
    retry(|| rfs::symlinkat(target, dir, name))
}

/// Creates another name of the object of `fd`, or the first name of an unnamed file.
pub fn link(fd: BorrowedFd<'_>, dir: BorrowedFd<'_>, name: &[u8]) -> Result<()> {
    check_component(name)?;
    match retry(|| rfs::linkat(fd, "", dir, name, AtFlags::EMPTY_PATH)) {
        // Without CAP_DAC_READ_SEARCH the kernel may fail with ENOENT; the path through proc is allowed.
        Err(Errno::NOENT) => {
            let path = OwnPath::of(fd);
            retry(|| rfs::linkat(CWD, path.as_bytes(), dir, name, AtFlags::SYMLINK_FOLLOW))
        }
        outcome => outcome,
    }
}

/// Removes a name of anything but a directory.
pub fn remove(dir: BorrowedFd<'_>, name: &[u8]) -> Result<()> {
    check_component(name)?;
    retry(|| rfs::unlinkat(dir, name, AtFlags::empty()))
}

/// Removes an empty directory; ENOTEMPTY if it has entries.
pub fn remove_directory(dir: BorrowedFd<'_>, name: &[u8]) -> Result<()> {
    check_component(name)?;
    retry(|| rfs::unlinkat(dir, name, AtFlags::REMOVEDIR))
}

/// Renames; replaces, refuses or exchanges according to `flags`.
pub fn rename(
    from: BorrowedFd<'_>,
    name: &[u8],
    to: BorrowedFd<'_>,
    to_name: &[u8],
    flags: RenameFlags,
) -> Result<()> {
    check_component(name)?;
    check_component(to_name)?;
    retry(|| rfs::renameat_with(from, name, to, to_name, flags))
}

/// Returns the target of the symbolic link of the `O_PATH` descriptor `fd`, truncated to the buffer; ENOENT
/// for anything else.
pub fn link_target<'a>(fd: BorrowedFd<'_>, buffer: &'a mut [MaybeUninit<u8>]) -> Result<&'a [u8]> {
    let (target, _) = rfs::readlinkat_raw(fd, "", buffer)?;
    Ok(target)
}
