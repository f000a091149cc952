//! The NFS servers of a server.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tombolo_core::fs::{Client, Ctx, Export, NodeId, PermissionCheck, SessionId};
use tombolo_front_nfs_server::{ExportOptions, Groups, Identities, NfsServer, NfsService, Options, Signer};
use tombolo_host::handle_keys::Keys;
use tombolo_host::rpc_server::{Listeners, Options as TransportOptions};
use tombolo_host::state_dir::{ServerState, StateDir, StateError};
use tombolo_layer::handle_table;
use tombolo_layer::replies::{self, Replies};

use super::nfs_options::{NfsPlan, PlannedPlace};
use super::plan::{Plan, PlannedExport};
use crate::failure::Failure;
use crate::service::NfsCounts;

/// The places where NFS clients call, taken early, so that a busy one is known before anything else happens.
pub struct Taken(Vec<(SocketAddr, TcpListener)>);

/// Everything that serves NFS. The state is given back last.
pub struct NfsServers {
    places: Vec<Place>,
    _state: Option<ServerState>,
}

/// One port.
pub struct Place {
    /// Where it is.
    pub address: SocketAddr,
    /// Where in the plan's exports those are that are offered.
    pub exports: Vec<usize>,
    server: Arc<NfsServer>,
}

impl Taken {
    /// Takes all ports of a plan.
    pub fn take(plan: &NfsPlan) -> Result<Self, Failure> {
        let take = |place: &PlannedPlace| {
            let listener =
                TcpListener::bind(place.address).and_then(|listener| Ok((listener.local_addr()?, listener)));
            listener.map_err(|error| Failure::cannot(format_args!("serve NFS at {}", place.address), &error))
        };
        plan.places.iter().map(take).collect::<Result<_, _>>().map(Self)
    }
}

impl NfsServers {
    /// Starts what was planned, on ports that were taken.
    pub fn start(
        plan: &Plan,
        taken: Taken,
        exports: &[Arc<dyn Export>],
        session_ids: &AtomicU64,
    ) -> Result<Self, Failure> {
        if plan.nfs.places.is_empty() {
            return Ok(Self { places: Vec::new(), _state: None });
        }
        let state = open_state(plan)?;
        let keys = Keys::open(state.files())
            .map_err(|error| Failure::cannot(format_args!("use {}", state.path().display()), &error))?;
        let signer = Arc::new(Signer::new(keys));
        let offered = |index| plan.nfs.places.iter().any(|place| place.exports.contains(&index));
        let exports = exports.iter().zip(&plan.exports).enumerate().map(|(index, (export, planned))| {
            if offered(index) { once(export, planned, state.path()).map(Some) } else { Ok(None) }
        });
        let exports = exports.collect::<Result<Vec<_>, Failure>>()?;
        let mut places = Vec::with_capacity(plan.nfs.places.len());
        for (place, (address, listener)) in plan.nfs.places.iter().zip(taken.0) {
            let serving = format!("serve NFS at {address}");
            let service = service(place, plan, &exports, &signer, session_ids)
                .map_err(|error| Failure::cannot(&serving, &error))?;
            drop(listener);
            let server = NfsServer::start(&listeners(address, plan), transport(plan), &service)
                .map_err(|error| Failure::cannot(&serving, &error))?;
            if plan.nfs.allow.is_open() && !address.ip().is_loopback() {
                tracing::warn!(%address, "whoever can reach this address may call; --allow CIDR narrows that");
            }
            places.push(Place { address, exports: place.exports.clone(), server: Arc::new(server) });
        }
        Ok(Self { places, _state: Some(state) })
    }

    /// The ports.
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// Where to ask what they have done. It does not keep them open.
    pub fn counts(&self) -> Vec<NfsCounts> {
        let of = |place: &Place| {
            let server = Arc::downgrade(&place.server);
            let counts = move || server.upgrade().map(|server| server.counts());
            (place.address.to_string(), Box::new(counts) as _)
        };
        self.places.iter().map(of).collect()
    }
}

