//! Shared-memory endpoints: sockets for processes of this host, and memory shared with a guest.

use std::fs;
use std::io::{self, Write};
use std::path::{PathBuf, absolute};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tombolo_core::{Squash, SquashMode};
use tombolo_front_vrpc_server::{Options, VrpcServer};
use tombolo_host_links::bell::BellLocation;
use tombolo_host_links::listen::{Guest, LinkListener, ListenOptions};
use tombolo_host_links::policy::Policy;
use tombolo_host_links::registry::Announcement;
use tombolo_host_links::rendezvous::MemoryListener;
use tombolo_host_links::server::Server;
use tombolo_host_links::shared_memory::{MemoryLocation, SharedMemory};
use tombolo_host_runtime::signals;
use tombolo_shm::link::{Limits, Protocol};

use super::nfs_over_links::NfsOverLinks;
use super::shm_registry::Listed;
use crate::assembly::hints::shm;
use crate::assembly::plan::Plan;
use crate::assembly::plan::shm::{PlannedMemory, PlannedShm};
use crate::assembly::servers::state::DurableState;
use crate::failure::{Failure, OrCannot};
use crate::service::status::EndpointStatus;

pub struct ShmServers {
    /// Registration of the endpoints; `None` without endpoints or if the registry is unusable. Dropped before
    /// the endpoints.
    _listed: Option<Listed>,
    endpoints: Arc<[Endpoint]>,
}

/// Maximum interval between checks for clients.
const LOOK_EVERY: Duration = Duration::from_secs(15);

pub struct Endpoint {
    at: At,
    exports: Vec<String>,
}

enum At {
    Socket { path: PathBuf, listener: LinkListener },
    Memory { place: MemoryLocation, size_bytes: u64, bell: Option<PathBuf>, listener: MemoryListener },
}

impl ShmServers {
    /// Listens at all sockets and on all memory of a plan.
    pub fn start(plan: &Plan, state: &Arc<DurableState>) -> Result<Self, Failure> {
        let policy = plan.front_ends.shm.policy.as_deref().map(Policy::load).transpose();
        let policy = policy.or_cannot("read the policy of links")?;
        let sockets =
            plan.front_ends.shm.sockets.iter().map(|place| listen(place, plan, policy.as_ref(), state));
        let mut endpoints = sockets.collect::<Result<Vec<_>, _>>()?;
        for memory in &plan.front_ends.shm.memory {
            endpoints.push(serve_memory(memory, plan, state)?);
        }
        let endpoints: Arc<[Endpoint]> = endpoints.into();
        let listed = match &*endpoints {
            [] => None,
            _ => Listed::start(announcement(plan, &endpoints), Arc::clone(&endpoints)),
        };
        Ok(Self { _listed: listed, endpoints })
    }

