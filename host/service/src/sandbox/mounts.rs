//! Mounts, by a namespace of the process's own (mount_namespaces(7)).
//!
//! Landlock has no hook for modes, owners, extended attributes and times. A mount that is read-only has none
//! of them changed, and none of the contents: so the process gets mounts of its own, all read-only but for
//! the places where it changes something. In place of those that it does not need there are empty ones: so
//! none is kept in use when it is unmounted on the host, and what one was mounted over to hide stays hidden.

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

/// Whether a process has a mount namespace of its own, and what it had before.
#[derive(Debug)]
pub struct Namespace(Option<Former>);

impl Namespace {
    /// It sees the host's mounts as they are.
    pub const OF_HOST: Self = Self(None);

    /// Gives this thread, and those that it starts later, mounts of its own, where CAP_SYS_ADMIN allows it.
    /// To be called before anything is opened beneath a directory of `needs`: a directory that is open
    /// already leads to the host's mounts.
    ///
    /// # Errors
    /// With [`Strictness::Strict`] if the kernel refuses, and in any case if it does so half-way and there is
    /// no way back. Without the capability there is none, which is no error: such a process has not the
    /// rights either that this takes away.
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
        // What a system does not have, as in a chroot, an initramfs or an old kernel, is told by the line of
        // what holds.
        match refused.kind() {
            io::ErrorKind::Unsupported => {
                tracing::info!(error = %refused, "the mounts are those of the host");
            }
            _ => tracing::warn!(error = %refused, "the mounts are those of the host"),
        }
        Ok(Self::OF_HOST)
    }

    /// Goes back to the host's mounts.
    ///
    /// # Errors
    /// It had mounts of its own and has not CAP_SYS_CHROOT, which going back takes.
    pub fn leave(self) -> Result<Self, SandboxError> {
        if let Some(former) = self.0 {
            former.come_back().map_err(|error| SandboxError::Stuck(error.into()))?;
        }
        Ok(Self::OF_HOST)
    }

    /// Gives up the way back. Whether the mounts are its own.
    pub(super) fn stay(self) -> bool {
        self.0.is_some()
    }
}

/// What is mounted, and the way back to it.
fn unshare() -> io::Result<(Vec<Vec<u8>>, Former)> {
    let lines = mountinfo::lines()?;
    if !lines.iter().any(|line| is_root_mount(line)) {
        let why = "the root directory is no mount that could be replaced";
        return Err(io::Error::new(io::ErrorKind::Unsupported, why));
    }
    Ok((lines, mounts::unshare()?))
}

/// Where programs expect devices, sockets of services and files of the system. Of what is mounted there
/// nothing beneath is needed.
const SYSTEM: [&str; 8] = ["/proc", "/sys", "/dev", "/run", "/var", "/etc", "/usr", "/tmp"];

/// The socket that the log goes to. In containers it is a mount of its own.
const LOG: &str = "/dev/log";

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
    /// By its name: it may lie in a place.
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
        // The broker is this program, and is started behind the mounts.
        for path in mapped_files() {
            plan.pass(&path);
        }
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

    /// All that the lookup of a path comes through, link by link.
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

    /// Whether all may be changed, so that own mounts would take nothing away.
    fn leaves_all(&self) -> bool {
        self.places.get(Path::new("/")).is_some_and(|access| access.writes && access.beneath)
    }

    fn enter(&self, lines: &[Vec<u8>]) -> io::Result<()> {
        mounts::only_receive()?;
        // All before the first is attached: they would be found in place of the host's.
        let mut copies = Vec::new();
        for (path, how) in self.wanted(lines) {
            match how.map(|access| copy(&path, access)).transpose() {
                Ok(copied) => copies.push((path, copied)),
                // It has gone meanwhile.
                Err(Errno::NOENT) => {}
                Err(error) if !self.needs(&path) => {
                    tracing::debug!(%error, path = %path.display(), "the way to the working directory is hidden");
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
            tracing::debug!(%error, "the working directory is / now");
        }
        Ok(())
    }

    /// Whether a mount is needed: not only on the way to the working directory.
    fn needs(&self, point: &Path) -> bool {
        self.places.contains_key(point) || self.passed.iter().any(|path| path.starts_with(point))
    }

    /// What is to be mounted beneath the root, from the top down; nothing in place of what is not needed.
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

/// How many links a lookup follows (path_resolution(7)).
const LINKS_MAX: usize = 40;

/// The parts of a path, the last first.
fn parts(path: &Path) -> Vec<OsString> {
    path.components().rev().map(|part| part.as_os_str().to_owned()).collect()
}

/// The files that this process executes: its program, loader and libraries (proc_pid_maps(5)).
fn mapped_files() -> BTreeSet<PathBuf> {
    let maps = fs::read("/proc/self/maps").unwrap_or_default();
    let executed = maps.split(|&byte| byte == b'\n').filter_map(|line| {
        let (fields, path) = line.split_at_checked(line.iter().position(|&byte| byte == b'/')?)?;
        fields.contains(&b'x').then(|| PathBuf::from(OsStr::from_bytes(path)))
    });
    executed.collect()
}

/// Mounts nothing over a directory, or over a file.
fn hide(attach: impl Fn(&OwnedFd) -> tombolo_sys::Result<()>) -> tombolo_sys::Result<()> {
    match attach(&mounts::empty()?) {
        // A file, as containers have for /etc/hosts: move_mount(2) says EINVAL.
        Err(Errno::NOTDIR | Errno::INVAL) => attach(&mounts::copy(Path::new("/dev/null"), false)?),
        // It lies in what is hidden by now.
        Err(Errno::NOENT) => Ok(()),
        outcome => outcome,
    }
}

/// Whether a line is of what is mounted at `/`, and not the initial file system, which stays there
/// (pivot_root(2)).
fn is_root_mount(line: &[u8]) -> bool {
    mountinfo::point(line).as_deref() == Some(b"/") && mountinfo::kind(line) != Some("rootfs")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_kept_from_what_changes_everything() {
        let changes = |path: &str| Needs { changes: vec![path.into()], ..Needs::default() };
        assert!(Plan::new(&changes("/")).leaves_all() && !Plan::new(&changes("/usr")).leaves_all());
        assert!(!Plan::new(&Needs { reads: vec!["/".into()], ..Needs::default() }).leaves_all());
        // What lies on other mounts is kept away all the same.
        assert!(!Plan::new(&Needs { listens_in: vec!["/".into()], ..Needs::default() }).leaves_all());
    }

    #[test]
    fn the_initial_file_system_is_no_root_that_can_be_replaced() {
        assert!(is_root_mount(b"27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw"));
        assert!(!is_root_mount(b"1 1 0:2 / / rw - rootfs rootfs rw"));
        assert!(!is_root_mount(b"30 27 0:25 / /mnt rw - tmpfs x rw"));
    }
}
