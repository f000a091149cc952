//! A server of a disk, from its start to its end: one disk, any number of front ends.

use std::io::{self, Write};
use std::net::TcpListener;
use std::path::{Path, absolute};
use std::sync::Arc;

use serde_json::{Value, json};
use tombolo_core::block::{BlockDevice, OpenOptions};
use tombolo_core::{Ctx, Error, SessionId};
use tombolo_front_nbd::Server as NbdServer;
use tombolo_front_virtio_blk::{Options as DeviceOptions, VirtioBlk};
use tombolo_host_runtime::listener::Listener;
use tombolo_host_runtime::thread_pool::{ThreadPool, ThreadPoolLimits};
use tombolo_host_service::control::{Answers, Server as ControlServer};
use tombolo_host_service::metrics::Endpoint;
use tombolo_host_service::sandbox::{self, Held};
use tombolo_host_vhost::{Device, GuestId, Server as VhostServer, Settings};
use tombolo_layer_basic::stats::{self, Counters};

use crate::assembly::hints;
use crate::assembly::keeper::{self, Turn};
use crate::assembly::options::disk::{self, DiskOptions};
use crate::assembly::options::virtiofs::VirtioFsSocket;
use crate::assembly::plan::disk::{DiskSource, OpenedDisk};
use crate::assembly::servers::guest_socket::{GuestSocket, SocketAccess};
use crate::assembly::servers::nbd::{NbdPlace, NbdPlan, NbdSockets};
use crate::assembly::servers::until_stopped;
use crate::failure::{Failure, Outcome, Reason};
use crate::service::status::{EndpointStatus, ExportStatus, Status};
use crate::service::{self, Counted, Service, prometheus};

pub fn serve(options: &DiskOptions) -> Outcome {
    if options.vhost_user.is_empty() && options.nbd.is_empty() && options.nbd_tls.is_empty() {
        return Err(Failure::usage("nothing says how the disk is reached")
            .remedy("add --vhost-user SOCKET, --nbd ADDR or --nbd-tls ADDR"));
    }
    if options.keep && options.kept.is_empty() {
        return keep(options);
    }
    let source = DiskSource::of_word(&options.file, options.format, options.backing_dir.as_deref())?;
    let turn = Turn::wait(&options.kept)?;
    until_stopped(
        &turn,
        || Prepared::open(options, &source),
        |prepared| DiskServer::start(prepared, options, &source),
        |server| server.announce(options),
        DiskServer::end,
    )
}

/// Holds the sockets of guests for servers that follow each other.
fn keep(options: &DiskOptions) -> Outcome {
    let sockets = guest_sockets(options)?;
    let name = DiskSource::of_word(&options.file, options.format, options.backing_dir.as_deref())?.name();
    keeper::keep(&sockets, Settings::default().guests_max, &name)
}

fn guest_sockets(options: &DiskOptions) -> Result<Vec<GuestSocket>, Failure> {
    let kept = &options.kept;
    if !kept.is_empty() {
        return kept.iter().zip(&options.vhost_user).map(|(fd, path)| GuestSocket::kept(*fd, path)).collect();
    }
    let access =
        SocketAccess::new(options.socket_group.as_deref(), options.socket_mode.as_ref().map(|mode| mode.0))?;
    let paths = options.vhost_user.iter().map(|path| VirtioFsSocket::Path(path.clone()));
    paths.map(|path| GuestSocket::open(&path, access)).collect()
}

/// The process. Dropped from the top: guests go before the sockets' files.
struct DiskServer {
    /// What the disk is called.
    name: String,
    guests: Vec<VhostServer>,
    nbd: Vec<NbdServer>,
    nbd_places: Vec<NbdPlace>,
    sockets: Vec<GuestSocket>,
    disk: Arc<dyn BlockDevice>,
    metrics: Vec<Endpoint>,
    _control: ControlServer,
    control_path: String,
    sandbox: Held,
    /// What waits for the host's disks.
    _pool: ThreadPool,
}

/// Requests that may wait for the host's disks at a time: more than the queues of all guests hold.
const PENDING_MAX: usize = 1 << 17;

