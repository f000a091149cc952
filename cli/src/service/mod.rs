//! Introspection of a running server: status and counters.

pub mod counters;
pub mod prometheus;
pub mod sessions;
pub mod status;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use serde_json::{Value, json};
use tombolo_back_nfs_client::NfsExport;
use tombolo_core::fs::Export;
use tombolo_core::lock;
use tombolo_host_rpc::client::InFlight;
use tombolo_host_rpc::server::Counts;
use tombolo_host_runtime::listener::Listener;
use tombolo_host_service::control::{self, Answers};
use tombolo_layer_basic::stats::{self, Counters as ExportCounters};
use tombolo_layer_cache::CacheExport;
use tombolo_layer_write_back::WriteBackExport;

use crate::failure::{Failure, OrCannot};
use crate::location::{NfsOption, NfsOptions};
use crate::service::counters::{Counters, WriteBackState};
use crate::service::status::Status;
use crate::setting;

/// Address of an NFS port, and its counters while it is open.
pub type NfsCounts = (String, Box<dyn Fn() -> Option<Counts> + Send + Sync>);

/// A running server, as seen by its control socket and metrics.
pub struct Service {
    parts: Mutex<Vec<Part>>,
    started: Instant,
}

/// Status and counters of one session, present while the session runs.
struct Part {
    session: String,
    status: Status,
    counted: Counted,
}

/// Session that a server has from its start.
pub const DEFAULT_SESSION: &str = "default";

/// Sources of the counters of a session.
#[derive(Default)]
pub struct Counted {
    /// Operation counters of the exports, by name.
    pub exports: Vec<(String, Arc<ExportCounters>)>,
    pub nfs: Vec<NfsCounts>,
    /// Clients of other servers, by export.
    pub clients: Vec<(String, Arc<NfsExport>)>,
    /// Caches by export.
    pub caches: Vec<(String, Arc<CacheExport>)>,
    /// Write-back layers by export.
    pub write_backs: Vec<(String, Arc<WriteBackExport>)>,
}

/// Wraps an export with counters of its operations; returns both.
pub fn counted(export: Arc<dyn Export>) -> (Arc<dyn Export>, Arc<ExportCounters>) {
    let counters = ExportCounters::new();
    (Arc::new(stats::over(export, Arc::clone(&counters))), counters)
}

impl Service {
    /// Creates the service of a server that starts now, with its first session.
    pub fn new(status: Status, counted: Counted) -> Arc<Self> {
        let service = Self { parts: Mutex::default(), started: Instant::now() };
        service.add(DEFAULT_SESSION, status, counted);
        Arc::new(service)
    }

    /// Adds a session, which status and counters include from now on.
    pub fn add(&self, session: &str, status: Status, counted: Counted) {
        lock(&self.parts).push(Part { session: session.into(), status, counted });
    }

    /// Removes a session from status and counters, and drops the references to its exports.
    pub fn remove(&self, session: &str) {
        let ended: Vec<_> = lock(&self.parts).extract_if(.., |part| part.session == session).collect();
        // Dropping may take long, so the lock is released first.
        drop(ended);
    }

    pub fn counters(&self) -> Counters {
        let uptime_ns = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let mut counters = Counters { uptime_ns, ..Counters::default() };
        lock(&self.parts).iter().for_each(|part| part.counted.add_to(&mut counters));
        counters
    }

    fn status(&self) -> Status {
        let parts = lock(&self.parts);
        let exports = parts.iter().flat_map(|part| part.status.exports.iter().cloned());
        let endpoints = parts.iter().flat_map(|part| part.status.endpoints.iter().cloned());
        Status::of_this_process(exports.collect(), endpoints.collect())
    }

    /// Starts sending all changes of a session, or of all, to their origins. Returns each export's prior
    /// state.
    fn start_flush(&self, session: Option<&str>) -> Value {
        let parts = lock(&self.parts);
        let kept = of_session(&parts, session).flat_map(|part| &part.counted.write_backs);
        json!(
            kept.map(|(name, kept)| (name, kept.start_flush().into()))
                .collect::<BTreeMap<_, WriteBackState>>()
        )
    }

    /// Starts a flush as `start_flush` does, and invalidates everything cached.
    fn invalidate(&self, session: Option<&str>) -> Value {
        let states = self.start_flush(session);
        let parts = lock(&self.parts);
        let caches = of_session(&parts, session).flat_map(|part| &part.counted.caches);
        caches.for_each(|(_, cache)| cache.invalidate());
        states
    }
}

fn of_session<'a>(parts: &'a [Part], session: Option<&'a str>) -> impl Iterator<Item = &'a Part> {
    parts.iter().filter(move |part| session.is_none_or(|session| part.session == session))
}

impl Counted {
    fn add_to(&self, sum: &mut Counters) {
        let Self { exports, nfs, clients, caches, write_backs } = self;
        sum.exports.extend(exports.iter().map(|(name, counters)| (name.clone(), counters.snapshot())));
        sum.nfs.extend(nfs.iter().filter_map(|(address, counts)| Some((address.clone(), counts()?.into()))));
        sum.nfs_clients.extend(clients.iter().map(|(name, export)| (name.clone(), export.counts().into())));
        sum.caches.extend(caches.iter().map(|(name, cache)| (name.clone(), cache.counts().into())));
        sum.write_backs.extend(write_backs.iter().map(|(name, kept)| (name.clone(), kept.status().into())));
    }
}

/// Listens for `tombolo top` and other tools at the given path, or at a free socket of this name in the
/// default directory.
pub fn control_socket(asked: Option<&Path>, name: impl FnOnce() -> String) -> Result<Listener, Failure> {
    let listening = "listen for `tombolo top`";
    match asked {
        Some(path) => Listener::bind(path, OWNER_ONLY).or_cannot(listening),
        None => control::free_socket(&control::default_directory(), &name())
            .or_cannot(listening)
            .map_err(|failure| failure.remedy("choose a path with --control SOCKET")),
    }
}

const OWNER_ONLY: u32 = 0o600;

impl Answers for Service {
    fn answer(&self, request: &str) -> Option<Value> {
        match request {
            "status" => serde_json::to_value(self.status()).ok(),
            "stats" => serde_json::to_value(self.counters()).ok(),
            "flush" => Some(self.start_flush(None)),
            "invalidate" => Some(self.invalidate(None)),
            _ => None,
        }
    }

    fn answer_of_session(&self, request: &str, session: &str) -> Option<Result<Value, String>> {
        if !lock(&self.parts).iter().any(|part| part.session == session) {
            return Some(Err(format!("no running session {session:?}")));
        }
        match request {
            "flush" => Some(Ok(self.start_flush(Some(session)))),
            "invalidate" => Some(Ok(self.invalidate(Some(session)))),
            _ => None,
        }
    }

    /// Sets `inflight=N|auto` for the NFS clients of all exports of this server.
    fn set(&self, options: &str) -> Result<Value, String> {
        let parts = lock(&self.parts);
        if parts.iter().all(|part| part.counted.clients.is_empty()) {
            return Err("no export of this server comes from another server: nothing to tune".into());
        }
        let limit = limit_of(options)?;
        for (name, export) in parts.iter().flat_map(|part| &part.counted.clients) {
            tracing::info!(name, options, "in-flight limit changed");
            export.set_in_flight(limit);
        }
        Ok(json!({ "set": options }))
    }
}

/// Parses `inflight=N|auto`, the only option of an NFS client that can be changed while it runs.
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
                return Err(format!("{word}: cannot be changed while mounted; only inflight=N|auto can"));
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
