//! Placement of the threads of server and caller.

use std::fs;

use serde::{Deserialize, Serialize};

use crate::error::{Doing, Result};

/// Assignment to cores. Wake-up costs depend on it, so every figure states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all(deserialize = "kebab-case"))]
pub enum Placement {
    /// Server and caller share a core.
    SameCore,
    /// Server and caller have a core each.
    TwoCores,
    /// The caller has one core, the server may use all.
    Free,
}

impl Placement {
    /// All placements in printing order.
    pub const ALL: [Placement; 3] = [Placement::SameCore, Placement::TwoCores, Placement::Free];

    pub fn label(self) -> &'static str {
        match self {
            Placement::SameCore => "same core",
            Placement::TwoCores => "two cores",
            Placement::Free => "server unpinned",
        }
    }

    /// Assigns cores to the calling thread and all threads of `servers`.
    pub fn take(self, servers: &[u32]) -> Result<()> {
        let cores = spare_cores();
        let first = cores.first().copied().unwrap_or_default();
        let other = cores.get(1).copied().unwrap_or(first);
        pin(None, &[first])?;
        let for_server = match self {
            Placement::SameCore => vec![first],
            Placement::TwoCores => vec![other],
            Placement::Free => cores,
        };
        for server in servers {
            for thread in threads(*server) {
                // A thread may end between listing and pinning.
                let _gone = tombolo_sys::affinity::pin(Some(thread), &for_server);
            }
        }
        Ok(())
    }

    /// Resets the calling thread to all cores.
    pub fn leave() -> Result<()> {
        pin(None, &spare_cores())
    }
}

/// Returns the cores that this process was allowed at its start.
pub fn spare_cores() -> Vec<usize> {
    static CORES: std::sync::OnceLock<Vec<usize>> = std::sync::OnceLock::new();
    CORES.get_or_init(|| tombolo_sys::affinity::cores(None).unwrap_or_default()).clone()
}

fn pin(thread: Option<u32>, cores: &[usize]) -> Result<()> {
    tombolo_sys::affinity::pin(thread, cores).doing(|| format!("pin to cores {cores:?}"))
}

/// Returns the threads of a process.
pub(super) fn threads(process: u32) -> Vec<u32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else { return Vec::new() };
    threads.flatten().filter_map(|thread| thread.file_name().to_str()?.parse().ok()).collect()
}
