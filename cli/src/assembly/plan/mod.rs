//! What to serve and how, checked as far as it can be before anything is opened.

pub mod nfs;
pub mod shm;
pub mod tree;

use std::path::PathBuf;

use crate::assembly::options::address::ListenAddress;
use crate::assembly::options::coherence::Coherence;
use crate::assembly::options::config::Config;
use crate::assembly::options::export::{ExportArg, ExportName};
use crate::assembly::options::fuse::FuseArg;
use crate::assembly::options::submounts::Submounts;
use crate::assembly::options::virtiofs::{SocketMode, VirtioFsArg, VirtioFsSocket};
use crate::assembly::plan::nfs::NfsPlan;
use crate::assembly::plan::shm::ShmPlan;
use crate::assembly::plan::tree::Tree;
use crate::assembly::servers::guest_socket::SocketAccess;
use crate::commands::serve::ServeArgs;
use crate::failure::Failure;
use crate::mount_point::MountPoint;

/// Everything that `tombolo serve` was asked for.
#[derive(Debug)]
pub struct Plan {
    /// The trees, each with a name of its own.
    pub exports: Vec<PlannedExport>,
    /// The ways in for guests, each to one of the exports.
    pub ways: Vec<PlannedWay>,
    /// Who may connect there.
    pub socket_access: SocketAccess,
    /// The mounts on this host, each of one of the exports.
    pub mounts: Vec<PlannedMount>,
    /// Whether all changes are refused.
    pub read_only: bool,
    /// What clients may keep.
    pub coherence: Coherence,
    /// How nested mounts are treated.
    pub submounts: Submounts,
    /// The control socket, where it was asked for.
    pub control: Option<PathBuf>,
    /// Where metrics are served, if they are.
    pub metrics: Option<ListenAddress>,
    /// Where to keep what outlives a restart, if somebody said so.
    pub state: Option<PathBuf>,
    /// What is served to NFS clients.
    pub nfs: NfsPlan,
    /// What is served over memory in common.
    pub shm: ShmPlan,
}

/// A tree under a name.
#[derive(Debug)]
pub struct PlannedExport {
    /// The tree.
    pub tree: Tree,
    /// Its name.
    pub name: ExportName,
}

/// A socket for one guest.
#[derive(Debug)]
pub struct PlannedWay {
    /// Where the VMM connects.
    pub socket: VirtioFsSocket,
    /// What the guest calls it.
    pub tag: String,
    /// How many queues take requests.
    pub request_queues: u16,
    /// Where in `exports` it leads.
    pub export: usize,
}

/// A mount on this host.
#[derive(Debug)]
pub struct PlannedMount {
    /// Where.
    pub point: MountPoint,
    /// Whether users other than the server's may enter.
    pub allow_other: bool,
    /// Where in `exports` it leads.
    pub export: usize,
}

impl Plan {
    /// Reads the configuration, puts the command line over it, and checks the whole.
    pub fn new(args: ServeArgs) -> Result<Self, Failure> {
        let mut config = args.config.as_deref().map(Config::read).transpose()?.unwrap_or_default();
        let nfs = args.nfs.over(config.nfs_options());
        let shm = args.shm.over(config.shm_options());
        let dirs = if args.dir.is_empty() { config.dir } else { args.dir };
        let sockets = [args.virtiofs, args.fd].concat();
        let sockets = if sockets.is_empty() { config.virtiofs } else { sockets };
        let fuse = if args.fuse.is_empty() { config.fuse } else { args.fuse };
        if dirs.is_empty() {
            return Err(
                Failure::usage("cannot serve: no directory given").remedy("write `tombolo serve DIR …`")
            );
        }
        let exports = planned_exports(dirs)?;
        let ways = planned_ways(sockets, &exports)?;
        let submounts = args.submounts.or(config.submounts).unwrap_or_default();
        let group = args.socket_group.or(config.socket_group);
        let mode = args.socket_mode.or(config.socket_mode).map(|SocketMode(bits)| bits);
        if (group.is_some() || mode.is_some()) && ways.is_empty() {
            let problem =
                "--socket-group and --socket-mode are about the sockets of --virtiofs, and there are none";
            return Err(Failure::usage(problem).remedy("add --virtiofs SOCKET"));
        }
        let socket_access = SocketAccess::new(group.as_deref(), mode)?;
        let mounts = planned_mounts(fuse, &exports, submounts)?;
        let shm = shm.plan(&exports)?;
        let shm_is_any = shm.is_any();
        let nfs = nfs.plan(&exports, shm_is_any)?;
        all_reachable(&exports, &ways, &mounts, &nfs, &shm)?;
        let state = args.state.or(config.state);
        if state.is_some() && nfs.places.is_empty() && !shm_is_any {
            let problem = "--state is about NFS and memory in common, and neither is served";
            return Err(Failure::usage(problem).remedy("add --nfs PORT or --shm SOCKET"));
        }
        Ok(Self {
            exports,
            ways,
            socket_access,
            mounts,
            read_only: args.readonly.or(config.readonly).unwrap_or(false),
            coherence: args.coherence.or(config.coherence).unwrap_or_default(),
            submounts,
            control: args.control.or(config.control),
            metrics: args.metrics.or(config.metrics),
            state,
            nfs,
            shm,
        })
    }
}

