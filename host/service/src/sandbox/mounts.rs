//! Mounts, by a namespace of the process's own (mount_namespaces(7)).
//!
//! Landlock has no hook for modes, owners, extended attributes and times. A mount that is read-only has none of them changed, and none of the contents: so
//! the process gets mounts of its own, all read-only but for the places where it changes something. In place of those that it does not need there are
//! empty ones: so none is kept in use when it is unmounted on the host, and what one was mounted over to hide stays hidden.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf, absolute};

use caps::{CapSet, Capability};
use tombolo_sys::mounts::{self, NewRoot};
use tombolo_sys::{Errno, mountinfo};

use super::{Needs, SandboxError, Strictness};

/// Whether a process has a mount namespace of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Namespace(bool);

impl Namespace {
    /// It sees the host's mounts as they are.
    pub const OF_HOST: Self = Self(false);

    /// Gives this thread, and those that it starts later, mounts of its own, where CAP_SYS_ADMIN allows it. To be called before anything is opened beneath a
    /// directory of `needs`: a directory that is open already leads to the host's mounts.
    ///
    /// # Errors
    /// With [`Strictness::Strict`] if the kernel refuses. Without the capability there is none, which is no error: such a process has not the rights either
    /// that this takes away.
    pub fn enter(strictness: Strictness, needs: &Needs) -> Result<Self, SandboxError> {
        let may = caps::has_cap(None, CapSet::Effective, Capability::CAP_SYS_ADMIN).unwrap_or(false);
        let plan = Plan::new(needs);
        if strictness == Strictness::Off || needs.unconfinable.is_some() || !may || plan.leaves_all() {
            return Ok(Self::OF_HOST);
        }
        match plan.enter() {
            Ok(()) => Ok(Self(true)),
            Err(error) if strictness == Strictness::Strict => Err(SandboxError::Mounts(error)),
            Err(error) => {
                tracing::warn!(%error, "the mounts are those of the host");
                Ok(Self::OF_HOST)
            }
        }
    }

    pub(super) fn is_own(self) -> bool {
        self.0
    }
}

/// Where programs expect devices, sockets of services and files of the system. Of what is mounted there nothing beneath is needed.
const SYSTEM: [&str; 8] = ["/proc", "/sys", "/dev", "/run", "/var", "/etc", "/usr", "/tmp"];

/// What the limits of processors and memory are read from: a mount for each of several controllers.
const CGROUPS: &str = "/sys/fs/cgroup";

/// How a place is to be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Access {
    writes: bool,
    /// With what is mounted beneath, also later.
    beneath: bool,
}

impl Access {
    /// Of a mount that leads to others.
    const PASSED: Self = Self { writes: false, beneath: false };
}

/// Which mounts there are to be.
#[derive(Debug)]
struct Plan {
    /// Mounted apart, by their paths without links.
    places: BTreeMap<PathBuf, Access>,
    /// What lies on the way to something that is needed.
    passed: BTreeSet<PathBuf>,
}

impl Plan {
    fn new(needs: &Needs) -> Self {
        let mut plan = Self { places: BTreeMap::new(), passed: BTreeSet::new() };
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
        for path in passed.chain(SYSTEM.map(Path::new)) {
            plan.pass(path);
        }
        plan.passed.extend(env::current_dir());
        plan
    }

    /// A path that is not there is left out, as it is of the rules for files.
    fn add(&mut self, path: &Path, access: Access) {
        self.pass(path);
        let Ok(path) = path.canonicalize() else { return };
        let place = self.places.entry(path).or_insert(access);
        place.writes |= access.writes;
        place.beneath |= access.beneath;
    }

    fn pass(&mut self, path: &Path) {
        self.passed.extend(absolute(path));
        self.passed.extend(path.canonicalize());
    }

    /// Whether all may be changed, so that own mounts would take nothing away.
    fn leaves_all(&self) -> bool {
        self.places.get(Path::new("/")).is_some_and(|access| access.writes)
    }

