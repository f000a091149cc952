//! Shared-memory front end.

use std::path::PathBuf;
use std::sync::Arc;

use tombolo_core::Squash;
use tombolo_host_links::bell::BellSource;
use tombolo_host_links::shared_memory::MemoryLocation;
use tombolo_shm::doorbell::Mode;

use super::{PlannedExport, offered};
use crate::assembly::options::ServerOptions;
use crate::assembly::options::bell::BellArg;
use crate::assembly::options::shm::{ShmArg, ShmFileArg};
use crate::failure::Failure;

/// Shared-memory endpoints of a server.
#[derive(Debug, Default)]
pub struct ShmPlan {
    pub sockets: Vec<PlannedShm>,
    /// Regions that both sides can write.
    pub memory: Vec<PlannedMemory>,
    pub doorbell: Mode,
    /// File of the users that may connect, if given.
    pub policy: Option<PathBuf>,
}

#[derive(Debug)]
pub struct PlannedShm {
    pub socket: PathBuf,
    /// Indices of the offered exports in the plan.
    pub exports: Vec<usize>,
}

/// A memory region that both sides can write.
#[derive(Debug)]
pub struct PlannedMemory {
    pub place: MemoryLocation,
    /// Size in bytes, for memory without a size of its own.
    pub size_bytes: Option<u64>,
    /// Bell to wake the client; `None` if there is none.
    pub bell: Option<Arc<BellSource>>,
    /// `true` if the command line names the bell.
    pub is_bell_given: bool,
    /// Users of the client that become the anonymous user.
    pub squash: Squash,
    /// Indices of the offered exports in the plan.
    pub exports: Vec<usize>,
}

impl ShmPlan {
    pub fn is_any(&self) -> bool {
        !self.sockets.is_empty() || !self.memory.is_empty()
    }

    pub fn offers(&self, export: usize) -> bool {
        self.sockets.iter().any(|place| place.exports.contains(&export))
            || self.memory.iter().any(|memory| memory.exports.contains(&export))
    }

    /// Opens the bells, which the sandbox would prevent.
    pub fn open_bells(&self) -> Result<(), Failure> {
        for memory in &self.memory {
            match memory.bell.as_ref().map(|bell| bell.open()) {
                Some(Err(error)) if memory.is_bell_given => {
                    let serving = format!("open the bell of {}", memory.place);
                    return Err(Failure::cannot(&serving, &error));
                }
                Some(Err(error)) => tracing::info!(%error, memory = %memory.place, "no bell"),
                Some(Ok(_)) | None => {}
            }
        }
        Ok(())
    }

    pub fn new(options: &mut ServerOptions, exports: &[PlannedExport]) -> Result<Self, Failure> {
        let none = options.shm.is_empty() && options.shm_file.is_empty();
        for (given, problem, nothing) in [
            (options.doorbell.is_some(), "--doorbell requires --shm or --shm-file", none),
            (options.shm_policy.is_some(), "--shm-policy requires --shm", options.shm.is_empty()),
        ] {
            if given && nothing {
                return Err(Failure::usage(problem).remedy("add --shm SOCKET"));
            }
        }
        let doorbell = options.doorbell.unwrap_or_default().mode().map_err(Failure::usage)?;
        let mut sockets: Vec<PlannedShm> = Vec::with_capacity(options.shm.len());
        for ShmArg { socket, exports: names } in std::mem::take(&mut options.shm) {
            let listening = format!("listen at {}", socket.display());
            if sockets.iter().any(|other| other.socket == socket) {
                let twice = format!("cannot {listening}: the socket is given twice");
                return Err(Failure::usage(twice).remedy("one is sufficient for any number of clients"));
            }
            sockets.push(PlannedShm { socket, exports: offered(names, exports, &listening)? });
        }
        let mut memory: Vec<PlannedMemory> = Vec::with_capacity(options.shm_file.len());
        for ShmFileArg { place, size_bytes, bell, squash, exports: names } in
            std::mem::take(&mut options.shm_file)
        {
            let serving = format!("serve over {place}");
            if memory.iter().any(|other| other.place == place) {
                return Err(Failure::usage(format!("cannot {serving}: the memory is given twice")));
            }
            let exports = offered(names, exports, &serving)?;
            let is_bell_given = matches!(bell, BellArg::At(_));
            let bell = bell.source(&place);
            memory.push(PlannedMemory { place, size_bytes, bell, is_bell_given, squash, exports });
        }
        Ok(Self { sockets, memory, doorbell, policy: options.shm_policy.take() })
    }
}
