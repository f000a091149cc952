//! Own mounts of a process, by a mount namespace (mount_namespaces(7)).
//!
//! Landlock does not check changes of modes, owners, extended attributes and times. A read-only mount
//! prevents these and changes of contents, so the process gets its own mounts, all read-only except where it
//! makes changes. Unneeded mounts are replaced by empty ones, so that they can be unmounted on the host, and
//! files hidden below a mount stay hidden.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf, absolute};
use std::{fs, io};

use caps::{CapSet, Capability};
use tombolo_sys::mounts::{self, Former, NewRoot};
use tombolo_sys::{Errno, mountinfo};

use super::files::ALWAYS;
use super::{Needs, SandboxError, Strictness};

/// Mount namespace of this process: one of its own, with the descriptors that lead back to the former one, or
/// the host's.
#[derive(Debug)]
pub struct Namespace(Option<Former>);

impl Namespace {
    /// The host's mounts.
    pub const OF_HOST: Self = Self(None);

    /// Gives this thread, and those that it starts later, own mounts, if the process is to be confined, own
    /// mounts would restrict it, and CAP_SYS_ADMIN permits. Call it before anything below a directory of
    /// `needs` is opened: an open directory leads to the host's mounts.
    ///
    /// # Errors
    /// With [`Strictness::Strict`] if the kernel refuses; with any strictness if it refuses half-way and the
    /// process cannot return to the host's mounts. A lack of CAP_SYS_ADMIN is no error: a process without it
    /// does not have the rights that own mounts would take away.
    pub fn enter(strictness: Strictness, needs: &Needs) -> Result<Self, SandboxError> {
        let may = caps::has_cap(None, CapSet::Effective, Capability::CAP_SYS_ADMIN).unwrap_or(false);
        let plan = Plan::new(needs);
        if strictness == Strictness::Off || needs.unconfinable.is_some() || !may || plan.leaves_all() {
            return Ok(Self::OF_HOST);
        }
        let refused = match unshare() {
            Ok((lines, former)) => match plan.enter(&lines) {
                Ok(()) => return Ok(Self(Some(former))),
                Err(error) => {
                    Self(Some(former)).leave()?;
                    error
                }
            },
            Err(error) => error,
        };
        if strictness == Strictness::Strict {
            return Err(SandboxError::Mounts(refused));
        }
        // The status line reports what a system does not support, such as a chroot, an initramfs or an old
        // kernel.
        match refused.kind() {
            io::ErrorKind::Unsupported => {
                tracing::info!(error = %refused, "using the host's mounts");
            }
            _ => tracing::warn!(error = %refused, "using the host's mounts"),
        }
        Ok(Self::OF_HOST)
    }

    /// Returns to the host's mounts.
    ///
    /// # Errors
    /// The process has own mounts but lacks CAP_SYS_CHROOT.
    pub fn leave(self) -> Result<Self, SandboxError> {
        if let Some(former) = self.0 {
            former.restore_namespace().map_err(|error| SandboxError::Stuck(error.into()))?;
        }
        Ok(Self::OF_HOST)
    }

    /// Drops the descriptors of the former namespace. Returns `true` if the process has own mounts.
    pub(super) fn stay(self) -> bool {
        self.0.is_some()
    }
}

/// Creates a mount namespace; returns the lines of the mount table and the former namespace.
fn unshare() -> io::Result<(Vec<Vec<u8>>, Former)> {
    let lines = mountinfo::lines()?;
    if !lines.iter().any(|line| is_root_mount(line)) {
        let why = "the root directory is no mount that could be replaced";
        return Err(io::Error::new(io::ErrorKind::Unsupported, why));
    }
    Ok((lines, mounts::unshare()?))
}

/// Directories of devices, service sockets and system files. Mounts below them are hidden, unless something
/// else needs them.
const SYSTEM: [&str; 8] = ["/proc", "/sys", "/dev", "/run", "/var", "/etc", "/usr", "/tmp"];

/// Socket of the system log, in containers a mount of its own.
const LOG: &str = "/dev/log";

/// Limits of CPU and memory. Version 1 of cgroups has a mount for each controller below.
const CGROUPS: &str = "/sys/fs/cgroup";

/// Access that the process needs to a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Access {
    writes: bool,
    /// `true` if access includes the mounts below the path, also later ones.
    beneath: bool,
}

impl Access {
    /// Access to a mount that is only on the way to a needed path.
    const PASSED: Self = Self { writes: false, beneath: false };
}