    /// Prints a line for each export of each endpoint, with commands for the peer.
    pub fn announce(&self, out: &mut impl Write, plan: &Plan) -> io::Result<()> {
        // With `host-watch` clients are notified of changes by other processes too, so their mounts may cache
        // until notified.
        let watch = if plan.layers.host_watch { " host-watch" } else { "" };
        let xattrs = plan.front_ends.xattrs.suffix();
        for (index, place) in self.endpoints.iter().enumerate() {
            for export in &place.exports {
                writeln!(out, "ready {} {} export={export}{watch}{xattrs}", place.kind(), place.name())?;
                match &place.at {
                    At::Socket { path, .. } => shm::socket(out, path, export)?,
                    At::Memory { place, size_bytes, bell, .. } => {
                        shm::memory(out, index, place, *size_bytes, bell.as_deref(), export)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Ends this process after this time without clients.
    pub fn end_when_unused(&self, after: Duration) -> io::Result<()> {
        let endpoints = Arc::downgrade(&self.endpoints);
        let look_every = (after / 8).min(LOOK_EVERY);
        let look = move || {
            let mut last_used = Instant::now();
            while last_used.elapsed() < after {
                thread::sleep(look_every);
                let Some(endpoints) = endpoints.upgrade() else { return };
                if endpoints.iter().any(|endpoint| !endpoint.guests().is_empty()) {
                    last_used = Instant::now();
                }
            }
            tracing::info!("no client for {} seconds", after.as_secs());
            if let Err(error) = signals::stop_this_process() {
                tracing::error!(%error, "cannot stop the unused server");
            }
        };
        thread::Builder::new().name("unused".into()).spawn(look).map(drop)
    }

    pub fn endpoints(&self) -> impl Iterator<Item = EndpointStatus> + '_ {
        self.endpoints.iter().flat_map(|place| {
            place.exports.iter().map(|export| EndpointStatus::new(place.kind(), &place.name(), export))
        })
    }
}

impl Endpoint {
    pub fn guests(&self) -> Vec<Guest> {
        match &self.at {
            At::Socket { listener, .. } => listener.guests(),
            At::Memory { listener, .. } => listener.guests(),
        }
    }

    /// Calls `hook`, which must not block, whenever a guest connects or disconnects.
    pub fn on_change(&self, hook: impl Fn() + Send + Sync + 'static) {
        match &self.at {
            At::Socket { listener, .. } => listener.on_change(hook),
            At::Memory { listener, .. } => listener.on_change(hook),
        }
    }

    /// Returns the location for `tombolo mount`, up to the export's name. If the memory is not a file, the
    /// location is valid inside the guest.
    fn front(&self) -> String {
        match &self.at {
            At::Socket { path, .. } => format!("shm:{}", path.display()),
            At::Memory { place: MemoryLocation::File(path), .. } => format!("shm+file:{}", path.display()),
            At::Memory { place: MemoryLocation::Pci(_), .. } => "shm+pci:".into(),
            At::Memory { place: MemoryLocation::Mmapper(_), .. } => "shm+mmapper:".into(),
        }
    }

    fn kind(&self) -> &'static str {
        match self.at {
            At::Socket { .. } => "shm",
            At::Memory { .. } => "shm-file",
        }
    }

    fn name(&self) -> String {
        match &self.at {
            At::Socket { path, .. } => path.display().to_string(),
            At::Memory { place: MemoryLocation::Pci(None), .. } => "pci:".into(),
            At::Memory { place: MemoryLocation::Pci(Some(address)), .. } => format!("pci:{address}"),
            At::Memory { place: MemoryLocation::Mmapper(_), .. } => "mmapper:".into(),
            At::Memory { place: MemoryLocation::File(path), .. } => path.display().to_string(),
        }
    }
}

/// Returns the initial registry entry of this server, which has no guests yet.
fn announcement(plan: &Plan, endpoints: &[Endpoint]) -> Announcement {
    let mut exports: Vec<_> = endpoints.iter().flat_map(|place| place.exports.iter().cloned()).collect();
    exports.sort();
    exports.dedup();
    let name = plan.name();
    let endpoints = endpoints.iter().flat_map(|place| {
        let front = place.front();
        place.exports.iter().map(move |export| format!("{front}{export}"))
    });
    Announcement { exports, places: endpoints.collect(), ..Announcement::of_this_process(&name) }
}

/// Mode of sockets with a policy, which decides who may connect.
const ALL_USERS: u32 = 0o666;

/// Factor by which the limits on links and pending links grow without a policy. One user gets a quarter of
/// each limit, so the server's own user gets as many as the defaults permit to all users.
const USERS: usize = 4;

fn listen(
    place: &PlannedShm,
    plan: &Plan,
    policy: Option<&Policy>,
    state: &Arc<DurableState>,
) -> Result<Endpoint, Failure> {
    let listening = format!("listen at {}", place.socket.display());
    let (server, names) = server(&place.exports, Squash::NONE, plan, state)?;
    let limits = Limits { protocols: server.protocols(), ..Limits::default() };
    let mut options =
        ListenOptions { limits, mode: plan.front_ends.shm.doorbell, ..ListenOptions::default() };
    match policy {
        Some(policy) => {
            options.policy = policy.clone();
            options.socket_mode = ALL_USERS;
        }
        // Only root and the server's user may connect. The latter needs many links: each VM has three to the
        // cache of its image.
        None => {
            options.pending_max *= USERS;
            options.links_max *= USERS;
        }
    }
    let path = absolute(&place.socket).or_cannot(&listening)?;
    let listener = LinkListener::start(&path, server, options).or_cannot(&listening)?;
    Ok(Endpoint { at: At::Socket { path, listener }, exports: names })
}

fn serve_memory(memory: &PlannedMemory, plan: &Plan, state: &Arc<DurableState>) -> Result<Endpoint, Failure> {
    let serving = format!("serve over {}", memory.place);
    let place = match &memory.place {
        MemoryLocation::File(path) => absolute(path).map(MemoryLocation::File),
        place => Ok(place.clone()),
    };
    let place = place.or_cannot(&serving)?;
    if let (MemoryLocation::File(path), None) = (&place, memory.size_bytes)
        // Another error, such as a directory that may not be searched, is reported by the opening.
        && matches!(path.try_exists(), Ok(false))
    {
        let failure = Failure::cannot(&serving, "no such file");
        return Err(failure.remedy("add ,size=SIZE to create it"));
    }
    let (server, names) = server(&memory.exports, memory.squash, plan, state)?;
    let limits = Limits { protocols: server.protocols(), ..Limits::default() };
    let common = SharedMemory::to_serve(&place, memory.size_bytes).or_cannot(&serving)?;
    let common = common.with_bell(memory.bell.clone());
    let bell = match memory.bell.as_ref().map(|bell| bell.location()) {
        Some(BellLocation::Fifos(path)) => Some(absolute(path).or_cannot(&serving)?),
        _ => None,
    };
    // A guest has no name: the memory is shown instead.
    let label = place.to_string();
    let listener = MemoryListener::start(common, server, limits, plan.front_ends.shm.doorbell, &label)
        .or_cannot(&serving)?;
    let size_bytes = memory.size_bytes.unwrap_or_else(|| length(&place));
    Ok(Endpoint { at: At::Memory { place, size_bytes, bell, listener }, exports: names })
}

/// Creates a server for these exports; returns their names too.
fn server(
    offered: &[usize],
    squash: Squash,
    plan: &Plan,
    state: &Arc<DurableState>,
) -> Result<(Arc<Server>, Vec<String>), Failure> {
    let rpc = NfsOverLinks::new(offered, plan, state);
    let service = VrpcServer::new().with_keys(state.keys()?);
    let mut service = service.with_session_ids(Arc::clone(state.session_ids()));
    let mut names = Vec::new();
    for &index in offered {
        let Some((export, planned)) = state.once(index)?.zip(plan.exports.get(index)) else { continue };
        let name = planned.name.to_string();
        let xattrs = plan.front_ends.xattrs.are_shown();
        service = service.with_export(name.clone(), export, Options { squash, xattrs, ..Options::default() });
        names.push(name);
    }
    let server = Server::new(Arc::new(service));
    // NFS has its own squash, which would bypass this one.
    let server = match squash.mode {
        SquashMode::None => server.speaking(Protocol::OncRpc, Arc::new(rpc)),
        SquashMode::Root | SquashMode::All => server,
    };
    Ok((Arc::new(server), names))
}

/// Returns the size of the file, which existed a moment ago, for the peer's command line; 0 for other
/// memory.
fn length(place: &MemoryLocation) -> u64 {
    match place {
        MemoryLocation::File(path) => fs::metadata(path).map_or(0, |metadata| metadata.len()),
        MemoryLocation::Pci(_) | MemoryLocation::Mmapper(_) => 0,
    }
}
