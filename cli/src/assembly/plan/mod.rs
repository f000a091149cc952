//! Plan of a server, validated as far as possible before anything is opened.

pub mod access;
pub mod cache;
pub mod disk;
pub mod layers;
pub mod needs;
pub mod nfs;
pub mod overlay;
mod proxy;
pub mod shm;
pub mod tree;
pub mod write_back;

use std::path::PathBuf;
use std::time::Duration;

use tombolo_host_service::sandbox::Strictness;
use tombolo_layer_idmap::{IdMap, IdRange, Ids};
use tombolo_sys::pattern::Pattern;

use super::options::ServerOptions;
use super::options::address::ListenAddress;
use super::options::ask::AskArg;
use super::options::coherence::Coherence;
use super::options::export::{ExportArg, ExportName};
use super::options::fuse::FuseArg;
use super::options::submounts::Submounts;
use super::options::virtiofs::{SocketMode, VirtioFsArg, VirtioFsSocket};
use super::options::xattrs::Xattrs;
use super::servers::guest_socket::SocketAccess;
use crate::failure::Failure;
use crate::mount_point::MountPoint;
use cache::CachePlan;
use disk::DiskPlan;
use nfs::NfsPlan;
use shm::ShmPlan;
use tree::Tree;

/// A server: its exports, the layers over them, and the front ends that lead to them.
#[derive(Debug)]
pub struct Plan {
    pub exports: Vec<PlannedExport>,
    pub disks: Vec<DiskPlan>,
    /// Cache of each export, for a proxy.
    pub cache: Option<CachePlan>,
    pub layers: Layers,
    pub front_ends: FrontEnds,
    pub control: Option<PathBuf>,
    pub metrics: Option<ListenAddress>,
    /// Directory of durable state, if given.
    pub state: Option<PathBuf>,
    pub sandbox: Strictness,
    /// Set with `--keep`: the descriptors of the guests' sockets in a keeper's server; empty in the keeper
    /// itself.
    pub keep: Option<Vec<i32>>,
    /// Time without clients after which the server exits.
    pub end_when_unused: Option<Duration>,
}

/// Layers over each export, besides the counters, and options of its back end.
#[derive(Clone, Debug)]
pub struct Layers {
    pub read_only: bool,
    pub submounts: Submounts,
    /// `true` if changes by other processes of the host are watched.
    pub host_watch: bool,
    /// Mapping of clients' user and group ids to local ones, if any.
    pub ids: Option<IdMap>,
}

#[derive(Debug)]
pub struct FrontEnds {
    pub guests: Vec<PlannedGuests>,
    pub socket_access: SocketAccess,
    pub mounts: Vec<PlannedMount>,
    /// Cache policy of guests and mounts.
    pub coherence: Coherence,
    /// Extended attributes for guests, mounts and shared-memory clients.
    pub xattrs: Xattrs,
    pub nfs: NfsPlan,
    pub shm: ShmPlan,
}

#[derive(Clone, Debug)]
pub struct PlannedExport {
    pub tree: Tree,
    pub name: ExportName,
    /// Files that clients must not cache.
    pub ask: Vec<Pattern>,
}

#[derive(Debug)]
pub struct PlannedGuests {
    pub socket: VirtioFsSocket,
    /// Mount tag in the guest.
    pub tag: String,
    pub request_queues: u16,
    /// Index of the export in the plan.
    pub export: usize,
}

#[derive(Debug)]
pub struct PlannedMount {
    pub point: MountPoint,
    /// `true` if users other than the server's have access.
    pub allow_other: bool,
    /// Index of the export in the plan.
    pub export: usize,
}

impl Plan {
    /// Returns the default name of the server: that of its first export or disk.
    pub fn name(&self) -> String {
        let export = self.exports.first().map(|export| export.name.word());
        export.or_else(|| Some(self.disks.first()?.name.clone())).unwrap_or_else(|| "serve".into())
    }