/// Plan of the mounts that the process gets, derived from its needs.
#[derive(Debug)]
struct Plan {
    /// Access to the needed paths, without symbolic links; each becomes a mount of its own, unless one above
    /// covers it.
    places: BTreeMap<PathBuf, Access>,
    /// Paths on the way to something needed.
    passed: BTreeSet<PathBuf>,
    /// Path of the working directory, which is entered again once the mounts are replaced.
    working: io::Result<PathBuf>,
}

impl Plan {
    fn new(needs: &Needs) -> Self {
        let working = env::current_dir();
        let mut plan = Self { places: BTreeMap::new(), passed: BTreeSet::new(), working };
        for place in needs.removes.iter().chain(&needs.listens_in) {
            plan.add(place, Access { writes: true, beneath: false });
        }
        let reads = needs.reads.iter().map(PathBuf::as_path);
        for place in reads.chain([Path::new(CGROUPS)]) {
            plan.add(place, Access { writes: false, beneath: true });
        }
        for place in &needs.changes {
            plan.add(place, Access { writes: true, beneath: true });
        }
        let passed = needs.lists.iter().chain(&needs.reaches).map(PathBuf::as_path);
        let always = SYSTEM.into_iter().chain([LOG]).chain(ALWAYS).map(Path::new);
        for path in passed.chain(always) {
            plan.pass(path);
        }
        // The broker runs this program, started within the mounts.
        for path in mapped_files() {
            plan.pass(&path);
        }
        plan
    }

    /// Adds a needed path; a missing one is left out, as in the file rules (`files`).
    fn add(&mut self, path: &Path, access: Access) {
        self.pass(path);
        let Ok(path) = path.canonicalize() else { return };
        let place = self.places.entry(path).or_insert(access);
        place.writes |= access.writes;
        place.beneath |= access.beneath;
    }

    /// Adds the path at which the look-up of `path` ends, and those of the links that it follows. Their
    /// ancestors count as added ([`needs`](Self::needs)).
    fn pass(&mut self, path: &Path) {
        let Ok(path) = absolute(path) else { return };
        let (mut at, mut links) = (PathBuf::new(), 0);
        let mut rest = parts(&path);
        while let Some(part) = rest.pop() {
            if part == ".." {
                self.passed.insert(at.clone());
                at.pop();
                continue;
            }
            at.push(part);
            let Ok(target) = fs::read_link(&at) else { continue };
            links += 1;
            if links > LINKS_MAX {
                return;
            }
            self.passed.insert(at.clone());
            at.pop();
            rest.extend(parts(&target));
        }
        self.passed.insert(at);
    }

    /// Returns `true` if all mounts may be changed, so that own mounts would restrict nothing.
    fn leaves_all(&self) -> bool {
        self.places.get(Path::new("/")).is_some_and(|access| access.writes && access.beneath)
    }

    fn enter(&self, lines: &[Vec<u8>]) -> io::Result<()> {
        mounts::only_receive()?;
        // All mounts are copied before the first copy is attached, which would hide the host's mounts.
        let mut copies = Vec::new();
        for (path, how) in self.wanted(lines) {
            match how.map(|access| copy(&path, access)).transpose() {
                Ok(copied) => copies.push((path, copied)),
                // The mount was removed after the table was read.
                Err(Errno::NOENT) => {}
                Err(error) if !self.needs(&path) => {
                    tracing::debug!(%error, path = %path.display(), "cannot copy a mount above the working directory");
                    copies.push((path, None));
                }
                Err(error) => return Err(error.into()),
            }
        }
        let root = self.places.get(Path::new("/")).copied().unwrap_or(Access::PASSED);
        let root = NewRoot::over(copy(Path::new("/"), root)?)?;
        for (path, copied) in copies {
            let attach = |tree: &OwnedFd| {
                mounts::attach(tree.as_fd(), root.as_fd(), path.strip_prefix("/").unwrap_or(&path))
            };
            match copied {
                Some(copied) => attach(&copied)?,
                None => hide(attach)?,
            }
        }
        root.enter()?;
        if let Ok(working) = &self.working
            && let Err(error) = env::set_current_dir(working)
        {
            tracing::debug!(%error, "working directory changed to /");
        }
        Ok(())
    }

    /// Returns `true` if a mount is needed, other than on the way to the working directory.
    fn needs(&self, point: &Path) -> bool {
        self.places.contains_key(point) || self.passed.iter().any(|path| path.starts_with(point))
    }

