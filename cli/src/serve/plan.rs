//! What to serve and how, checked as far as it can be before anything is opened.

use std::path::PathBuf;

use super::ServeArgs;
use super::config::Config;
use super::export_arg::{ExportArg, ExportName};
use super::metrics_arg::MetricsAddress;
use super::virtiofs_arg::VirtioFsArg;
use crate::coherence::Coherence;
use crate::failure::Failure;
use crate::submounts::Submounts;

/// Everything that `tombolo serve` was asked for.
#[derive(Debug)]
pub struct Plan {
    /// The directories, each with a name of its own.
    pub exports: Vec<PlannedExport>,
    /// The ways in, each to one of the exports.
    pub ways: Vec<PlannedWay>,
    /// Whether all changes are refused.
    pub read_only: bool,
    /// What clients may keep.
    pub coherence: Coherence,
    /// What becomes of mounts inside the directories.
    pub submounts: Submounts,
    /// The control socket, where it was asked for.
    pub control: Option<PathBuf>,
    /// Where metrics are served, if they are.
    pub metrics: Option<MetricsAddress>,
}

/// A directory under a name.
#[derive(Debug)]
pub struct PlannedExport {
    /// The directory, without links and relative parts.
    pub dir: PathBuf,
    /// Its name.
    pub name: ExportName,
}

/// A socket for one guest.
#[derive(Debug)]
pub struct PlannedWay {
    /// Where the VMM connects.
    pub socket: PathBuf,
    /// What the guest calls it.
    pub tag: String,
    /// How many queues take requests.
    pub request_queues: u16,
    /// Where in `exports` it leads.
    pub export: usize,
}

impl Plan {
    /// Reads the configuration, puts the command line over it, and checks the whole.
    pub fn new(args: ServeArgs) -> Result<Self, Failure> {
        let config = args.config.as_deref().map(Config::read).transpose()?.unwrap_or_default();
        let dirs = if args.dir.is_empty() { config.dir } else { args.dir };
        let sockets = if args.virtiofs.is_empty() { config.virtiofs } else { args.virtiofs };
        if dirs.is_empty() {
            return Err(
                Failure::usage("cannot serve: no directory given").remedy("write `tombolo serve DIR …`")
            );
        }
        let exports = planned_exports(dirs)?;
        let ways = planned_ways(sockets, &exports)?;
        Ok(Self {
            exports,
            ways,
            read_only: args.readonly.or(config.readonly).unwrap_or(false),
            coherence: args.coherence.or(config.coherence).unwrap_or_default(),
            submounts: args.submounts.or(config.submounts).unwrap_or_default(),
            control: args.control.or(config.control),
            metrics: args.metrics.or(config.metrics),
        })
    }
}

fn planned_exports(dirs: Vec<ExportArg>) -> Result<Vec<PlannedExport>, Failure> {
    let mut exports: Vec<PlannedExport> = Vec::with_capacity(dirs.len());
    for ExportArg { dir: written, name } in dirs {
        let serving = format!("serve {}", written.display());
        let dir = written.canonicalize().map_err(|error| Failure::cannot(&serving, &error))?;
        if !dir.is_dir() {
            return Err(Failure::cannot(&serving, "it is not a directory"));
        }
        let name = name.unwrap_or_else(|| ExportName::of(&dir));
        if exports.iter().any(|other| other.name == name) {
            let clash = format!("cannot {serving}: there is an export {name} already");
            return Err(Failure::usage(clash).remedy("name them apart with DIR=/NAME"));
        }
        exports.push(PlannedExport { dir, name });
    }
    Ok(exports)
}

fn planned_ways(sockets: Vec<VirtioFsArg>, exports: &[PlannedExport]) -> Result<Vec<PlannedWay>, Failure> {
    let mut ways: Vec<PlannedWay> = Vec::with_capacity(sockets.len());
    for VirtioFsArg { socket, tag, export, request_queues } in sockets {
        let listening = format!("listen at {}", socket.display());
        let export = match export {
            Some(name) => exports.iter().position(|export| export.name == name).ok_or_else(|| {
                let problem = format!("cannot {listening}: there is no export {name}");
                Failure::usage(problem).remedy(format_args!("there are: {}", names(exports)))
            })?,
            None if exports.len() == 1 => 0,
            None => {
                let problem = format!("cannot {listening}: it does not say which export it serves");
                return Err(Failure::usage(problem)
                    .remedy(format_args!("add ,export= and one of {}", names(exports))));
            }
        };
        if ways.iter().any(|way| way.socket == socket) {
            let twice = format!("cannot {listening}: the socket is given twice");
            return Err(Failure::usage(twice).remedy("one is enough: any number of guests may use it"));
        }
        ways.push(PlannedWay { socket, tag, request_queues, export });
    }
    let unreachable =
        exports.iter().enumerate().find(|(index, _)| ways.iter().all(|way| way.export != *index));
    match unreachable {
        None => Ok(ways),
        Some((_, export)) => {
            let problem = format!("cannot serve {}: there is no way in", export.dir.display());
            let remedy = if exports.len() == 1 { String::new() } else { format!(",export={}", export.name) };
            Err(Failure::usage(problem).remedy(format_args!("add --virtiofs SOCKET{remedy}")))
        }
    }
}

fn names(exports: &[PlannedExport]) -> String {
    exports.iter().map(|export| export.name.to_string()).collect::<Vec<_>>().join(", ")
}