/// The state of this server: it goes by the name of the first export.
fn open_state(plan: &Plan) -> Result<ServerState, Failure> {
    let path = state_path(plan.nfs.state.as_deref())?;
    let name = plan.exports.first().map_or_else(|| "serve".to_owned(), |export| export.name.word());
    let keeping = format!("keep state in {}", path.display());
    let state = StateDir::open(&path).and_then(|state| state.server(&name));
    state.map_err(|error| {
        let failure = Failure::cannot(&keeping, &error);
        match error {
            StateError::InUse { .. } => {
                failure.remedy("end that server, or give this one a directory of its own with --state DIR")
            }
            _ => failure.remedy("choose another place with --state DIR"),
        }
    })
}

/// The state directory that was asked for, or the usual one.
pub fn state_path(asked: Option<&Path>) -> Result<PathBuf, Failure> {
    match asked {
        Some(path) => Ok(path.to_owned()),
        None => StateDir::default_path().map_err(|error| {
            Failure::cannot("find the state directory", &error).remedy("choose one with --state DIR")
        }),
    }
}

/// An export whose requests are performed once, also over a crash of this process, and whose files have handles.
fn once(export: &Arc<dyn Export>, planned: &PlannedExport, state: &Path) -> Result<Arc<Replies>, Failure> {
    let name = one_component(&planned.name.to_string());
    let export = with_handles(export, planned, &state.join(format!("handles-{name}")))?;
    let path = state.join(format!("replies-{name}"));
    let replies = replies::open(export, &replies::Options::default(), &path);
    replies.map(Arc::new).map_err(|error| Failure::cannot(format_args!("use {}", path.display()), &error))
}

/// The export, with handles from a table if its own are too long or missing.
fn with_handles(
    export: &Arc<dyn Export>,
    planned: &PlannedExport,
    table: &Path,
) -> Result<Arc<dyn Export>, Failure> {
    let serving = format!("serve {} to NFS clients", planned.name);
    let client = Client { session: SessionId(0), label: "handles".into(), checks: PermissionCheck::Caller };
    let fs = export.attach(&client).map_err(|error| Failure::cannot(&serving, &error))?;
    let root =
        fs.persistent_handles().map(|handles| handles.handle_of(&Ctx::root(SessionId(0)), NodeId::ROOT));
    if root.is_some_and(|root| root.wait().is_ok_and(|root| Signer::can_sign(&root))) {
        return Ok(export.clone());
    }
    tracing::warn!(
        "no file handles for {}: they take root, and a file system that has them; what others rename there, NFS \
         clients have to look up again",
        planned.dir.display()
    );
    let over = handle_table::over(export.clone(), table);
    over.map(|export| Arc::new(export) as _).map_err(|error| Failure::cannot(&serving, &error))
}

/// The name of an export as one component of a path; different names stay different.
fn one_component(name: &str) -> String {
    name.trim_start_matches('/').replace('%', "%25").replace('/', "%2f")
}

fn service(
    place: &PlannedPlace,
    plan: &Plan,
    exports: &[Option<Arc<Replies>>],
    signer: &Arc<Signer>,
    session_ids: &AtomicU64,
) -> Result<Arc<NfsService>, tombolo_front_nfs_server::ServeError> {
    let offered = place.exports.iter().filter_map(|&index| {
        let export: Arc<dyn Export> = exports.get(index)?.clone()?;
        Some(ExportOptions {
            name: plan.exports.get(index)?.name.to_string(),
            export,
            session: SessionId(session_ids.fetch_add(1, Ordering::Relaxed)),
            squash: plan.nfs.squash,
            allow: plan.nfs.allow.clone(),
            durability: plan.nfs.durability,
        })
    });
    NfsService::new(Options {
        exports: offered.collect(),
        signer: signer.clone(),
        identities: Identities::new(plan.nfs.manage_gids.then(Groups::new)),
    })
}

fn listeners(address: SocketAddr, plan: &Plan) -> Listeners {
    Listeners { tcp: vec![address], udp: if plan.nfs.udp { vec![address] } else { Vec::new() } }
}

fn transport(plan: &Plan) -> TransportOptions {
    let mut options = TransportOptions::default();
    if let Some(threads) = plan.nfs.threads {
        options.threads = threads;
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_stay_apart() {
        let names = ["/", "/a", "/a/b", "/a%2fb", "/a-b"].map(one_component);
        assert_eq!(names, ["", "a", "a%2fb", "a%252fb", "a-b"]);
    }
}
