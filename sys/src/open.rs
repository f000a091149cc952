//! Opening of directory entries and unnamed files, and reopening of descriptors.

use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{self as rfs, Mode};

/// Open flags (`O_*`).
pub use rustix::fs::OFlags as OpenFlags;
/// Restrictions of a path walk (`RESOLVE_*` of openat2).
pub use rustix::fs::ResolveFlags as Resolve;

use crate::errno::{Errno, Result, retry};
use crate::namespace;

/// Mask of the permission bits, with set-user-id, set-group-id and sticky: the lower 12 bits of a mode.
pub const PERMISSION_BITS: u32 = 0o7777;

/// Opens a directory of this machine by path, following symbolic links: mostly the root of an export.
///
/// The descriptor is opened with `O_PATH`, for use in `*at` calls only.
pub fn open_root(path: &Path) -> Result<OwnedFd> {
    retry(|| rfs::open(path, OpenFlags::PATH | OpenFlags::DIRECTORY | OpenFlags::CLOEXEC, Mode::empty()))
}

/// Opens an entry of `dir`. A symbolic link is not followed: ELOOP, ENOTDIR, or with `PATH` the link itself.
///
/// `name` must be a single component, neither `..` nor with a `/` (EINVAL otherwise), so that the result is
/// an entry of `dir`, or the root of a mount on it. `mode` is used only if the call creates the file.
pub fn open_entry(dir: BorrowedFd<'_>, name: &[u8], flags: OpenFlags, mode: u32) -> Result<OwnedFd> {
    check_component(name)?;
    let flags = flags | OpenFlags::NOFOLLOW | OpenFlags::CLOEXEC;
    retry(|| rfs::openat(dir, name, flags, permission(mode)))
}