    /// Returns the mounts below the root, top down; `None` in place of unneeded mounts.
    fn wanted(&self, lines: &[Vec<u8>]) -> BTreeMap<PathBuf, Option<Access>> {
        let points = lines.iter().filter_map(|line| mountinfo::point(line));
        let points = points.map(|point| PathBuf::from(OsString::from_vec(point)));
        let leads_to_working = |point: &Path| self.working.as_ref().is_ok_and(|path| path.starts_with(point));
        let (passed, hidden): (BTreeSet<_>, BTreeSet<_>) =
            points.partition(|point| self.needs(point) || leads_to_working(point));
        let is_hidden = |path: &Path| path.ancestors().skip(1).any(|above| hidden.contains(above));
        let passed = passed.into_iter().map(|point| (point, Access::PASSED));
        let mut wanted: BTreeMap<_, _> = passed.chain(self.places.clone()).collect();
        wanted.retain(|path, access| path.parent().is_some() && !self.is_covered(path, *access));
        let hides = hidden.iter().filter(|path| !is_hidden(path) && !self.is_covered(path, Access::PASSED));
        let hides: Vec<_> = hides.map(|path| (path.clone(), None)).collect();
        wanted.into_iter().map(|(path, access)| (path, Some(access))).chain(hides).collect()
    }

    /// Returns `true` if the mount of a path above gives this access, so that no mount at `path` is needed.
    fn is_covered(&self, path: &Path, access: Access) -> bool {
        let covers = |above: &Access| above.beneath && above.writes >= access.writes;
        path.ancestors().skip(1).filter_map(|above| self.places.get(above)).any(covers)
    }
}

fn copy(path: &Path, access: Access) -> tombolo_sys::Result<OwnedFd> {
    let copied = mounts::copy(path, access.beneath)?;
    if !access.writes {
        mounts::make_read_only(copied.as_fd(), !access.beneath)?;
    }
    Ok(copied)
}

/// Maximum number of symbolic links in a look-up (path_resolution(7)).
const LINKS_MAX: usize = 40;

/// Returns the components of a path in reverse order.
fn parts(path: &Path) -> Vec<OsString> {
    path.components().rev().map(|part| part.as_os_str().to_owned()).collect()
}

/// Returns the executable files of this process: program, loader and libraries (proc_pid_maps(5)).
fn mapped_files() -> BTreeSet<PathBuf> {
    let maps = fs::read("/proc/self/maps").unwrap_or_default();
    let executed = maps.split(|&byte| byte == b'\n').filter_map(|line| {
        let (fields, path) = line.split_at_checked(line.iter().position(|&byte| byte == b'/')?)?;
        fields.contains(&b'x').then(|| PathBuf::from(OsStr::from_bytes(path)))
    });
    executed.collect()
}

/// Mounts an empty directory or file over a path.
fn hide(attach: impl Fn(&OwnedFd) -> tombolo_sys::Result<()>) -> tombolo_sys::Result<()> {
    match attach(&mounts::empty()?) {
        // A file, such as /etc/hosts in containers: move_mount(2) fails with EINVAL.
        Err(Errno::NOTDIR | Errno::INVAL) => attach(&mounts::copy(Path::new("/dev/null"), false)?),
        // The path is below a mount that is hidden already.
        Err(Errno::NOENT) => Ok(()),
        outcome => outcome,
    }
}

/// Returns `true` if a line is of the mount at `/`, except the initial file system, which stays there
/// (pivot_root(2)).
fn is_root_mount(line: &[u8]) -> bool {
    mountinfo::point(line).as_deref() == Some(b"/") && mountinfo::kind(line) != Some("rootfs")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unrestricted_changes_need_no_own_mounts() {
        let changes = |path: &str| Needs { changes: vec![path.into()], ..Needs::default() };
        assert!(Plan::new(&changes("/")).leaves_all() && !Plan::new(&changes("/usr")).leaves_all());
        assert!(!Plan::new(&Needs { reads: vec!["/".into()], ..Needs::default() }).leaves_all());
        // Other mounts are hidden all the same.
        assert!(!Plan::new(&Needs { listens_in: vec!["/".into()], ..Needs::default() }).leaves_all());
    }

    #[test]
    fn initial_root_file_system_cannot_be_replaced() {
        assert!(is_root_mount(b"27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw"));
        assert!(!is_root_mount(b"1 1 0:2 / / rw - rootfs rootfs rw"));
        assert!(!is_root_mount(b"30 27 0:25 / /mnt rw - tmpfs x rw"));
    }
}