    /// Validates the options as a whole.
    pub fn new(mut options: ServerOptions) -> Result<Self, Failure> {
        if options.dir.is_empty() && (options.disk.is_empty() || options.asks_for_directories()) {
            let problem = "cannot serve: no directory given";
            return Err(Failure::usage(problem).remedy("write `tombolo serve DIR …`"));
        }
        let mut exports = planned_exports(std::mem::take(&mut options.dir))?;
        ask_for(std::mem::take(&mut options.ask), &mut exports)?;
        let front_ends = FrontEnds::new(&mut options, &exports)?;
        front_ends.reach_all(&exports)?;
        let keep = options.keep.unwrap_or(false).then(|| std::mem::take(&mut options.kept));
        if options.state.is_some() && keep.is_none() && !front_ends.nfs.is_any() && !front_ends.shm.is_any() {
            let problem = "--state requires --nfs, --shm, --shm-file or --keep";
            return Err(Failure::usage(problem).remedy("add --nfs PORT or --shm SOCKET"));
        }
        if exports.iter().any(|export| !export.ask.is_empty()) && front_ends.is_only_nfs() {
            let problem =
                "--ask requires --fuse, --virtiofs, --shm or --shm-file: NFS clients go by their own options";
            return Err(Failure::usage(problem).remedy("mount with noac on the clients"));
        }
        let read_only = options.read_only.unwrap_or(false);
        let disks = DiskPlan::all(std::mem::take(&mut options.disk), read_only)?;
        if keep.is_some() {
            front_ends.can_survive_restart(&exports, &disks)?;
        }
        if front_ends.nfs.over_stdio && !disks.is_empty() {
            return Err(only_stdio());
        }
        let host_watch = options.host_watch.unwrap_or(front_ends.coherence == Coherence::Push);
        let ids = id_map(&mut options)?;
        let layers = Layers { read_only, submounts: options.submounts.unwrap_or_default(), host_watch, ids };
        Ok(Self {
            exports,
            disks,
            cache: None,
            layers,
            front_ends,
            control: options.control,
            metrics: options.metrics,
            state: options.state,
            sandbox: options.sandbox.unwrap_or_default(),
            keep,
            end_when_unused: None,
        })
    }

    /// Returns `true` if sessions can be added at run time. Only proxies have sessions. A strict sandbox
    /// opens no further origins, and a proxy that exits when its own export is unused would end sessions in
    /// use.
    pub fn takes_sessions(&self) -> bool {
        self.cache.is_some() && self.sandbox != Strictness::Strict && self.end_when_unused.is_none()
    }

    /// Sets the time without clients after which the server exits; `None`: never. Fails with front ends
    /// other than shared memory.
    pub fn ending_when_unused(self, after: Option<Duration>) -> Result<Self, Failure> {
        let FrontEnds { guests, mounts, nfs, shm, .. } = &self.front_ends;
        if after.is_some()
            && !(guests.is_empty() && mounts.is_empty() && nfs.ports.is_empty() && shm.is_any())
        {
            let problem =
                "--end-when-unused requires --shm as the only front end: other clients cannot be tracked";
            return Err(Failure::usage(problem).remedy("omit it, or serve with --shm SOCKET only"));
        }
        Ok(Self { end_when_unused: after, ..self })
    }
}

fn only_stdio() -> Failure {
    let problem = "--stdio excludes other front ends, since it ends with its connections";
    Failure::usage(problem).remedy("use another server for them")
}

/// Id that users outside all ranges of `--map-users` get in both directions, except an unmapped root;
/// likewise for groups.
const NOBODY: u32 = 65_534;

fn id_map(options: &mut ServerOptions) -> Result<Option<IdMap>, Failure> {
    let (users, groups) = (std::mem::take(&mut options.map_users), std::mem::take(&mut options.map_groups));
    if users.is_empty() && groups.is_empty() {
        return Ok(None);
    }
    let ids = |ranges: Vec<IdRange>, option: &str| {
        Ids::new(ranges, NOBODY).map_err(|error| Failure::usage(format!("{option}: {error}")))
    };
    Ok(Some(IdMap { users: ids(users, "--map-users")?, groups: ids(groups, "--map-groups")? }))
}

