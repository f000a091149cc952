//! What every running server tells: who it is, and what it counted.

use std::sync::Arc;
use std::time::Instant;

use serde_json::Value;
use tombolo_core::fs::Export;
use tombolo_host::control::Answers;
use tombolo_layer::stats::{self, Counters as ExportCounters};

use crate::counters::Counters;
use crate::status::Status;

/// A running server, as its control socket and its metrics show it.
#[derive(Debug)]
pub struct Service {
    status: Status,
    counters: Vec<(String, Arc<ExportCounters>)>,
    started: Instant,
}

/// Puts counters over an export.
pub fn counted(export: Arc<dyn Export>) -> (Arc<dyn Export>, Arc<ExportCounters>) {
    let counters = ExportCounters::new();
    (Arc::new(stats::over(export, Arc::clone(&counters))), counters)
}

impl Service {
    /// A server that starts now, with the counters of its exports by their names.
    pub fn new(status: Status, counters: Vec<(String, Arc<ExportCounters>)>) -> Arc<Self> {
        Arc::new(Self { status, counters, started: Instant::now() })
    }

    /// What was counted so far.
    pub fn counters(&self) -> Counters {
        let uptime_ns = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let exports = self.counters.iter().map(|(name, counters)| (name.clone(), counters.snapshot()));
        Counters { uptime_ns, exports: exports.collect() }
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