    fn enter(&self) -> io::Result<()> {
        let lines = mountinfo::lines()?;
        if !lines.iter().any(|line| is_root_mount(line)) {
            return Err(io::Error::other("the root directory is no mount that could be replaced"));
        }
        // By its name: it may lie in a place.
        let working = env::current_dir();
        mounts::unshare()?;
        // All before the first is attached: they would be found in place of the host's.
        let mut copies = Vec::new();
        for (path, how) in self.wanted(&lines) {
            match how.map(|access| copy(&path, access)).transpose() {
                Ok(copied) => copies.push((path, copied)),
                // It has gone meanwhile.
                Err(Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let root = NewRoot::over(copy(Path::new("/"), Access::PASSED)?)?;
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
        if let Err(error) = working.and_then(env::set_current_dir) {
            tracing::debug!(%error, "the working directory is / now");
        }
        Ok(())
    }

    /// What is to be mounted beneath the root, from the top down; nothing in place of what is not needed.
    fn wanted(&self, lines: &[Vec<u8>]) -> BTreeMap<PathBuf, Option<Access>> {
        let points = lines.iter().filter_map(|line| mountinfo::point(line));
        let points = points.map(|point| PathBuf::from(OsString::from_vec(point)));
        let (passed, hidden): (BTreeSet<_>, BTreeSet<_>) =
            points.partition(|point| self.passed.iter().any(|path| path.starts_with(point)));
        let is_hidden = |path: &Path| path.ancestors().skip(1).any(|above| hidden.contains(above));
        let passed = passed.into_iter().map(|point| (point, Access::PASSED));
        let mut wanted: BTreeMap<_, _> = passed.chain(self.places.clone()).collect();
        wanted.retain(|path, access| path.parent().is_some() && !self.is_covered(path, *access));
        let hides = hidden.iter().filter(|path| !is_hidden(path) && !self.is_covered(path, Access::PASSED));
        let hides: Vec<_> = hides.map(|path| (path.clone(), None)).collect();
        wanted.into_iter().map(|(path, access)| (path, Some(access))).chain(hides).collect()
    }

    /// Whether a place is had with one above it.
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

/// Mounts nothing over a directory, or over a file.
fn hide(attach: impl Fn(&OwnedFd) -> tombolo_sys::Result<()>) -> tombolo_sys::Result<()> {
    match attach(&mounts::empty()?) {
        Err(Errno::NOTDIR) => attach(&mounts::copy(Path::new("/dev/null"), false)?),
        // It lies in what is hidden by now.
        Err(Errno::NOENT) => Ok(()),
        outcome => outcome,
    }
}

/// Whether a line is of what is mounted at `/`, and not the initial file system, which stays there (pivot_root(2)).
fn is_root_mount(line: &[u8]) -> bool {
    let kind = line.windows(SEPARATOR.len()).position(|part| part == SEPARATOR);
    let kind = kind.and_then(|at| line.get(at + SEPARATOR.len()..)).unwrap_or_default();
    mountinfo::point(line).as_deref() == Some(b"/") && !kind.starts_with(b"rootfs ")
}

/// Before the kind of the file system (proc_pid_mountinfo(5)).
const SEPARATOR: &[u8] = b" - ";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_kept_from_what_changes_everything() {
        let changes = |path: &str| Needs { changes: vec![path.into()], ..Needs::default() };
        assert!(Plan::new(&changes("/")).leaves_all() && !Plan::new(&changes("/usr")).leaves_all());
        assert!(!Plan::new(&Needs { reads: vec!["/".into()], ..Needs::default() }).leaves_all());
    }

    #[test]
    fn the_initial_file_system_is_no_root_that_can_be_replaced() {
        assert!(is_root_mount(b"27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw"));
        assert!(!is_root_mount(b"1 1 0:2 / / rw - rootfs rootfs rw"));
        assert!(!is_root_mount(b"30 27 0:25 / /mnt rw - tmpfs x rw"));
    }
}