impl FrontEnds {
    fn new(options: &mut ServerOptions, exports: &[PlannedExport]) -> Result<Self, Failure> {
        let sockets = [std::mem::take(&mut options.virtiofs), std::mem::take(&mut options.fd)].concat();
        let guests = planned_guests(sockets, exports)?;
        let mode = options.socket_mode.map(|SocketMode(bits)| bits);
        if (options.socket_group.is_some() || mode.is_some()) && guests.is_empty() {
            let problem = "--socket-group and --socket-mode require --virtiofs";
            return Err(Failure::usage(problem).remedy("add --virtiofs SOCKET"));
        }
        let socket_access = SocketAccess::new(options.socket_group.as_deref(), mode)?;
        let submounts = options.submounts.unwrap_or_default();
        let mounts = planned_mounts(std::mem::take(&mut options.fuse), exports, submounts)?;
        let coherence = options.coherence.unwrap_or_default();
        if coherence == Coherence::Push && (mounts.is_empty() || !guests.is_empty()) {
            let problem = "--coherence push requires --fuse: virtio-fs guests cannot be notified of changes";
            return Err(Failure::usage(problem).remedy("use strict, auto or always for guests"));
        }
        let shm = ShmPlan::new(options, exports)?;
        let nfs = NfsPlan::new(options, exports, shm.is_any())?;
        let xattrs = options.xattrs.unwrap_or_default();
        let front_ends = Self { guests, socket_access, mounts, coherence, xattrs, nfs, shm };
        if front_ends.nfs.over_stdio && !(front_ends.is_only_nfs() && front_ends.nfs.ports.is_empty()) {
            return Err(only_stdio());
        }
        if options.xattrs.is_some() && front_ends.is_only_nfs() {
            let problem = "--xattrs requires --virtiofs, --fuse, --shm or --shm-file: NFS version 3 has no extended attributes";
            return Err(Failure::usage(problem).remedy("add --virtiofs SOCKET"));
        }
        Ok(front_ends)
    }

    fn is_only_nfs(&self) -> bool {
        self.guests.is_empty() && self.mounts.is_empty() && !self.shm.is_any()
    }

    /// Checks that `--keep` applies: a keeper holds only the connections of VMMs, and only files of local
    /// directories are found again by the next server.
    fn can_survive_restart(&self, exports: &[PlannedExport], disks: &[DiskPlan]) -> Result<(), Failure> {
        let refused = |problem: String, remedy: &str| Err(Failure::usage(problem).remedy(remedy));
        if self.guests.is_empty() {
            return refused("--keep requires virtio-fs guests".into(), "add --virtiofs SOCKET");
        }
        if self.nfs.is_any() || self.shm.is_any() || !self.mounts.is_empty() || !disks.is_empty() {
            let problem =
                "--keep requires --virtiofs as the only front end: disks and other clients cannot be kept";
            return refused(problem.into(), "use another server for them");
        }
        let inherited =
            self.guests.iter().find(|guests| matches!(guests.socket, VirtioFsSocket::Inherited(_)));
        if let Some(guests) = inherited {
            return refused(
                format!("--keep does not keep {}", guests.socket),
                "use a socket path with --virtiofs",
            );
        }
        match exports.iter().find(|export| export.tree.dir().is_none()) {
            Some(far) => refused(
                format!("--keep requires a local directory, and {} is not one", far.tree),
                "leave it out",
            ),
            None => Ok(()),
        }
    }

    /// Refuses an export without a front end, which is most likely a mistake.
    fn reach_all(&self, exports: &[PlannedExport]) -> Result<(), Failure> {
        let leads = |index: usize| {
            self.guests.iter().any(|guest| guest.export == index)
                || self.mounts.iter().any(|mount| mount.export == index)
                || self.nfs.offers(index)
                || self.shm.offers(index)
        };
        let Some((_, export)) = exports.iter().enumerate().find(|(index, _)| !leads(*index)) else {
            return Ok(());
        };
        let problem = format!("cannot serve {}: no endpoint given", export.tree);
        let which = if exports.len() == 1 { String::new() } else { format!(",export={}", export.name) };
        Err(Failure::usage(problem)
            .remedy(format_args!("give --virtiofs SOCKET{which}, --nfs PORT{which} or --shm SOCKET{which}")))
    }
}

fn planned_exports(dirs: Vec<ExportArg>) -> Result<Vec<PlannedExport>, Failure> {
    let mut exports: Vec<PlannedExport> = Vec::with_capacity(dirs.len());
    for ExportArg { dir: written, name } in dirs {
        let tree = Tree::of_word(&written)?;
        let name = name.unwrap_or_else(|| ExportName::of(&tree));
        if exports.iter().any(|other| other.name == name) {
            let clash = format!("cannot serve {}: duplicate export {name}", written.display());
            return Err(Failure::usage(clash).remedy("give them different names with DIR=/NAME"));
        }
        exports.push(PlannedExport { tree, name, ask: Vec::new() });
    }
    Ok(exports)
}

