//! Private mount namespaces (mount_namespaces(7)), read-only mounts, and unmounting of a particular mount.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{self as rfs, AtFlags, CWD, Mode, OFlags, StatxAttributes, StatxFlags, statx};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags,
    UnmountFlags, fsconfig_create, fsmount, fsopen, mount_change, move_mount, open_tree, unmount,
};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use crate::errno::{Errno, Result, check, retry};
use crate::open::{OwnPath, check_component, open_place};

/// A thread's mounts, root and working directory before [`unshare`], referenced by descriptors.
#[derive(Debug)]
pub struct Former {
    namespace: OwnedFd,
    root: OwnedFd,
    working: OwnedFd,
}

impl Former {
    fn of_this_thread() -> Result<Self> {
        let open = |path, flags| retry(|| rfs::open(path, flags | OFlags::CLOEXEC, Mode::empty()));
        Ok(Self {
            namespace: open("/proc/thread-self/ns/mnt", OFlags::RDONLY)?,
            root: open("/", OFlags::PATH | OFlags::DIRECTORY)?,
            working: open(".", OFlags::PATH | OFlags::DIRECTORY)?,
        })
    }

    /// Returns this thread to its former mounts, root and working directory (setns(2)).
    ///
    /// EPERM without CAP_SYS_ADMIN and CAP_SYS_CHROOT.
    pub fn restore_namespace(self) -> Result<()> {
        move_into_link_name_space(self.namespace.as_fd(), Some(LinkNameSpaceType::Mount))?;
        // setns(2) has set the root directory to that of the namespace; the former one may have been another
        // (chroot(2)).
        rustix::process::fchdir(&self.root)?;
        rustix::process::chroot(".")?;
        rustix::process::fchdir(&self.working)
    }
}

/// Gives this thread, and threads that it starts later, a copy of this thread's mounts.
///
/// EPERM without CAP_SYS_ADMIN.
pub fn unshare() -> Result<Former> {
    let former = Former::of_this_thread()?;
    // SAFETY: the only flag is CLONE_NEWNS, which also unshares root and working directory: no descriptor or
    // memory of other threads is affected.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS)? };
    Ok(former)
}

/// Makes all mounts receive mount and unmount events of shared mounts (mount_namespaces(7), "Shared
/// subtrees"), and propagate none.
///
/// EINVAL where the root directory is not that of a mount.
pub fn only_receive() -> Result<()> {
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
}

/// Copies the mount, file or directory at `path` as a detached mount; including the mounts beneath if
/// `recursive`.
///
/// EINVAL for a mount that may not be copied (`MS_UNBINDABLE`).
pub fn copy(path: &Path, recursive: bool) -> Result<OwnedFd> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    flags.set(OpenTreeFlags::AT_RECURSIVE, recursive);
    open_tree(CWD, path, flags)
}

/// Creates an empty read-only directory as a detached mount.
pub fn empty() -> Result<OwnedFd> {
    let new = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(new.as_fd())?;
    fsmount(new.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_RDONLY)
}

/// Makes a mount and those beneath it read-only: all changes fail with EROFS. Devices, pipes and sockets can
/// still be written to. `alone`: mounts and unmounts elsewhere do not propagate to it any more.
pub fn make_read_only(tree: BorrowedFd<'_>, alone: bool) -> Result<()> {
    let change = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_RDONLY,
        attr_clr: 0,
        propagation: if alone { libc::MS_PRIVATE } else { 0 },
        userns_fd: 0,
    };
    let change: *const libc::mount_attr = &raw const change;
    // SAFETY: the path is empty and ends in NUL; the kernel reads one structure of the given size, which
    // outlives the call.
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

/// Attaches a detached mount at a path below `root`.
pub fn attach(tree: BorrowedFd<'_>, root: BorrowedFd<'_>, path: &Path) -> Result<()> {
    move_mount(tree, "", root, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

/// A future root directory: mounted, but not entered yet.
#[derive(Debug)]
pub struct NewRoot(OwnedFd);

impl NewRoot {
    /// Mounts a detached mount over the root directory.
    pub fn over(tree: OwnedFd) -> Result<Self> {
        attach(tree.as_fd(), CWD, Path::new("/"))?;
        Ok(Self(tree))
    }

    /// Makes the mount the root directory, and `/` the working directory. Earlier mounts are unreachable,
    /// except through open files.
    ///
    /// EINVAL where the root is that of the initial file system (pivot_root(2)).
    pub fn enter(self) -> Result<()> {
        rustix::process::fchdir(&self.0)?;
        rustix::process::pivot_root(".", ".")?;
        // The old root is now on top of the new one.
        unmount(".", UnmountFlags::DETACH)?;
        rustix::process::chdir("/")
    }
}

impl AsFd for NewRoot {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The id of a mount. Never reused from Linux 6.8 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MountId(u64);

/// Returns the topmost mount at an entry of `dir`. EINVAL if nothing is mounted there. Requests no attributes
/// from the mounted file system.
pub fn mounted_at(dir: BorrowedFd<'_>, name: &[u8]) -> Result<MountId> {
    check_component(name)?;
    identify(dir, name, AtFlags::SYMLINK_NOFOLLOW)
}

fn identify(fd: BorrowedFd<'_>, name: &[u8], flags: AtFlags) -> Result<MountId> {
    /// STATX_MNT_ID_UNIQUE, which requests an id that is never reused, on kernels that support it.
    const UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);
    let flags = flags | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let found = retry(|| statx(fd, name, flags, StatxFlags::MNT_ID | UNIQUE))?;
    if found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) {
        Ok(MountId(found.stx_mnt_id))
    } else {
        Err(Errno::INVAL)
    }
}

/// Unmounts the mount at an entry of `dir` if it is `mount`, as
/// [`fuse_dev::unmount`](crate::fuse_dev::unmount) does. Follows no symbolic link.
///
/// EINVAL: another mount, or none. Without `detach` there is a race: if the mount is moved away after the
/// check, another mount moved to its place is unmounted.
pub fn unmount_if(dir: BorrowedFd<'_>, name: &[u8], mount: MountId, detach: bool) -> Result<()> {
    let is_it = |found: Result<MountId>| if found? == mount { Ok(()) } else { Err(Errno::INVAL) };
    if detach {
        let root = open_place(dir, name)?;
        is_it(identify(root.as_fd(), b"", AtFlags::EMPTY_PATH))?;
        return unmount(OwnPath::of(root.as_fd()).as_bytes(), UnmountFlags::DETACH);
    }
    is_it(mounted_at(dir, name))?;
    // A descriptor of the mount would keep it busy.
    let path = [OwnPath::of(dir).as_bytes(), b"/", name].concat();
    unmount(path, UnmountFlags::NOFOLLOW)
}
