//! What every running server tells: who it is, and what it counted.

use std::sync::Arc;
use std::time::Instant;

use serde_json::Value;
use tombolo_core::fs::Export;
use tombolo_host::control::Answers;
use tombolo_host::rpc_server::Counts;
use tombolo_layer::stats::{self, Counters as ExportCounters};

use crate::counters::Counters;
use crate::status::Status;

/// An NFS port by its address, and what it has done so far, for as long as it is open.
pub type NfsCounts = (String, Box<dyn Fn() -> Option<Counts> + Send + Sync>);

/// A running server, as its control socket and its metrics show it.
pub struct Service {
    status: Status,
    counters: Vec<(String, Arc<ExportCounters>)>,
    nfs: Vec<NfsCounts>,
    started: Instant,
}

/// Puts counters over an export.
pub fn counted(export: Arc<dyn Export>) -> (Arc<dyn Export>, Arc<ExportCounters>) {
    let counters = ExportCounters::new();
    (Arc::new(stats::over(export, Arc::clone(&counters))), counters)
}

impl Service {
    /// A server that starts now, with the counters of its exports by their names, and those of its NFS ports.
    pub fn new(
        status: Status,
        counters: Vec<(String, Arc<ExportCounters>)>,
        nfs: Vec<NfsCounts>,
    ) -> Arc<Self> {
        Arc::new(Self { status, counters, nfs, started: Instant::now() })
    }

    /// What was counted so far.
    pub fn counters(&self) -> Counters {
        let uptime_ns = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let exports = self.counters.iter().map(|(name, counters)| (name.clone(), counters.snapshot()));
        let nfs = self.nfs.iter().filter_map(|(address, counts)| Some((address.clone(), counts()?.into())));
        Counters { uptime_ns, exports: exports.collect(), nfs: nfs.collect() }
    }
}

impl Answers for Service {
    fn answer(&self, request: &str) -> Option<Value> {
        match request {
            "status" => serde_json::to_value(&self.status).ok(),
            "stats" => serde_json::to_value(self.counters()).ok(),
            _ => None,
        }
    }
}