/// Opens an entry of `dir` with `O_PATH`, without following a symbolic link. The kernel is also instructed
/// not to leave `dir`.
///
/// `name` must be a single component, as for [`open_entry`]. May block on disk I/O.
pub fn open_place(dir: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd> {
    check_component(name)?;
    open_beneath(dir, name, OpenFlags::PATH | OpenFlags::NOFOLLOW, Resolve::empty())
}

/// Opens the parent of `dir`. The result is not confined to any tree, so the caller must check it.
pub fn open_parent(dir: BorrowedFd<'_>) -> Result<OwnedFd> {
    let flags = OpenFlags::PATH | OpenFlags::DIRECTORY | OpenFlags::CLOEXEC;
    retry(|| rfs::openat(dir, c"..", flags, Mode::empty()))
}

/// Maximum number of repetitions of a walk that a concurrent rename or mount has disturbed.
const WALKS_MAX: usize = 100;

/// Walks `path` from `dir` without leaving it: `..` above `dir` and symbolic links that point outside fail
/// with EXDEV.
///
/// Magic links (those of /proc) fail with ELOOP; `extra` adds restrictions: `NO_XDEV`, `NO_SYMLINKS`, or
/// `CACHED`, which fails with EAGAIN rather than block on disk I/O.
pub fn open_beneath(dir: BorrowedFd<'_>, path: &[u8], flags: OpenFlags, extra: Resolve) -> Result<OwnedFd> {
    let resolve = extra | Resolve::BENEATH | Resolve::NO_MAGICLINKS;
    let open = || retry(|| rfs::openat2(dir, path, flags | OpenFlags::CLOEXEC, Mode::empty(), resolve));
    let mut opened = open();
    // A walk over `..` may fail if anything is renamed or mounted meanwhile (openat2(2), EAGAIN).
    for _ in 0..WALKS_MAX {
        match opened {
            Err(Errno::AGAIN) if !extra.contains(Resolve::CACHED) => opened = open(),
            _ => break,
        }
    }
    opened
}

/// Opens a file of the host by its path, refusing symbolic links in all components (ELOOP). Never waits for
/// the other end of a pipe.
///
/// A user with write permission on a directory of the path can replace a component after the path was
/// checked. If the replacement is a symbolic link to another user's file, this function fails.
pub fn open_without_links(path: &Path, flags: OpenFlags) -> Result<OwnedFd> {
    let opened = beneath_its_directory(path, flags | OpenFlags::NONBLOCK | OpenFlags::NOCTTY)?;
    rfs::fcntl_setfl(&opened, rfs::fcntl_getfl(&opened)? - OpenFlags::NONBLOCK)?;
    Ok(opened)
}

/// Opens a path with `O_PATH`, as [`open_without_links`] does.
pub fn place_without_links(path: &Path) -> Result<OwnedFd> {
    beneath_its_directory(path, OpenFlags::PATH)
}

fn beneath_its_directory(path: &Path, flags: OpenFlags) -> Result<OwnedFd> {
    let flags_of_dir = OpenFlags::PATH | OpenFlags::DIRECTORY | OpenFlags::CLOEXEC;
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().ok_or(Errno::INVAL)?;
    let dir = retry(|| rfs::openat2(rfs::CWD, dir, flags_of_dir, Mode::empty(), Resolve::NO_SYMLINKS))?;
    open_beneath(dir.as_fd(), name.as_bytes(), flags, Resolve::NO_SYMLINKS)
}

/// Opens an entry of `dir` as [`open_entry`] does, if that does not block; EAGAIN if it might (Linux 5.12).
pub fn open_cached(dir: BorrowedFd<'_>, name: &[u8], flags: OpenFlags) -> Result<OwnedFd> {
    check_component(name)?;
    let flags = flags | OpenFlags::NOFOLLOW | OpenFlags::CLOEXEC;
    rfs::openat2(dir, name, flags, Mode::empty(), Resolve::CACHED)
}

/// Creates an unnamed file (`O_TMPFILE`) in the file system of `dir`; `EOPNOTSUPP` where that is unsupported.
pub fn open_nameless(dir: BorrowedFd<'_>, flags: OpenFlags, mode: u32) -> Result<OwnedFd> {
    let flags = flags | OpenFlags::TMPFILE | OpenFlags::CLOEXEC;
    retry(|| rfs::openat(dir, ".", flags, permission(mode)))
}

/// Makes an open file use the page cache, even if it was opened with O_DIRECT.
pub fn disable_direct(fd: BorrowedFd<'_>) -> Result<()> {
    let flags = rfs::fcntl_getfl(fd)?;
    match flags.contains(OpenFlags::DIRECT) {
        true => rfs::fcntl_setfl(fd, flags - OpenFlags::DIRECT),
        false => Ok(()),
    }
}

/// Refuses names that are not one component of a path: empty, `.`, `..`, or containing `/` or NUL.
pub fn check_component(name: &[u8]) -> Result<()> {
    let reserved = name.is_empty() || name == b"." || name == b"..";
    if reserved || name.iter().any(|&byte| byte == b'/' || byte == 0) { Err(Errno::INVAL) } else { Ok(()) }
}

/// The directory of this process's descriptors, through which an `O_PATH` descriptor is reopened for I/O.
///
/// It belongs to the process that opened it. After a fork, the child must open its own.
#[derive(Debug)]
pub struct OwnDescriptors {
    dir: OwnedFd,
    other: Option<Arc<dyn Reopen>>,
}

/// A helper process that may open files which this one may not.
pub trait Reopen: fmt::Debug + Send + Sync {
    /// Reopens the object of the `O_PATH` descriptor `place`, as the user that the calling thread acts as.
    fn reopen(&self, place: BorrowedFd<'_>, flags: OpenFlags) -> Result<OwnedFd>;

    /// Creates another name of the object of `place`, as the user that the calling thread acts as.
    fn link(&self, place: BorrowedFd<'_>, dir: BorrowedFd<'_>, name: &[u8]) -> Result<()>;
}

impl OwnDescriptors {
    /// Opens `/proc/self/fd`; `ENOENT` where proc is not mounted.
    pub fn open() -> Result<Self> {
        Ok(Self { dir: open_root(Path::new("/proc/self/fd"))?, other: None })
    }

    /// Delegates the reopening of files with unknown paths to another process: landlock(7) refuses them to
    /// this one. Such files were opened by handle, and their names are not in the kernel's cache.
    pub fn with_helper(self, other: Option<Arc<dyn Reopen>>) -> Self {
        Self { other, ..self }
    }

    /// Reopens the object of `fd` with its own access mode (a new open file description).
    ///
    /// ELOOP for an `O_PATH` descriptor of a symbolic link, which can only be read.
    pub fn reopen(&self, fd: BorrowedFd<'_>, flags: OpenFlags) -> Result<OwnedFd> {
        let mut text = [0; NUMBER_LEN];
        let name = number(fd, &mut text);
        let flags = (flags | OpenFlags::CLOEXEC) - OpenFlags::NOFOLLOW;
        let opened = retry(|| rfs::openat(&self.dir, name, flags, Mode::empty()));
        match self.help_with(fd, opened.as_ref().err()) {
            Some(other) => other.reopen(fd, flags),
            None => opened,
        }
    }

    /// Creates another name of the object of `fd`, as [`namespace::link`] does.
    pub fn link(&self, fd: BorrowedFd<'_>, dir: BorrowedFd<'_>, name: &[u8]) -> Result<()> {
        let linked = namespace::link(fd, dir, name);
        match self.help_with(fd, linked.as_ref().err()) {
            Some(other) => other.link(fd, dir, name),
            None => linked,
        }
    }

    /// Returns the helper if it may succeed where this process was refused: if the error is one of
    /// landlock's, and the path of `fd` is unknown.
    fn help_with(&self, fd: BorrowedFd<'_>, refused: Option<&Errno>) -> Option<&dyn Reopen> {
        let other = self.other.as_deref()?;
        // EXDEV: landlock treats a second name as a move to a directory with more rights, and refuses it.
        let is_refused = matches!(refused, Some(&(Errno::ACCESS | Errno::XDEV | Errno::PERM)));
        (is_refused && self.path(fd).is_ok_and(|path| path == PATH_UNKNOWN)).then_some(other)
    }

    /// Opens a directory for listing, without a detour through proc.
    pub fn reopen_directory(&self, fd: BorrowedFd<'_>) -> Result<OwnedFd> {
        let flags = OpenFlags::RDONLY | OpenFlags::DIRECTORY | OpenFlags::CLOEXEC;
        retry(|| rfs::openat(fd, ".", flags, Mode::empty()))
    }

    /// Returns the current path of `fd` as spelled by the kernel: absolute, with " (deleted)" appended for an
    /// unlinked file.
    pub fn path(&self, fd: BorrowedFd<'_>) -> Result<Vec<u8>> {
        let mut text = [0; NUMBER_LEN];
        let name = number(fd, &mut text);
        let mut buffer = [MaybeUninit::<u8>::uninit(); PATH_MAX];
        let (path, _) = rfs::readlinkat_raw(&self.dir, name, &mut buffer)?;
        Ok(path.to_vec())
    }
}

impl AsFd for OwnDescriptors {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }
}

/// The kernel's spelling of the path of a file whose names it has not cached, and of the root directory.
pub const PATH_UNKNOWN: &[u8] = b"/";

/// The text `/proc/self/fd/N` in an inline buffer, for system calls that take a path and no descriptor.
pub(crate) struct OwnPath {
    text: [u8; OWN_PREFIX.len() + NUMBER_LEN],
    len: usize,
}

impl OwnPath {
    pub(crate) fn of(fd: BorrowedFd<'_>) -> Self {
        let mut digits = [0; NUMBER_LEN];
        let digits = number(fd, &mut digits);
        let mut text = [0; OWN_PREFIX.len() + NUMBER_LEN];
        let len = OWN_PREFIX.len() + digits.len();
        text[..OWN_PREFIX.len()].copy_from_slice(OWN_PREFIX);
        text[OWN_PREFIX.len()..len].copy_from_slice(digits);
        Self { text, len }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.text[..self.len]
    }
}

const OWN_PREFIX: &[u8] = b"/proc/self/fd/";
const NUMBER_LEN: usize = 10;
const PATH_MAX: usize = 4096;

/// Converts the permission bits of a mode to rustix's type.
pub(crate) fn permission(mode: u32) -> Mode {
    Mode::from_raw_mode(mode & PERMISSION_BITS)
}

/// Formats the number of a descriptor in decimal at the end of `text`, without allocating.
fn number<'a>(fd: BorrowedFd<'_>, text: &'a mut [u8; NUMBER_LEN]) -> &'a [u8] {
    let mut rest = fd.as_raw_fd().unsigned_abs();
    let mut start = text.len();
    loop {
        start -= 1;
        text[start] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            return &text[start..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_written_in_full() {
        for raw in [0, 7, 10, 1023, 2_147_483_646] {
            // SAFETY: the number is only printed, never used as a descriptor, and is not −1.
            let fd = unsafe { BorrowedFd::borrow_raw(raw) };
            assert_eq!(number(fd, &mut [0; NUMBER_LEN]), raw.to_string().as_bytes());
            assert_eq!(OwnPath::of(fd).as_bytes(), format!("/proc/self/fd/{raw}").as_bytes());
        }
    }

    #[test]
    fn names_that_walk_are_refused() {
        for name in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0b"] {
            assert_eq!(check_component(name), Err(Errno::INVAL), "{name:?}");
        }
        assert_eq!(check_component(b"..."), Ok(()));
    }
}