/// What a server has opened before its sandbox closed.
struct Prepared {
    name: String,
    control: Listener,
    metrics: Vec<TcpListener>,
    sockets: Vec<GuestSocket>,
    nbd: NbdSockets,
    /// A file of this host. Other disks are reached from inside.
    disk: Option<OpenedDisk>,
    pool: ThreadPool,
    sandbox: Held,
}

impl Prepared {
    /// Takes all sockets before anything else, so that a busy one leaves no trace. Starts no thread: it would stay outside of the sandbox.
    fn open(options: &DiskOptions, source: &DiskSource) -> Result<Self, Failure> {
        let name = source.name();
        let control = service::control_socket(options.control.as_deref(), || name.clone())?;
        let sockets = guest_sockets(options)?;
        let plan = NbdPlan {
            plain: &options.nbd,
            tls: &options.nbd_tls,
            tls_dir: options.tls_dir.as_ref(),
            mode: options.socket_mode.as_ref().map_or(0o600, |mode| mode.0),
        };
        let nbd = NbdSockets::open(&plan, &name)?;
        let pool = ThreadPool::new(
            "disk",
            ThreadPoolLimits { queue_len: PENDING_MAX, ..ThreadPoolLimits::default() },
        );
        let metrics = prometheus::listen(options.metrics.as_ref())?;
        let disk = source.is_of_this_host().then(|| source.open(&how(options), &pool)).transpose()?;
        let mut needs = source.needs();
        let made =
            sockets.iter().map(GuestSocket::path).chain(nbd.paths()).chain([control.path().to_owned()]);
        needs.removes = made.filter_map(|path| absolute(path).ok()?.parent().map(Path::to_owned)).collect();
        needs.reads.extend(nbd.certificates());
        let sandbox = sandbox::enter(options.sandbox, &needs).map_err(|error| {
            Failure::cannot("confine the server", &error).remedy("--sandbox auto does without")
        })?;
        Ok(Self { name, control, metrics, sockets, nbd, disk, pool, sandbox })
    }
}

fn how(options: &DiskOptions) -> OpenOptions {
    let DiskOptions { read_only, block_size: block_bytes, .. } = *options;
    OpenOptions { read_only, block_bytes, ..OpenOptions::default() }
}

impl DiskServer {
    fn start(prepared: Prepared, options: &DiskOptions, source: &DiskSource) -> Result<Self, Failure> {
        let Prepared { name, control, metrics, sockets, nbd, disk, pool, sandbox } = prepared;
        let counters = Counters::new();
        let OpenedDisk { disk, client } = match disk {
            Some(opened) => opened,
            None => source.open(&how(options), &pool)?,
        };
        let disk = stats::disk::over(disk, Arc::clone(&counters));
        let clients = client.map(|client| (name.clone(), client)).into_iter().collect();
        let counted = Counted { exports: vec![(name.clone(), counters)], clients, ..Counted::default() };
        let service = Service::new(status(&name, source, &sockets, &nbd.places, &*disk), counted);
        let metrics = prometheus::serve(metrics, &service)?;
        let control_path = control.path().display().to_string();
        let answers = Arc::new(DiskAnswers { service, disk: Arc::clone(&disk) });
        let _control = ControlServer::start(control, answers)
            .map_err(|error| Failure::cannot(format_args!("serve {control_path}"), &error))?;
        let (nbd, nbd_places) = nbd.serve(&name, &disk)?;
        let mut server = Self {
            name,
            guests: Vec::new(),
            nbd,
            nbd_places,
            sockets,
            disk,
            metrics,
            _control,
            control_path,
            sandbox,
            _pool: pool,
        };
        for socket in &server.sockets {
            let admitted = admit_guests(&server.name, options, socket, &server.disk);
            let failed =
                |error: io::Error| Failure::cannot(format_args!("serve {}", socket.path().display()), &error);
            server.guests.push(admitted.map_err(failed)?);
        }
        Ok(server)
    }

