//! What every running server tells: what it serves, and what it counted.

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
use tombolo_host_rpc::client::InFlight;
use tombolo_host_rpc::server::Counts;
use tombolo_host_runtime::listener::Listener;
use tombolo_host_runtime::lock;
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
    parts: Mutex<Vec<Part>>,
    started: Instant,
}

/// What of a server begins and ends as one.
struct Part {
    session: String,
    status: Status,
    counted: Counted,
}

/// The session that a server has from its start on.
pub const DEFAULT_SESSION: &str = "default";

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
    /// A server that starts now, with its first session.
    pub fn new(status: Status, counted: Counted) -> Arc<Self> {
        let service = Self { parts: Mutex::default(), started: Instant::now() };
        service.add(DEFAULT_SESSION, status, counted);
        Arc::new(service)
    }

    /// Shows one more session.
    pub fn add(&self, session: &str, status: Status, counted: Counted) {
        lock(&self.parts).push(Part { session: session.into(), status, counted });
    }

    /// Shows a session no longer, and lets go of what it has open.
    pub fn remove(&self, session: &str) {
        let mut parts = lock(&self.parts);
        let (ended, left): (Vec<_>, Vec<_>) =
            std::mem::take(&mut *parts).into_iter().partition(|part| part.session == session);
        *parts = left;
        drop(parts);
        // Its end may take a while.
        drop(ended);
    }

    /// What was counted so far.
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

    /// Has all changes of a session, or of all, brought to their origins, and does not wait. Each export's
    /// state before that.
    fn start_flush(&self, session: Option<&str>) -> Value {
        let parts = lock(&self.parts);
        let kept = of_session(&parts, session).flat_map(|part| &part.counted.write_backs);
        json!(
            kept.map(|(name, kept)| (name, kept.start_flush().into()))
                .collect::<BTreeMap<_, WriteBackState>>()
        )
    }

    /// The same, and has what is cached asked anew.
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

/// Listens for `tombolo top` and other tools where that was asked for; otherwise at a free socket of this
/// name, in the usual directory.
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
            "status" => serde_json::to_value(self.status()).ok(),
            "stats" => serde_json::to_value(self.counters()).ok(),
            "flush" => Some(self.start_flush(None)),
            "invalidate" => Some(self.invalidate(None)),
            _ => None,
        }
    }

    fn answer_of_session(&self, request: &str, session: &str) -> Option<Result<Value, String>> {
        if !lock(&self.parts).iter().any(|part| part.session == session) {
            return Some(Err(format!("no session {session:?} runs")));
        }
        match request {
            "flush" => Some(Ok(self.start_flush(Some(session)))),
            "invalidate" => Some(Ok(self.invalidate(Some(session)))),
            _ => None,
        }
    }

    /// `inflight=N|auto`, for all clients that this server has.
    fn set(&self, options: &str) -> Result<Value, String> {
        let parts = lock(&self.parts);
        if parts.iter().all(|part| part.counted.clients.is_empty()) {
            return Err("what is served here comes from no other server: there is nothing to tune".into());
        }
        let limit = limit_of(options)?;
        for (name, export) in parts.iter().flat_map(|part| &part.counted.clients) {
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
