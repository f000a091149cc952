//! Permissions that a server needs inside its sandbox, once its sockets exist.

use std::fs;
use std::path::{Path, PathBuf, absolute};

use tombolo_host_links::registry::Directory;
use tombolo_host_links::shared_memory::MemoryLocation;
use tombolo_host_service::control;
use tombolo_host_service::sandbox::{Needs, Unconfinable};
use tombolo_host_service::state_dir::StateDir;

use tombolo_sys::mountinfo;

use super::Plan;
use super::tree::Tree;
use crate::assembly::servers::state::state_path;
use crate::location::{NfsOptions, NfsShmUrl, NfsUrl, ShmEndpoint, ShmLocation, ShmParts};

/// sysfs directories of PCI devices.
const PCI_DEVICES: [&str; 2] = ["/sys/bus/pci/devices", "/sys/devices"];

/// Returns the needs of a client of a remote NFS server.
pub fn of_client(url: &NfsUrl) -> Needs {
    // The connection is made by ssh, which this process starts.
    let unconfinable = url.ssh.is_some().then_some(Unconfinable::StartsPrograms);
    let (reads, looks_up) = (certificates(&url.options), url.host.is_name());
    Needs { connects: true, looks_up, reads, unconfinable, ..Needs::default() }
}

/// Returns the needs of a client of a shared-memory server.
pub fn of_shm_client(place: &ShmLocation) -> Needs {
    let mut needs = Needs { connects: true, ..Needs::default() };
    match place.parts() {
        Ok(ShmParts { at: ShmEndpoint::Memory(memory), .. }) => need_memory(&mut needs, &memory),
        Ok(ShmParts { at: ShmEndpoint::Socket(socket), .. }) => needs.reaches.push(socket),
        Err(_) => needs.unconfinable = Some(Unconfinable::IsAway),
    }
    needs
}

fn need_memory(needs: &mut Needs, memory: &MemoryLocation) {
    if matches!(memory, MemoryLocation::Pci(_)) {
        needs.reads.extend(PCI_DEVICES.map(PathBuf::from));
    }
    // A missing device is reported when it is used.
    let file = memory.file().ok();
    let (there, missing): (Vec<_>, Vec<_>) = file.into_iter().partition(|file| file.exists());
    needs.changes.extend(there);
    needs.changes.extend(directories_of(missing));
}

/// Returns the needs of serving a directory.
pub fn of_directory(dir: &Path, is_read_only: bool) -> Needs {
    let (reads, changes) =
        if is_read_only { (vec![dir.to_owned()], vec![]) } else { (vec![], vec![dir.to_owned()]) };
    Needs { reads, changes, serves_users: true, ..Needs::default() }
}

/// Returns the needs of mounts on this host. The groups of a caller are read from its directory in /proc.
pub fn of_mounts() -> Needs {
    let unconfinable = hides_processes().then_some(Unconfinable::ProcIsHidden);
    let (reads, changes) = (vec!["/proc".into()], vec!["/dev/fuse".into()]);
    Needs { reads, changes, serves_mounts: true, unconfinable, ..Needs::default() }
}

/// Returns `true` if /proc hides processes, by its mount option `hidepid=` (proc(5)).
fn hides_processes() -> bool {
    let lines = mountinfo::lines().unwrap_or_default();
    let line = lines.iter().rfind(|line| mountinfo::point(line).as_deref() == Some(b"/proc"));
    let options = line.and_then(|line| line.rsplit(|&byte| byte == b' ').next()).unwrap_or_default();
    let words = options.split(|&byte| byte == b',');
    words.filter_map(|word| word.strip_prefix(b"hidepid=")).any(|how| how != b"0" && how != b"off")
}

/// Returns the certificate directories of a client's options.
pub fn certificates(options: &NfsOptions) -> Vec<PathBuf> {
    let dir = options.security().and_then(|(_, dir)| dir.ok());
    dir.map_or_else(Vec::new, |dir| with_targets(&dir))
}

