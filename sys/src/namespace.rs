//! Names: making, moving and taking them away. Every name is a single component (EINVAL otherwise).

use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;

use rustix::fs::{self as rfs, AtFlags, CWD, FileType};

/// How to rename (`RENAME_*`).
pub use rustix::fs::RenameFlags;

use crate::errno::{Errno, Result, retry};
use crate::open::{OwnPath, check_component, permission};
use crate::stat::{Device, S_IFMT};

/// Makes a directory.
pub fn make_directory(dir: BorrowedFd<'_>, name: &[u8], mode: u32) -> Result<()> {
    check_component(name)?;
    retry(|| rfs::mkdirat(dir, name, permission(mode)))
}

/// Makes a regular file, pipe, socket or device node, as the type bits of `mode` say.
pub fn make_node(dir: BorrowedFd<'_>, name: &[u8], mode: u32, device: Device) -> Result<()> {
    check_component(name)?;
    let kind = FileType::from_raw_mode(mode & S_IFMT);
    retry(|| rfs::mknodat(dir, name, kind, permission(mode), device.packed()))
}

/// Makes a symbolic link; `target` may be any text without NUL.
pub fn make_symlink(target: &[u8], dir: BorrowedFd<'_>, name: &[u8]) -> Result<()> {
    check_component(name)?;
    retry(|| rfs::symlinkat(target, dir, name))
}

/// Gives what `fd` stands for another name, a nameless file its first.
pub fn link(fd: BorrowedFd<'_>, dir: BorrowedFd<'_>, name: &[u8]) -> Result<()> {
    check_component(name)?;
    match retry(|| rfs::linkat(fd, "", dir, name, AtFlags::EMPTY_PATH)) {
        // Without CAP_DAC_READ_SEARCH the kernel pretends that there is no such thing; the path through proc
        // is allowed.
        Err(Errno::NOENT) => {
            let path = OwnPath::of(fd);
            retry(|| rfs::linkat(CWD, path.as_bytes(), dir, name, AtFlags::SYMLINK_FOLLOW))
        }
        outcome => outcome,
    }
}

/// Takes a name away from anything but a directory.
pub fn remove(dir: BorrowedFd<'_>, name: &[u8]) -> Result<()> {
    check_component(name)?;
    retry(|| rfs::unlinkat(dir, name, AtFlags::empty()))
}

/// Removes an empty directory.
pub fn remove_directory(dir: BorrowedFd<'_>, name: &[u8]) -> Result<()> {
    check_component(name)?;
    retry(|| rfs::unlinkat(dir, name, AtFlags::REMOVEDIR))
}

/// Moves a name; replaces, refuses or exchanges as `flags` say.
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

/// The target of a symbolic link that `fd` is a place of, at most as much as fits; EINVAL if it is none.
pub fn link_target<'a>(fd: BorrowedFd<'_>, buffer: &'a mut [MaybeUninit<u8>]) -> Result<&'a [u8]> {
    let (target, _) = rfs::readlinkat_raw(fd, "", buffer)?;
    Ok(target)
}