    /// A line for each endpoint, with what to type on the other side.
    fn announce(&self, options: &DiskOptions) -> io::Result<()> {
        let mut out = io::stdout().lock();
        let (name, size_bytes) = (&self.name, self.disk.geometry().size_bytes);
        let only = if self.disk.profile().read_only { " read-only" } else { "" };
        for (index, socket) in self.sockets.iter().enumerate() {
            let path = socket.path();
            let shown = path.display();
            writeln!(out, "ready vhost-user-blk {shown} disk={name} size={size_bytes}{only}")?;
            hints::disk::vhost_user(&mut out, index, &path, options.queues, &options.serial_of(name))?;
        }
        for place in &self.nbd_places {
            let tls = if place.is_secure { " tls" } else { "" };
            writeln!(out, "ready nbd {} disk={name} size={size_bytes}{only}{tls}", place.at)?;
            hints::disk::nbd(&mut out, &place.at, &place.url, name, place.is_secure)?;
        }
        writeln!(out, "ready sandbox {}", self.sandbox)?;
        writeln!(out, "ready control {}", self.control_path)?;
        for metrics in &self.metrics {
            writeln!(out, "ready metrics http://{}/metrics", metrics.address())?;
        }
        out.flush()
    }

    /// Cuts the guests off, and makes durable what was answered.
    fn end(&mut self) -> Outcome {
        self.guests.drain(..).for_each(VhostServer::stop);
        self.nbd.clear();
        if self.disk.profile().read_only {
            return Ok(());
        }
        let flushed = self.disk.flush(&Ctx::root(SessionId(0)));
        self.disk.submit();
        flushed.wait().map_err(|error| Failure::cannot("make durable what was written", &error))
    }
}

fn admit_guests(
    name: &str,
    options: &DiskOptions,
    socket: &GuestSocket,
    disk: &Arc<dyn BlockDevice>,
) -> io::Result<VhostServer> {
    // Two guests that write destroy each other's file system.
    let settings = Settings { one_at_a_time: !disk.profile().read_only, ..Settings::default() };
    let device = DeviceOptions { name: name.into(), serial: options.serial_of(name), queues: options.queues };
    let disk = Arc::clone(disk);
    let make = move |guest: GuestId| {
        let blk = VirtioBlk::new(Arc::clone(&disk), device.clone(), SessionId(guest.0 + 1))?;
        Ok(Arc::new(blk) as Arc<dyn Device>)
    };
    VhostServer::start(socket.socket().try_clone()?, settings, Box::new(make))
}

fn status(
    name: &str,
    source: &DiskSource,
    sockets: &[GuestSocket],
    nbd: &[NbdPlace],
    disk: &dyn BlockDevice,
) -> Status {
    let export =
        ExportStatus { name: name.into(), source: named(source), read_only: disk.profile().read_only };
    let endpoints = sockets.iter().map(|socket| EndpointStatus {
        kind: "vhost-user-blk".into(),
        at: socket.path().display().to_string(),
        export: name.into(),
    });
    let nbd = nbd.iter().map(|place| EndpointStatus {
        kind: "nbd".into(),
        at: place.at.clone(),
        export: name.into(),
    });
    Status::of_this_process(vec![export], endpoints.chain(nbd).collect())
}

/// What `status` says of where a disk comes from.
pub fn named(source: &DiskSource) -> String {
    format!("disk:{source}")
}

/// What tools ask a server of a disk: its size can be changed (`size=SIZE`), or taken in as it is now (`size`).
struct DiskAnswers {
    service: Arc<Service>,
    disk: Arc<dyn BlockDevice>,
}

impl Answers for DiskAnswers {
    fn answer(&self, request: &str) -> Option<Value> {
        self.service.answer(request)
    }

    fn set(&self, options: &str) -> Result<Value, String> {
        let wanted = match options.strip_prefix("size") {
            Some("") => None,
            Some(size) => Some(size.strip_prefix('=').and_then(disk::size).ok_or("write size=SIZE")?),
            None => return Err("write size=SIZE, or size".into()),
        };
        let resize = self.disk.resize().ok_or("its size is its server's to change")?;
        let cx = Ctx::root(SessionId(0));
        let resized = match wanted {
            Some(size_bytes) => resize.set_size(&cx, size_bytes).map(move |()| size_bytes),
            None => resize.follow_size(&cx),
        };
        self.disk.submit();
        let size_bytes = resized.wait().map_err(|error| match error {
            Error::NotSupported => {
                "change it by its own tools, as by lvextend, and leave SIZE out here".into()
            }
            error => String::from(Reason::from(&error)),
        })?;
        tracing::info!(size_bytes, "resized");
        Ok(json!({ "set": options, "size_bytes": size_bytes }))
    }
}
