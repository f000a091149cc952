//! Mounting and unmounting, which a server that parses requests need not be allowed to do.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use tombolo_sys::fuse_dev::{self, Flags};
use tombolo_sys::{Errno, creds};

use super::{MountError, Options, read_ahead};

/// Means to mount and unmount, in this process or in a helper process.
pub trait Mounter: fmt::Debug + Send + Sync {
    /// Returns the mount point without symbolic links, after detaching a dead mount; the flag is `true` if
    /// there was one.
    fn prepare(&self, target: &Path) -> Result<(PathBuf, bool), MountError>;

    /// Mounts a file system whose root is a directory. Returns the device; the flag is `true` if fusermount3
    /// mounted it. `kernel_checks`: the kernel checks mode bits if other users may use the mount.
    fn mount(
        &self,
        path: &Path,
        options: &Options,
        kernel_checks: bool,
    ) -> Result<(OwnedFd, bool), MountError>;

    /// Unmounts, with fusermount3 if `by_helper`. A busy mount is detached if `detach`, else an error.
    fn unmount(&self, path: &Path, by_helper: bool, detach: bool) -> io::Result<()>;

    /// Sets the kernel's read-ahead of the mount, whose INIT must have been answered.
    fn read_ahead(&self, path: &Path, bytes: u32) -> io::Result<()>;
}

/// Mounter in this process: by mount(2), or by fusermount3 where mount(2) or the device is not permitted.
#[derive(Debug)]
pub struct DirectMounter;

impl Mounter for DirectMounter {
    fn prepare(&self, target: &Path) -> Result<(PathBuf, bool), MountError> {
        let fail = |source| MountError::Target { path: target.into(), source };
        let absolute = std::path::absolute(target).map_err(fail)?;
        // Every request to the dead mount of a killed server fails with ENOTCONN. The request is a listing,
        // because the kernel may have cached attributes.
        let is_dead = |error: &io::Error| error.raw_os_error() == Some(Errno::NOTCONN.raw_os_error());
        let was_dead = std::fs::read_dir(&absolute).is_err_and(|error| is_dead(&error));
        if was_dead {
            let unmounted = self.unmount(&absolute, false, true);
            unmounted.or_else(|_| self.unmount(&absolute, true, true)).map_err(fail)?;
        }
        let path = absolute.canonicalize().map_err(fail)?;
        match std::fs::metadata(&path) {
            Ok(metadata) if metadata.is_dir() => Ok((path, was_dead)),
            Ok(_) => Err(fail(io::ErrorKind::NotADirectory.into())),
            Err(error) => Err(fail(error)),
        }
    }

    fn mount(
        &self,
        path: &Path,
        options: &Options,
        kernel_checks: bool,
    ) -> Result<(OwnedFd, bool), MountError> {
        let fail = |source| MountError::Mount { path: path.into(), source };
        let mut others = Vec::new();
        if options.allow_other {
            others.push("allow_other");
            others.extend(kernel_checks.then_some("default_permissions"));
        }
        match fuse_dev::open() {
            Ok(device) => match mount_directly(&device, path, options, &others) {
                Ok(()) => return Ok((device, false)),
                Err(Errno::PERM) => {}
                Err(error) => return Err(fail(error.into())),
            },
            // Where only root may open the device, the helper opens it.
            Err(Errno::ACCESS | Errno::PERM) => {}
            Err(error) => return Err(MountError::Device(error)),
        }
        // The helper sets user and root mode, and always adds nodev and nosuid.
        let refusals = [(options.read_only, "ro"), (!options.exec, "noexec")];
        let refusals = refusals.into_iter().filter_map(|(refused, option)| refused.then_some(option));
        let source = format!("fsname={},subtype=tombolo", options.source.replace(',', "_"));
        let passed: Vec<_> = others.into_iter().chain(refusals).chain([source.as_str()]).collect();
        let device = fuse_dev::mount_by_helper(path, &passed.join(",")).map_err(fail)?;
        Ok((device, true))
    }

    fn unmount(&self, path: &Path, by_helper: bool, detach: bool) -> io::Result<()> {
        if !by_helper {
            return Ok(fuse_dev::unmount(path, detach)?);
        }
        match fuse_dev::unmount_by_helper(path, detach)? {
            true => Ok(()),
            false => Err(io::ErrorKind::ResourceBusy.into()),
        }
    }

    fn read_ahead(&self, path: &Path, bytes: u32) -> io::Result<()> {
        read_ahead::set(path, bytes)
    }
}

/// Mounts with the system call. `others`: options that admit other users.
fn mount_directly(device: &OwnedFd, path: &Path, options: &Options, others: &[&str]) -> Result<(), Errno> {
    let mut flags = Flags::empty();
    flags.set(Flags::NODEV, !options.devices);
    flags.set(Flags::NOSUID, !options.set_id);
    flags.set(Flags::NOEXEC, !options.exec);
    flags.set(Flags::RDONLY, options.read_only);
    let (uid, gid) = creds::own_ids();
    let own = format!("rootmode={DIRECTORY:o},user_id={uid},group_id={gid}");
    let data = [own.as_str()].into_iter().chain(others.iter().copied()).collect::<Vec<_>>().join(",");
    fuse_dev::mount(device.as_fd(), &options.source, path, "tombolo", flags, &data)
}

/// Type of the root, as in stat(2).
const DIRECTORY: u32 = 0o040_000;
