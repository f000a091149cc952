//! What every running server tells: what it serves, and what it counted.

pub mod counters;
pub mod prometheus;
pub mod status;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};
use tombolo_back_nfs_client::NfsExport;
use tombolo_core::fs::Export;
use tombolo_host_rpc::client::InFlight;
use tombolo_host_rpc::server::Counts;
use tombolo_host_runtime::listener::Listener;
use tombolo_host_service::control::{self, Answers};
use tombolo_layer_basic::stats::{self, Counters as ExportCounters};
use tombolo_layer_cache::CacheExport;
use tombolo_layer_write_back::WriteBackExport;

use crate::failure::Failure;
use crate::location::{NfsOption, NfsOptions};
use crate::service::counters::{Counters, WriteBackState};
use crate::service::status::Status;
use crate::setting;

/// An NFS port by its address, and what it has done so far, for as long as it is open.
pub type NfsCounts = (String, Box<dyn Fn() -> Option<Counts> + Send + Sync>);

/// A running server, as its control socket and its metrics show it.
pub struct Service {
    status: Status,
    counted: Counted,
    started: Instant,
}

/// All of a server that counts something.
#[derive(Default)]
pub struct Counted {
    /// The exports, by their names.
    pub exports: Vec<(String, Arc<ExportCounters>)>,
    /// The ports of NFS.
    pub nfs: Vec<NfsCounts>,
    /// The clients of other servers, by the names of the exports that come from there.
    pub clients: Vec<(String, Arc<NfsExport>)>,
    /// The caches, by the names of their exports.
    pub caches: Vec<(String, Arc<CacheExport>)>,
    /// Those that keep changes back, by the names of their exports.
    pub write_backs: Vec<(String, Arc<WriteBackExport>)>,
}

/// Puts counters over an export.
pub fn counted(export: Arc<dyn Export>) -> (Arc<dyn Export>, Arc<ExportCounters>) {
    let counters = ExportCounters::new();
    (Arc::new(stats::over(export, Arc::clone(&counters))), counters)
}

impl Service {
    /// A server that starts now.
    pub fn new(status: Status, counted: Counted) -> Arc<Self> {
        Arc::new(Self { status, counted, started: Instant::now() })
    }

    /// What was counted so far.
    pub fn counters(&self) -> Counters {
        let uptime_ns = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let Counted { exports, nfs, clients, caches, write_backs } = &self.counted;
        let exports = exports.iter().map(|(name, counters)| (name.clone(), counters.snapshot()));
        let nfs = nfs.iter().filter_map(|(address, counts)| Some((address.clone(), counts()?.into())));
        let clients = clients.iter().map(|(name, export)| (name.clone(), export.counts().into()));
        let caches = caches.iter().map(|(name, cache)| (name.clone(), cache.counts().into()));
        let write_backs = write_backs.iter().map(|(name, kept)| (name.clone(), kept.status().into()));
        Counters {
            uptime_ns,
            exports: exports.collect(),
            nfs: nfs.collect(),
            nfs_clients: clients.collect(),
            caches: caches.collect(),
            write_backs: write_backs.collect(),
        }
    }
}

impl Service {
    /// Has all changes brought to their origins. Each export's state after that.
    fn flushed(&self) -> Value {
        let mut states = self.counters().write_backs;
        for (name, kept) in &self.counted.write_backs {
            let flushed = kept.flush();
            let state = WriteBackState::from(kept.status());
            let failure = state.failure.clone().or_else(|| flushed.err().map(|error| error.to_string()));
            states.insert(name.clone(), WriteBackState { failure, ..state });
        }
        json!(states)
    }
}

/// Listens for `tombolo top` and other tools where that was asked for; otherwise at a free socket of this name, in the usual directory.
pub fn control_socket(asked: Option<&Path>, name: impl FnOnce() -> String) -> Result<Listener, Failure> {
    let listening = "listen for `tombolo top`";
    match asked {
        Some(path) => Listener::bind(path, OWNER_ONLY).map_err(|error| Failure::cannot(listening, &error)),
        None => control::free_socket(&control::default_directory(), &name()).map_err(|error| {
            Failure::cannot(listening, &error).remedy("choose a place with --control SOCKET")
        }),
    }
}

const OWNER_ONLY: u32 = 0o600;

impl Answers for Service {
    fn answer(&self, request: &str) -> Option<Value> {
        match request {
            "status" => serde_json::to_value(&self.status).ok(),
            "stats" => serde_json::to_value(self.counters()).ok(),
            "flush" => Some(self.flushed()),
            "invalidate" => {
                let flushed = self.flushed();
                self.counted.caches.iter().for_each(|(_, cache)| cache.invalidate());
                Some(flushed)
            }
            _ => None,
        }
    }

    /// `inflight=N|auto`, for all clients that this server has.
    fn set(&self, options: &str) -> Result<Value, String> {
        if self.counted.clients.is_empty() {
            return Err("what is served here comes from no other server: there is nothing to tune".into());
        }
        let limit = limit_of(options)?;
        for (name, export) in &self.counted.clients {
            tracing::info!(name, options, "changed while running");
            export.set_in_flight(limit);
        }
        Ok(json!({ "set": options }))
    }
}

/// The one option that can be changed.
pub fn limit_of(options: &str) -> Result<InFlight, String> {
    let mut asked = NfsOptions::default();
    for setting in setting::list(options) {
        if !asked.add(setting)? {
            return Err(format!("unknown option {:?}", setting.name));
        }
    }
    let mut limit = None;
    for (option, word) in asked.iter().zip(asked.words()) {
        match option {
            NfsOption::InFlight(asked) => limit = Some(asked),
            _ => {
                return Err(format!("{word}: it cannot be changed while it is mounted; inflight=N|auto can"));
            }
        }
    }
    limit.ok_or_else(|| "nothing to change: write inflight=N|auto".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_in_flight_limit_can_be_tuned() {
        assert_eq!(limit_of("inflight=7,inflight=32"), Ok(InFlight::Fixed(32)));
        assert!(matches!(limit_of("inflight=auto"), Ok(InFlight::Adaptive { .. })));
        for bad in ["", "inflight=0", "soft", "inflight=3,rsize=4k", "colour=blue"] {
            assert!(limit_of(bad).is_err(), "{bad}");
        }
    }
}
