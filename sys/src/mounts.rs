//! A mount namespace of this process's own (mount_namespaces(7)): which mounts it sees, and through which it may change anything.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::CWD;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags,
    UnmountFlags, fsconfig_create, fsmount, fsopen, mount_change, move_mount, open_tree, unmount,
};
use rustix::thread::UnshareFlags;

use crate::errno::{Result, check};

/// Gives this thread, and those that it starts later, a copy of the mounts that it sees. What is mounted and unmounted from now on arrives here from shared
/// mounts (mount_namespaces(7), "Shared subtrees"), and nothing goes back.
///
/// EPERM without CAP_SYS_ADMIN, EINVAL where the root directory is not that of a mount.
pub fn unshare() -> Result<()> {
    // SAFETY: only CLONE_NEWNS, which parts the root and working directory from other threads' too: no descriptor or memory of theirs is touched.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS)? };
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
}

/// A copy of what is mounted at `path`, or of what lies there, as a mount that is at no place yet; with the mounts beneath if `recursive`.
///
/// EINVAL for what may not be copied (`MS_UNBINDABLE`).
pub fn copy(path: &Path, recursive: bool) -> Result<OwnedFd> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    flags.set(OpenTreeFlags::AT_RECURSIVE, recursive);
    open_tree(CWD, path, flags)
}

/// An empty directory that nothing can be made in, as a mount that is at no place yet.
pub fn empty() -> Result<OwnedFd> {
    let new = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(new.as_fd())?;
    fsmount(new.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_RDONLY)
}

/// Lets nothing be changed through a mount and those beneath it: all calls that would fail with EROFS. Devices, pipes and sockets can be written to.
/// `alone`: what is mounted and unmounted elsewhere does not arrive there any more.
pub fn make_read_only(tree: BorrowedFd<'_>, alone: bool) -> Result<()> {
    let change = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_RDONLY,
        attr_clr: 0,
        propagation: if alone { libc::MS_PRIVATE } else { 0 },
        userns_fd: 0,
    };
    let change: *const libc::mount_attr = &raw const change;
    // SAFETY: the path is empty and ends in NUL; the kernel reads one structure of the size that it is told, which outlives the call.
    let outcome = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | libc::AT_RECURSIVE,
            change,
            size_of::<libc::mount_attr>(),
        )
    };
    check(outcome).map(drop)
}

/// Mounts a copy at a path below `root`.
pub fn attach(tree: BorrowedFd<'_>, root: BorrowedFd<'_>, path: &Path) -> Result<()> {
    move_mount(tree, "", root, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

/// A root directory that is to be: mounted, and not entered yet.
#[derive(Debug)]
pub struct NewRoot(OwnedFd);

impl NewRoot {
    /// Mounts a copy over the root directory.
    pub fn over(tree: OwnedFd) -> Result<Self> {
        attach(tree.as_fd(), CWD, Path::new("/"))?;
        Ok(Self(tree))
    }

    /// Makes it the root directory and `/` the working directory. What was mounted before is gone, but for what is open on it.
    ///
    /// EINVAL where the root is that of the initial file system (pivot_root(2)).
    pub fn enter(self) -> Result<()> {
        rustix::process::fchdir(&self.0)?;
        rustix::process::pivot_root(".", ".")?;
        // The old root lies over the new one now.
        unmount(".", UnmountFlags::DETACH)?;
        rustix::process::chdir("/")
    }
}

impl AsFd for NewRoot {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
