//! Server of directories and disks, for `tombolo serve` and `tombolo proxy`. A [`Server`] has a [`Serving`],
//! the exports and front ends of one plan, for its command line, and one for each added session.
//!
//! Reading order: this module; `sessions`, the additional sessions of a proxy.

mod detach;
pub mod guest_socket;
pub mod nbd;
mod nfs;
mod nfs_over_links;
mod sessions;
mod shm;
mod shm_registry;
pub mod state;
pub mod stdio;

use std::io::{self, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;

use tombolo_back_local_dir::Options as DirOptions;
use tombolo_back_nfs_client::NfsExport;
use tombolo_core::SessionId;
use tombolo_core::fs::Export;
use tombolo_front_fuse::dev::{Mount as FuseMount, Mounter, Options as FuseOptions};
use tombolo_front_fuse::session::Options as SessionOptions;
use tombolo_front_fuse::virtio::{Options as DeviceOptions, VirtioFs, can_survive_restart};
use tombolo_front_nfs_server::NfsServer;
use tombolo_host_runtime::descriptors::DescriptorBudget;
use tombolo_host_runtime::listener::Listener;
use tombolo_host_runtime::{signals, time_slices};
use tombolo_host_service::control::{Answers, Server as ControlServer};
use tombolo_host_service::metrics::Server as MetricsServer;
use tombolo_host_service::sandbox::SandboxStatus;
use tombolo_host_vhost::keeper::Settings as KeeperSettings;
use tombolo_host_vhost::{Device, MakeDevice, Server as VhostServer, Settings};
use tombolo_layer_basic::stats::Counters as ExportCounters;
use tombolo_layer_cache::CacheExport;
use tombolo_layer_idmap as idmap;
use tombolo_layer_write_back::WriteBackExport;
use tombolo_sys::open::Reopen;

use crate::commands::mount::reason;
use crate::failure::{Failure, OrCannot, Outcome};
use crate::location::NfsOptions;
use crate::service::prometheus;
use crate::service::status::{EndpointStatus, ExportStatus, Status};
use crate::service::{self, Counted, NfsCounts, Service, counted};

use crate::assembly::hints;
use crate::assembly::hints::nfs::{host_name, reach};
use crate::assembly::keeper::{self, Turn};
use crate::assembly::options::nfs::squash_word;
use crate::assembly::options::virtiofs::VirtioFsSocket;
use crate::assembly::plan::needs;
use crate::assembly::plan::tree::{OpenedTree, Tree};
use crate::assembly::plan::{Plan, PlannedExport, PlannedGuests, PlannedMount};
use crate::assembly::sandbox::{Closed, Sandbox};
use crate::assembly::served_disk::{DiskAnswers, PreparedDisk, ServedDisk};
use crate::assembly::servers::guest_socket::GuestSocket;
use crate::assembly::servers::state::DurableState;
use detach::{Unfinished, UnsentChanges};
use nfs::{BoundPorts, NfsServers, STDIO};
use sessions::{SessionAnswers, Sessions};
use shm::ShmServers;

pub fn serve(plan: &Plan) -> Outcome {
    if plan.keep.as_ref().is_some_and(Vec::is_empty) {
        return keep(plan);
    }
    let turn = Turn::wait(plan.keep.as_deref().unwrap_or_default())?;
    until_stopped(
        &turn,
        || Prepared::open(plan),
        |prepared| Server::start(prepared, plan),
        |server| server.announce(plan),
        Server::end,
    )
}

/// Runs the keeper, which holds the guests' sockets while one server replaces another.
fn keep(plan: &Plan) -> Outcome {
    let sockets = guest_sockets(plan)?;
    // A server stores file handles in the in-flight area. A VMM that provided the area could replace them,
    // and so open any file.
    let settings =
        KeeperSettings { guests_max: Settings::default().guests_max, refuses_front_end_areas: true };
    keeper::keep(&sockets, settings, &plan.name(), Vec::new())
}

fn guest_sockets(plan: &Plan) -> Result<Vec<GuestSocket>, Failure> {
    let guests = plan.front_ends.guests.iter().map(|guests| &guests.socket);
    match plan.keep.as_deref() {
        Some(kept) if !kept.is_empty() => {
            let at = |socket: &VirtioFsSocket| PathBuf::from(socket.to_string());
            kept.iter().zip(guests).map(|(fd, socket)| GuestSocket::kept(*fd, &at(socket))).collect()
        }
        _ => GuestSocket::open_all(guests, plan.front_ends.socket_access),
    }
}

/// Runs a server: prepares it before any thread exists, starts and announces it, and ends it on a signal or
/// with its keeper.
pub fn until_stopped<P, S>(
    turn: &Turn,
    prepare: impl FnOnce() -> Result<P, Failure>,
    start: impl FnOnce(P) -> Result<S, Failure>,
    announce: impl FnOnce(&S) -> io::Result<()>,
    end: impl FnOnce(&mut S) -> Outcome,
) -> Outcome {
    // The first call raises the limit on open files. Threads started after the second inherit its setting.
    DescriptorBudget::of_process();
    time_slices::request_short_slices();
    let prepared = prepare()?;
    let (stop, stopped) = mpsc::channel();
    let by_keeper = stop.clone();
    signals::on_stop(move |signal| {
        let _ = stop.send(Some(signal));
    })
    .or_cannot("wait for signals")?;
    turn.on_end(move || {
        let _ = by_keeper.send(None);
    })
    .or_cannot("wait for the keeper")?;
    let mut server = start(prepared)?;
    announce(&server).or_cannot("report readiness")?;
    match stopped.recv() {
        Ok(Some(signal)) => tracing::info!(%signal, "stopping"),
        Ok(None) => tracing::info!("stopping with the keeper"),
        Err(mpsc::RecvError) => tracing::error!("signal thread ended: stopping"),
    }
    end(&mut server)
}

/// Resources opened before the sandbox is entered.
struct Prepared {
    places: Places,
    control: Listener,
    metrics: Vec<TcpListener>,
    sandbox: SandboxStatus,
}

impl Prepared {
    /// Binds all sockets but those of links before any export is opened, so that a busy address fails the
    /// start without effect, and enters the sandbox. Starts no thread: it would remain outside the sandbox.
    fn open(plan: &Plan) -> Result<Self, Failure> {
        let places = Places::take(plan)?;
        let control = service::control_socket(plan.control.as_deref(), || plan.name())?;
        let metrics = prometheus::listen(plan.metrics.as_ref())?;
        let made = places.sockets.iter().map(GuestSocket::path).chain([control.path().to_owned()]);
        let mut needs = plan.needs(made);
        places.disks.iter().for_each(|disk| needs::join(&mut needs, disk.needs()));
        let mut sandbox = Sandbox::new(plan.sandbox, needs, None);
        let mounts = plan.front_ends.mounts.iter();
        let mounts: Vec<_> = mounts.map(|mount| (&*mount.point.path, mount_options(mount, plan))).collect();
        let mounters = sandbox.mounters(&mounts)?.unwrap_or_default();
        let dirs = plan.exports.iter().filter_map(|export| export.tree.dir().map(Path::to_owned));
        let Closed { status, broker } = sandbox.close(&dirs.collect::<Vec<_>>())?;
        let places = Places { broker, mounters, ..places };
        Ok(Self { places, control, metrics, sandbox: status })
    }
}

/// Endpoints of a plan, and helpers that stay outside of the sandbox. Of shared memory only the bells are
/// opened.
struct Places {
    sockets: Vec<GuestSocket>,
    ports: BoundPorts,
    disks: Vec<PreparedDisk>,
    /// Helper that opens files by handle, if landlock prevents this process from doing so.
    broker: Option<Arc<dyn Reopen>>,
    /// Mount helpers in the order of the mounts, if this process does not mount itself.
    mounters: Vec<Arc<dyn Mounter>>,
}

impl Places {
    /// Binds the sockets, inherited ones first: a wrong descriptor number could soon be a new socket's.
    fn take(plan: &Plan) -> Result<Self, Failure> {
        let sockets = guest_sockets(plan)?;
        let ports = BoundPorts::take(&plan.front_ends.nfs)?;
        plan.front_ends.shm.open_bells()?;
        let disks = plan.disks.iter().map(|disk| PreparedDisk::open(disk, &[])).collect::<Result<_, _>>()?;
        Ok(Self { sockets, ports, disks, broker: None, mounters: Vec::new() })
    }
}

/// The server process: the exports of its command line, and sessions added since. Fields drop in order:
/// watchers of the control socket see the end last.
struct Server {
    serving: Serving,
    /// Sessions added to a proxy at run time; `None` for other servers.
    sessions: Option<Arc<Sessions>>,
    metrics: Vec<MetricsServer>,
    _control: ControlServer,
    control_path: String,
    sandbox: SandboxStatus,
}

impl Server {
    fn start(prepared: Prepared, plan: &Plan) -> Result<Self, Failure> {
        let Prepared { places, control, metrics, sandbox } = prepared;
        let (serving, status, counted) = Serving::open(plan, places)?;
        let endpoints = status.endpoints.clone();
        let service = Service::new(status, counted);
        let metrics = prometheus::serve(metrics, &service)?;
        let control_path = control.path().display().to_string();
        let sessions =
            plan.cache.as_ref().map(|cache| Sessions::new(plan, cache, endpoints, &service)).transpose()?;
        let answers: Arc<dyn Answers> = match &sessions {
            Some(sessions) => Arc::new(SessionAnswers(Arc::clone(sessions))),
            None => service,
        };
        let answers = DiskAnswers::over(answers, &serving.disks);
        let _control =
            ControlServer::start(control, answers).or_cannot(format_args!("serve {control_path}"))?;
        let mut server = Self { serving, sessions, metrics, _control, control_path, sandbox };
        server.serving.admit(plan)?;
        if let (Some(after), Some(shm)) = (plan.end_when_unused, &server.serving.shm) {
            shm.end_when_unused(after).or_cannot("wait for clients")?;
        }
        if let Some(sessions) = &server.sessions {
            sessions.obey_signals()?;
            sessions.resume();
        }
        Ok(server)
    }

    fn announce(&self, plan: &Plan) -> io::Result<()> {
        let mut out = io::stdout().lock();
        self.serving.announce(plan, &mut out)?;
        writeln!(out, "ready sandbox {}", self.sandbox)?;
        writeln!(out, "ready control {}", self.control_path)?;
        for metrics in &self.metrics {
            writeln!(out, "ready metrics http://{}/metrics", metrics.address())?;
        }
        out.flush()
    }

    /// Ends all sessions in parallel, so that an unreachable origin delays only its own session.
    fn end(&mut self) -> Outcome {
        let Self { serving, sessions, .. } = self;
        thread::scope(|scope| {
            let others = sessions.as_ref().map(|sessions| scope.spawn(|| sessions.end()));
            let first = serving.end().map_err(Failure::from);
            let disks = serving.end_disks();
            let others = others.map_or(Ok(Ok(())), |others| others.join());
            let others =
                others.unwrap_or_else(|_| Err(Failure::cannot("end all sessions", "a session failed")));
            first.and(disks).and(others)
        })
    }
}

/// Everything that serves one plan. Fields drop in order: guests before the files of their sockets.
struct Serving {
    mounters: Vec<Arc<dyn Mounter>>,
    mounts: Vec<FuseMount>,
    guests: Vec<VhostServer>,
    shm: Option<ShmServers>,
    nfs: Option<NfsServers>,
    disks: Vec<ServedDisk>,
    unsent_changes: UnsentChanges,
    /// Dropped after the front ends.
    _leases: Vec<LeaseEnd>,
    _state: Arc<DurableState>,
    sockets: Vec<GuestSocket>,
    exports: Vec<Arc<dyn Export>>,
    session_ids: Arc<AtomicU64>,
}

impl Serving {
    /// Opens the exports and disks, and starts NFS, NBD and the links. [`admit`](Self::admit) starts the
    /// other front ends.
    fn open(plan: &Plan, places: Places) -> Result<(Self, Status, Counted), Failure> {
        let Places { sockets, ports, disks, broker, mounters } = places;
        let opened = plan.exports.iter().enumerate();
        let opened = opened.map(|(index, export)| open(index, export, plan, broker.as_ref()));
        let opened = opened.collect::<Result<Vec<_>, _>>()?;
        let session_ids = Arc::new(AtomicU64::new(1));
        let exports: Vec<_> = opened.iter().map(|opened| Arc::clone(&opened.export)).collect();
        let state = DurableState::new(plan, &exports, &session_ids);
        let shm = ShmServers::start(plan, &state)?;
        let nfs = NfsServers::start(plan, ports, &state)?;
        state.warn();
        let disks = disks.into_iter().map(PreparedDisk::start).collect::<Result<Vec<_>, _>>()?;
        let mut counted = all_counted(plan, &opened, nfs.counts());
        disks.iter().for_each(|disk| disk.add_to(&mut counted));
        let exports = exports.into_iter().enumerate().map(|(index, export)| match &plan.keep {
            Some(_) => kept_export(index, export, plan, &state),
            None => state.recalling(index, export),
        });
        let exports = exports.collect::<Result<_, _>>()?;
        let mut status = status(plan, &sockets, &nfs, &shm);
        for (export, endpoints) in disks.iter().map(ServedDisk::status) {
            status.exports.push(export);
            status.endpoints.extend(endpoints);
        }
        let serving = Self {
            mounters,
            mounts: Vec::new(),
            guests: Vec::new(),
            shm: Some(shm),
            nfs: Some(nfs),
            disks,
            unsent_changes: UnsentChanges::new(plan, &counted),
            _leases: opened.iter().filter_map(|opened| opened.cache.clone().map(LeaseEnd)).collect(),
            _state: state,
            sockets,
            exports,
            session_ids,
        };
        Ok((serving, status, counted))
    }

    /// Begins to accept guests, also those of disks, and mounts the trees on this host.
    fn admit(&mut self, plan: &Plan) -> Outcome {
        for (guests, socket) in plan.front_ends.guests.iter().zip(&self.sockets) {
            let admitted =
                admit_guests(guests, socket, &self.exports[guests.export], plan, &self.session_ids);
            self.guests.push(admitted.or_cannot(format_args!("serve {}", guests.socket))?);
        }
        // In sequence: if one fails, the mounts before it are dropped with `self`.
        for (index, mount) in plan.front_ends.mounts.iter().enumerate() {
            let mut options = mount_options(mount, plan);
            if let Some(mounter) = self.mounters.get(index) {
                options.mounter = Arc::clone(mounter);
            }
            self.mounts.push(start_mount(mount, &self.exports[mount.export], &options, &self.session_ids)?);
        }
        self.disks.iter_mut().try_for_each(ServedDisk::admit)
    }

    /// Ends the front ends and sends all changes to the origin, as [`UnsentChanges::detach`] does.
    fn end(&mut self) -> Result<(), Unfinished> {
        self.end_front_ends();
        self.unsent_changes.detach()
    }

    /// Ends the front ends of all disks, and flushes the disks; returns the first failure.
    fn end_disks(&mut self) -> Outcome {
        let ended: Vec<_> = self.disks.iter_mut().map(ServedDisk::end).collect();
        ended.into_iter().collect()
    }

    /// Prints a line for each endpoint, with commands for the peer.
    fn announce(&self, plan: &Plan, out: &mut impl Write) -> io::Result<()> {
        for (index, (guests, socket)) in plan.front_ends.guests.iter().zip(&self.sockets).enumerate() {
            let export = &plan.exports[guests.export];
            let path = socket.path();
            let (path_shown, xattrs) = (path.display(), plan.front_ends.xattrs.suffix());
            writeln!(out, "ready virtiofs {path_shown} tag={} export={}{xattrs}", guests.tag, export.name)?;
            hints::virtiofs(out, index, &path, &guests.tag, guests.request_queues)?;
        }
        for (mount, planned) in self.mounts.iter().zip(&plan.front_ends.mounts) {
            let export = &plan.exports[planned.export];
            let (coherence, xattrs) = (plan.front_ends.coherence.suffix(), plan.front_ends.xattrs.suffix());
            writeln!(out, "ready fuse {} export={}{coherence}{xattrs}", mount.path().display(), export.name)?;
        }
        if let Some(cache) = &plan.cache {
            for export in &plan.exports {
                writeln!(out, "ready cache {}", cache.words(&export.tree))?;
            }
        }
        if let Some(shm) = &self.shm {
            shm.announce(out, plan)?;
        }
        let host = host_name();
        for place in self.nfs.iter().flat_map(NfsServers::ports) {
            for export in place.exports.iter().filter_map(|&index| plan.exports.get(index)) {
                let (address, export) = (place.address, export.name.to_string());
                let squash = squash_word(plan.front_ends.nfs.squash.mode);
                let kind = place.kind();
                writeln!(
                    out,
                    "ready {kind} {address} export={export} squash={squash}{}",
                    reach(address.ip())
                )?;
                match place.over_tls {
                    true => hints::nfs::for_tls_clients(out, address, &export, &host)?,
                    false => hints::nfs::for_clients(out, address, &export, &host)?,
                }
            }
        }
        let mut index = 0;
        self.disks.iter().try_for_each(|disk| disk.announce(out, &mut index))
    }

    /// Returns the NFS server of `--stdio`, to which the module [`stdio`] passes connections; `None` without
    /// that option.
    fn stdio(&self) -> Option<Arc<NfsServer>> {
        self.nfs.as_ref().and_then(NfsServers::stdio)
    }

    /// Stops the front ends of the exports. A busy mount is only detached.
    fn end_front_ends(&mut self) {
        for mount in self.mounts.drain(..) {
            end(&mount);
        }
        for guests in self.guests.drain(..) {
            guests.stop();
        }
        drop((self.shm.take(), self.nfs.take()));
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.end_front_ends();
    }
}

/// Guard that returns the lease of a tree, even if the cache is still referenced.
struct LeaseEnd(Arc<CacheExport>);

impl Drop for LeaseEnd {
    fn drop(&mut self) {
        self.0.end_lease();
    }
}

/// Maximum pending operations of all NFS clients of an export; it takes 64 busy clients to reach it.
const NFS_PENDING_MAX: u64 = 1 << 16;

/// An open export with its sources of counters.
struct OpenedExport {
    export: Arc<dyn Export>,
    counters: Arc<ExportCounters>,
    client: Option<Arc<NfsExport>>,
    cache: Option<Arc<CacheExport>>,
    write_back: Option<Arc<WriteBackExport>>,
}

fn open(
    index: usize,
    planned: &PlannedExport,
    plan: &Plan,
    broker: Option<&Arc<dyn Reopen>>,
) -> Result<OpenedExport, Failure> {
    // A read-only cache still writes its lease file at the origin.
    let is_leased =
        plan.cache.as_ref().is_some_and(|cache| cache.is_read_only() && cache.takes_lease(&planned.tree));
    let mut options = DirOptions {
        read_only: plan.layers.read_only && !is_leased,
        submounts: plan.layers.submounts.into(),
        watch_host: plan.layers.host_watch,
        ask: planned.ask.clone(),
        help: broker.cloned(),
        ..DirOptions::default()
    };
    // All NFS clients of an export share a session, and each client has its own limit.
    if plan.front_ends.nfs.offers(index) {
        options.limits.pending = NFS_PENDING_MAX;
        options.pool.queue_len = NFS_PENDING_MAX as usize;
    }
    let nfs = if plan.cache.is_some() { NfsOptions::for_cache() } else { NfsOptions::default() };
    let OpenedTree { export, client } = planned.tree.open(options, nfs)?;
    let cache = plan.cache.as_ref().map(|cache| cache.over(&planned.tree, &*export)).transpose()?;
    let write_back = match (&plan.cache, &cache) {
        (Some(planned_cache), Some(cache)) => planned_cache.write_back_over(&planned.tree, cache)?,
        _ => None,
    };
    let export = match (&write_back, &cache) {
        (Some(write_back), _) => Arc::clone(write_back) as Arc<dyn Export>,
        (None, Some(cache)) => Arc::clone(cache) as Arc<dyn Export>,
        (None, None) => export,
    };
    let (export, counters) = counted(match &plan.layers.ids {
        Some(ids) => Arc::new(idmap::over(export, ids.clone())),
        None => export,
    });
    Ok(OpenedExport { export, counters, client, cache, write_back })
}

/// Returns the sources of all counters, under the names of the exports.
fn all_counted(plan: &Plan, exports: &[OpenedExport], nfs: Vec<NfsCounts>) -> Counted {
    let mut counted = Counted { nfs, ..Counted::default() };
    for (planned, opened) in plan.exports.iter().zip(exports) {
        let name = || planned.name.to_string();
        counted.exports.push((name(), Arc::clone(&opened.counters)));
        counted.clients.extend(opened.client.iter().map(|client| (name(), Arc::clone(client))));
        counted.caches.extend(opened.cache.iter().map(|cache| (name(), Arc::clone(cache))));
        counted.write_backs.extend(opened.write_back.iter().map(|kept| (name(), Arc::clone(kept))));
    }
    counted
}

/// Wraps an export whose guests outlive the server: a request repeated after a restart is executed once.
fn kept_export(
    index: usize,
    export: Arc<dyn Export>,
    plan: &Plan,
    state: &DurableState,
) -> Result<Arc<dyn Export>, Failure> {
    can_survive_restart(&*export).map_err(|error| {
        let tree = plan.exports.get(index).map(|export| export.tree.to_string()).unwrap_or_default();
        Failure::cannot(format_args!("keep guests of {tree}"), &error).remedy("omit --keep")
    })?;
    Ok(if plan.layers.read_only { export } else { state.once(index)?.unwrap_or(export) })
}

fn admit_guests(
    guests: &PlannedGuests,
    socket: &GuestSocket,
    export: &Arc<dyn Export>,
    plan: &Plan,
    session_ids: &Arc<AtomicU64>,
) -> io::Result<VhostServer> {
    let (export, session_ids) = (Arc::clone(export), Arc::clone(session_ids));
    let (tag, request_queues) = (guests.tag.clone(), guests.request_queues);
    let session = SessionOptions {
        coherence: plan.front_ends.coherence.into(),
        xattrs: plan.front_ends.xattrs.are_shown(),
        ..SessionOptions::default()
    };
    let (at, is_kept) = (guests.socket.to_string(), plan.keep.is_some());
    let make: Box<MakeDevice> = Box::new(move |guest| {
        let label = format!("guest {guest} at {at}");
        let (tag, session) = (tag.clone(), session.clone());
        let options = DeviceOptions { tag, request_queues, label, session, is_kept };
        let device: Arc<dyn Device> =
            Arc::new(VirtioFs::new(Arc::clone(&export), options, Arc::clone(&session_ids))?);
        Ok(device)
    });
    let settings = Settings { has_fd_store: plan.keep.is_some(), ..Settings::default() };
    VhostServer::start(socket.socket().try_clone()?, settings, make)
}

fn mount_options(mount: &PlannedMount, plan: &Plan) -> FuseOptions {
    FuseOptions {
        source: plan.exports[mount.export].tree.to_string(),
        allow_other: mount.allow_other,
        read_only: plan.layers.read_only,
        coherence: plan.front_ends.coherence.into(),
        xattrs: plan.front_ends.xattrs.are_shown(),
        ..FuseOptions::default()
    }
}

fn start_mount(
    mount: &PlannedMount,
    export: &Arc<dyn Export>,
    options: &FuseOptions,
    session_ids: &AtomicU64,
) -> Result<FuseMount, Failure> {
    let session = SessionId(session_ids.fetch_add(1, Ordering::Relaxed));
    FuseMount::start(&**export, session, &mount.point.path, options).map_err(|error| {
        Failure::cannot(format_args!("mount at {}", mount.point.path.display()), reason(&error))
    })
}

/// Unmounts and waits. A busy mount is detached instead: it ends with its last user, or with this process.
fn end(mount: &FuseMount) {
    match mount.unmount() {
        Ok(true) => mount.wait(),
        Ok(false) => {
            tracing::warn!(mountpoint = %mount.path().display(), "busy: detached, ends with its last user")
        }
        Err(error) => tracing::error!(mountpoint = %mount.path().display(), %error, "cannot unmount"),
    }
}

fn status(plan: &Plan, sockets: &[GuestSocket], nfs: &NfsServers, shm: &ShmServers) -> Status {
    let exports = plan.exports.iter().map(|export| ExportStatus {
        name: export.name.to_string(),
        source: match &export.tree {
            Tree::Dir(dir) => format!("dir:{}", dir.display()),
            tree => tree.to_string(),
        },
        read_only: plan.layers.read_only,
    });
    let name = |index: usize| &plan.exports[index].name;
    let guests = plan.front_ends.guests.iter().zip(sockets).map(|(guests, socket)| {
        EndpointStatus::new("virtiofs", &socket.path().display(), name(guests.export))
    });
    let mounts = plan.front_ends.mounts.iter();
    let mounts =
        mounts.map(|mount| EndpointStatus::new("fuse", &mount.point.path.display(), name(mount.export)));
    let ports = nfs.ports().iter().flat_map(|place| {
        let exports = place.exports.iter().filter_map(|&index| plan.exports.get(index));
        exports.map(|export| EndpointStatus::new(place.kind(), &place.address, &export.name))
    });
    let stdio = plan.exports.iter().filter(|_| plan.front_ends.nfs.over_stdio);
    let stdio = stdio.map(|export| EndpointStatus::new("nfs", &STDIO, &export.name));
    let endpoints = guests.chain(mounts).chain(shm.endpoints()).chain(ports).chain(stdio);
    Status::of_this_process(exports.collect(), endpoints.collect())
}
