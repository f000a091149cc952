//! What `tombolo serve` is told about links over memory in common.

use std::path::PathBuf;

use clap::Args;
use tombolo_core::fs::Squash;
use tombolo_host::links::memory::MemoryPlace;
use tombolo_shm::bell::Mode;

use crate::assembly::options::doorbell::Doorbell;
use crate::assembly::options::export::ExportName;
use crate::assembly::options::shm::{ShmArg, ShmFileArg};
use crate::assembly::plan::{PlannedExport, position};
use crate::failure::Failure;

/// Options of links.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Memory in common")]
pub struct ShmOptions {
    /// A socket for processes of this host, which then ask over memory in common; repeatable.
    ///
    /// They mount with `tombolo mount shm:SOCKET/NAME DIR`. /NAME says which directories are offered (by default all).
    #[arg(long, value_name = "SOCKET[,export=/NAME]…")]
    pub shm: Vec<ShmArg>,
    /// Memory that a guest and we have in common: a file, that is QEMU's ivshmem or UML's iomem; in a guest `pci:[BDF]` or `mmapper:`. Repeatable.
    ///
    /// A file that is not there is made, of SIZE bytes (such as 64M). One client at a time has all of it, and both sides can write it.
    /// Its root is root here, unless squash=root (or all) makes it user and group 65534, or those of anonuid= and anongid=.
    #[arg(long, value_name = "FILE[,size=SIZE][,squash=WHOM][,export=/NAME]…")]
    pub shm_file: Vec<ShmFileArg>,
    /// How to wait for what clients ask over memory in common (by default adaptive).
    #[arg(long, value_name = "MODE")]
    pub doorbell: Option<Doorbell>,
    /// Who may ask over memory in common, as a TOML file says (by default root and the user who serves).
    #[arg(long, value_name = "FILE")]
    pub shm_policy: Option<PathBuf>,
}

/// What these options come to.
#[derive(Debug, Default)]
pub struct ShmPlan {
    /// The sockets.
    pub places: Vec<PlannedShm>,
    /// Memory that both sides can write.
    pub memory: Vec<PlannedMemory>,
    /// How to wait.
    pub doorbell: Mode,
    /// The file that says who may have links, if there is one.
    pub policy: Option<PathBuf>,
}

/// A socket at which links are made.
#[derive(Debug)]
pub struct PlannedShm {
    /// Where clients connect.
    pub socket: PathBuf,
    /// Where in the plan's exports those are that are offered.
    pub exports: Vec<usize>,
}

/// Memory that both sides can write.
#[derive(Debug)]
pub struct PlannedMemory {
    /// Where it is.
    pub place: MemoryPlace,
    /// How long it is, where it does not know it itself.
    pub size_bytes: Option<u64>,
    /// Whose users are not who the client says.
    pub squash: Squash,
    /// Where in the plan's exports those are that are offered.
    pub exports: Vec<usize>,
}

impl ShmPlan {
    /// Whether anything is served.
    pub fn is_any(&self) -> bool {
        !self.places.is_empty() || !self.memory.is_empty()
    }

    /// Whether an export is offered anywhere.
    pub fn offers(&self, export: usize) -> bool {
        self.places.iter().any(|place| place.exports.contains(&export))
            || self.memory.iter().any(|memory| memory.exports.contains(&export))
    }
}

impl ShmOptions {
    /// These options, and the others' where these say nothing.
    pub fn over(self, other: Self) -> Self {
        Self {
            shm: if self.shm.is_empty() { other.shm } else { self.shm },
            shm_file: if self.shm_file.is_empty() { other.shm_file } else { self.shm_file },
            doorbell: self.doorbell.or(other.doorbell),
            shm_policy: self.shm_policy.or(other.shm_policy),
        }
    }

    /// Checks the whole.
    pub fn plan(self, exports: &[PlannedExport]) -> Result<ShmPlan, Failure> {
        let none = self.shm.is_empty() && self.shm_file.is_empty();
        for (said, option, nothing) in [
            (self.doorbell.is_some(), "--doorbell", none),
            (self.shm_policy.is_some(), "--shm-policy", self.shm.is_empty()),
        ] {
            if said && nothing {
                let problem = format!("{option} is about memory in common, and none is served");
                return Err(Failure::usage(problem).remedy("add --shm SOCKET"));
            }
        }
        let doorbell = self.doorbell.unwrap_or_default().mode().map_err(Failure::usage)?;
        let mut places: Vec<PlannedShm> = Vec::with_capacity(self.shm.len());
        for ShmArg { socket, exports: names } in self.shm {
            let listening = format!("listen at {}", socket.display());
            if places.iter().any(|other| other.socket == socket) {
                let twice = format!("cannot {listening}: the socket is given twice");
                return Err(Failure::usage(twice).remedy("one is enough: any number of clients may use it"));
            }
            places.push(PlannedShm { socket, exports: offered(names, exports, &listening)? });
        }
        let mut memory: Vec<PlannedMemory> = Vec::with_capacity(self.shm_file.len());
        for ShmFileArg { place, size_bytes, squash, exports: names } in self.shm_file {
            let serving = format!("serve over {place}");
            if memory.iter().any(|other| other.place == place) {
                return Err(Failure::usage(format!("cannot {serving}: the memory is given twice")));
            }
            let exports = offered(names, exports, &serving)?;
            memory.push(PlannedMemory { place, size_bytes, squash, exports });
        }
        Ok(ShmPlan { places, memory, doorbell, policy: self.shm_policy })
    }
}

fn offered(names: Vec<ExportName>, exports: &[PlannedExport], doing: &str) -> Result<Vec<usize>, Failure> {
    if names.is_empty() {
        return Ok((0..exports.len()).collect());
    }
    names.into_iter().map(|name| position(Some(name), exports, doing)).collect()
}