/// Returns a directory and the directories of its links' targets.
pub fn with_targets(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let targets = entries.filter_map(|entry| target_of(&entry.path()));
    std::iter::once(dir.to_owned()).chain(targets).collect()
}

/// Returns the directory of a link's target, or the target itself if it is in the root directory; `None` if
/// the path is no link, or its target is missing.
fn target_of(link: &Path) -> Option<PathBuf> {
    let target = link.is_symlink().then(|| link.canonicalize().ok()).flatten()?;
    let dir = target.parent().filter(|dir| dir.parent().is_some());
    Some(dir.unwrap_or(&target).to_owned())
}

/// Returns the parent directories of these files.
pub fn directories_of(files: impl IntoIterator<Item = PathBuf>) -> Vec<PathBuf> {
    files.into_iter().filter_map(|path| absolute(path).ok()?.parent().map(Path::to_owned)).collect()
}

impl Plan {
    /// Returns the needs of the plan. `made` are the sockets created so far, which the server removes at
    /// its end.
    pub fn needs(&self, made: impl IntoIterator<Item = PathBuf>) -> Needs {
        let mut needs = Needs { removes: directories_of(made), ..Needs::default() };
        for export in &self.exports {
            match &export.tree {
                Tree::Dir(dir) => {
                    let is_read_only = self.layers.read_only && self.cache.is_none();
                    join(&mut needs, of_directory(dir, is_read_only));
                }
                Tree::Nfs(url) => join(&mut needs, of_client(url)),
                Tree::Shm(place) | Tree::NfsShm(NfsShmUrl { place, .. }) => {
                    join(&mut needs, of_shm_client(place));
                }
            }
        }
        self.need_of_front_ends(&mut needs);
        match &self.cache {
            Some(cache) if !self.takes_sessions() => join(&mut needs, cache.needs()),
            Some(_) => needs.unconfinable = Some(Unconfinable::TakesSessions),
            None => {}
        }
        if !self.front_ends.mounts.is_empty() {
            join(&mut needs, of_mounts());
        }
        needs
    }

    fn need_of_front_ends(&self, needs: &mut Needs) {
        let (nfs, shm) = (&self.front_ends.nfs, &self.front_ends.shm);
        // The bound NFS sockets begin to listen inside the sandbox; connections are refused until then.
        needs.listens = !nfs.ports.is_empty();
        needs.reads.extend(nfs.tls_dir.iter().flat_map(|dir| with_targets(dir)));
        needs.looks_up |= nfs.manage_gids;
        if (nfs.is_any() || shm.is_any() || self.keep.is_some())
            && let Ok(state) = state_path(self.state.as_deref())
        {
            // The directory is created now, because a sandbox cannot allow a missing one. Errors are reported
            // when it is used.
            let _ = StateDir::open(&state);
            needs.changes.push(state);
        }
        if shm.is_any() {
            // The directory of the server list, created now for the same reason.
            let _ = Directory::open(&control::default_directory());
            needs.changes.push(control::default_directory());
        }
        needs.listens_in.extend(directories_of(shm.sockets.iter().map(|place| place.socket.clone())));
        needs.reads.extend(shm.policy.clone());
        shm.memory.iter().for_each(|memory| need_memory(needs, &memory.place));
    }
}

/// Merges the needs of two components.
pub fn join(needs: &mut Needs, more: Needs) {
    needs.reads.extend(more.reads);
    needs.lists.extend(more.lists);
    needs.changes.extend(more.changes);
    needs.removes.extend(more.removes);
    needs.listens_in.extend(more.listens_in);
    needs.reaches.extend(more.reaches);
    needs.listens |= more.listens;
    needs.connects |= more.connects;
    needs.looks_up |= more.looks_up;
    needs.has_ring |= more.has_ring;
    needs.serves_users |= more.serves_users;
    needs.serves_mounts |= more.serves_mounts;
    needs.unconfinable = needs.unconfinable.or(more.unconfinable);
}