/// Adds the `--ask` patterns to their exports.
fn ask_for(args: Vec<AskArg>, exports: &mut [PlannedExport]) -> Result<(), Failure> {
    let is_dir = |export: &PlannedExport| export.tree.dir().is_some();
    if !args.is_empty()
        && !exports.iter().any(is_dir)
        && let Some(export) = exports.first()
    {
        return Err(not_a_directory(&export.tree));
    }
    for AskArg { pattern, exports: names } in args {
        let is_named = !names.is_empty();
        for index in offered(names, exports, "apply --ask")? {
            match exports.get_mut(index) {
                Some(export) if is_dir(export) => export.ask.push(pattern.clone()),
                Some(export) if is_named => return Err(not_a_directory(&export.tree)),
                _ => {}
            }
        }
    }
    Ok(())
}

fn not_a_directory(tree: &Tree) -> Failure {
    let problem = format!("--ask requires a local directory, and {tree} is not one");
    Failure::usage(problem).remedy("use it on the server that shares the directory")
}

fn planned_guests(
    sockets: Vec<VirtioFsArg>,
    exports: &[PlannedExport],
) -> Result<Vec<PlannedGuests>, Failure> {
    let mut planned: Vec<PlannedGuests> = Vec::with_capacity(sockets.len());
    for VirtioFsArg { socket, tag, export, request_queues } in sockets {
        let listening = format!("listen at {socket}");
        let export = position(export, exports, &listening)?;
        if planned.iter().any(|other| other.socket == socket) {
            let twice = format!("cannot {listening}: the socket is given twice");
            return Err(Failure::usage(twice).remedy("one is sufficient for any number of guests"));
        }
        planned.push(PlannedGuests { socket, tag, request_queues, export });
    }
    Ok(planned)
}

fn planned_mounts(
    mounts: Vec<FuseArg>,
    exports: &[PlannedExport],
    submounts: Submounts,
) -> Result<Vec<PlannedMount>, Failure> {
    let mut planned: Vec<PlannedMount> = Vec::with_capacity(mounts.len());
    for FuseArg { mountpoint, export, allow_other } in mounts {
        let mounting = format!("mount at {}", mountpoint.display());
        let export = position(export, exports, &mounting)?;
        let point = MountPoint::checked(&mountpoint)?;
        // A server that enters its own mount would wait for itself.
        let mut dirs = exports.iter().filter_map(|export| export.tree.dir());
        dirs.try_for_each(|dir| point.is_apart_from(dir, submounts))?;
        if planned.iter().any(|other| other.point.path == point.path) {
            return Err(Failure::usage(format!("cannot {mounting}: the mount point is given twice")));
        }
        planned.push(PlannedMount { point, allow_other, export });
    }
    Ok(planned)
}

/// Returns the index of the named export; without a name, of the only export.
fn position(name: Option<ExportName>, exports: &[PlannedExport], doing: &str) -> Result<usize, Failure> {
    match name {
        Some(name) => exports.iter().position(|export| export.name == name).ok_or_else(|| {
            let problem = format!("cannot {doing}: no export {name}");
            Failure::usage(problem).remedy(format_args!("available: {}", names(exports)))
        }),
        None if exports.len() == 1 => Ok(0),
        None => {
            let problem = format!("cannot {doing}: several exports and none selected");
            Err(Failure::usage(problem).remedy(format_args!("add ,export= with one of {}", names(exports))))
        }
    }
}

/// Returns the indices of the named exports; of all if none is named.
fn offered(names: Vec<ExportName>, exports: &[PlannedExport], doing: &str) -> Result<Vec<usize>, Failure> {
    if names.is_empty() {
        return Ok((0..exports.len()).collect());
    }
    names.into_iter().map(|name| position(Some(name), exports, doing)).collect()
}

fn names(exports: &[PlannedExport]) -> String {
    exports.iter().map(|export| export.name.to_string()).collect::<Vec<_>>().join(", ")
}