fn planned_exports(dirs: Vec<ExportArg>) -> Result<Vec<PlannedExport>, Failure> {
    let mut exports: Vec<PlannedExport> = Vec::with_capacity(dirs.len());
    for ExportArg { dir: written, name } in dirs {
        let tree = Tree::of_word(&written)?;
        let name = name.unwrap_or_else(|| ExportName::of(&tree));
        if exports.iter().any(|other| other.name == name) {
            let clash = format!("cannot serve {}: there is an export {name} already", written.display());
            return Err(Failure::usage(clash).remedy("name them apart with DIR=/NAME"));
        }
        exports.push(PlannedExport { tree, name });
    }
    Ok(exports)
}

fn planned_ways(sockets: Vec<VirtioFsArg>, exports: &[PlannedExport]) -> Result<Vec<PlannedWay>, Failure> {
    let mut ways: Vec<PlannedWay> = Vec::with_capacity(sockets.len());
    for VirtioFsArg { socket, tag, export, request_queues } in sockets {
        let listening = format!("listen at {socket}");
        let export = position(export, exports, &listening)?;
        if ways.iter().any(|way| way.socket == socket) {
            let twice = format!("cannot {listening}: the socket is given twice");
            return Err(Failure::usage(twice).remedy("one is enough: any number of guests may use it"));
        }
        ways.push(PlannedWay { socket, tag, request_queues, export });
    }
    Ok(ways)
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
        // A mount of one export inside another is asked for through the other too.
        let mut dirs = exports.iter().filter_map(|export| export.tree.dir());
        dirs.try_for_each(|dir| point.is_apart_from(dir, submounts))?;
        if planned.iter().any(|other| other.point.path == point.path) {
            return Err(Failure::usage(format!("cannot {mounting}: the mount point is given twice")));
        }
        planned.push(PlannedMount { point, allow_other, export });
    }
    Ok(planned)
}

/// Which export a way in leads to.
pub(super) fn position(
    name: Option<ExportName>,
    exports: &[PlannedExport],
    doing: &str,
) -> Result<usize, Failure> {
    match name {
        Some(name) => exports.iter().position(|export| export.name == name).ok_or_else(|| {
            let problem = format!("cannot {doing}: there is no export {name}");
            Failure::usage(problem).remedy(format_args!("there are: {}", names(exports)))
        }),
        None if exports.len() == 1 => Ok(0),
        None => {
            let problem = format!("cannot {doing}: it does not say which export it serves");
            Err(Failure::usage(problem).remedy(format_args!("add ,export= and one of {}", names(exports))))
        }
    }
}

/// A directory that nobody can get at is a slip of the pen.
fn all_reachable(
    exports: &[PlannedExport],
    ways: &[PlannedWay],
    mounts: &[PlannedMount],
    nfs: &NfsPlan,
    shm: &ShmPlan,
) -> Result<(), Failure> {
    let leads = |index: usize| {
        ways.iter().any(|way| way.export == index)
            || mounts.iter().any(|mount| mount.export == index)
            || nfs.places.iter().any(|place| place.exports.contains(&index))
            || shm.offers(index)
    };
    let Some((_, export)) = exports.iter().enumerate().find(|(index, _)| !leads(*index)) else {
        return Ok(());
    };
    let problem = format!("cannot serve {}: nothing to serve it on", export.tree);
    let which = if exports.len() == 1 { String::new() } else { format!(",export={}", export.name) };
    Err(Failure::usage(problem)
        .remedy(format_args!("give --virtiofs SOCKET{which}, --nfs PORT{which} or --shm SOCKET{which}")))
}

fn names(exports: &[PlannedExport]) -> String {
    exports.iter().map(|export| export.name.to_string()).collect::<Vec<_>>().join(", ")
}
