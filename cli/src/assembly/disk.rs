//! A server of a disk, from its start to its end: one disk, any number of front ends.

use std::io::{self, Write};
use std::path::{Path, absolute};
use std::sync::Arc;

use serde_json::{Value, json};
use tombolo_back_image_file::{ImageFile, Options as ImageOptions};
use tombolo_back_nbd_client::NbdDisk;
use tombolo_core::block::BlockDevice;
use tombolo_core::{Ctx, SessionId};
use tombolo_front_nbd::Server as NbdServer;
use tombolo_front_virtio_blk::{Options as DeviceOptions, VirtioBlk};
use tombolo_host_runtime::thread_pool::{ThreadPool, ThreadPoolLimits};
use tombolo_host_service::control::{Answers, Server as ControlServer};
use tombolo_host_service::metrics::Endpoint;
use tombolo_host_vhost::{Device, GuestId, Server as VhostServer, Settings};
use tombolo_layer_basic::stats::{self, Counters};

use crate::assembly::hints;
use crate::assembly::options::disk::{self, DiskOptions};
use crate::assembly::options::nbd::NbdUrl;
use crate::assembly::options::virtiofs::VirtioFsSocket;
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
    until_stopped(|| DiskServer::start(options), |server| server.announce(options), DiskServer::end)
}

/// The process. Dropped from the top: guests go before the sockets' files.
struct DiskServer {
    guests: Vec<VhostServer>,
    nbd: Vec<NbdServer>,
    nbd_places: Vec<NbdPlace>,
    sockets: Vec<GuestSocket>,
    disk: Arc<dyn BlockDevice>,
    metrics: Vec<Endpoint>,
    _control: ControlServer,
    control_path: String,
    /// What waits for the host's disks.
    _pool: ThreadPool,
}

/// Requests that may wait for the host's disks at a time: more than the queues of all guests hold.
const PENDING_MAX: usize = 1 << 17;

impl DiskServer {
    /// Takes all sockets before anything else, so that a busy one leaves no trace.
    fn start(options: &DiskOptions) -> Result<Self, Failure> {
        let control = service::control_socket(options.control.as_deref(), || options.name())?;
        let access = SocketAccess::new(
            options.socket_group.as_deref(),
            options.socket_mode.as_ref().map(|mode| mode.0),
        )?;
        let sockets = options
            .vhost_user
            .iter()
            .map(|path| GuestSocket::open(&VirtioFsSocket::Path(path.clone()), access));
        let sockets = sockets.collect::<Result<Vec<_>, _>>()?;
        let plan = NbdPlan {
            plain: &options.nbd,
            tls: &options.nbd_tls,
            tls_dir: options.tls_dir.as_ref(),
            mode: options.socket_mode.as_ref().map_or(0o600, |mode| mode.0),
        };
        let nbd = NbdSockets::open(&plan, &options.name())?;
        let pool = ThreadPool::new(
            "disk",
            ThreadPoolLimits { queue_len: PENDING_MAX, ..ThreadPoolLimits::default() },
        );
        let counters = Counters::new();
        let disk = stats::disk::over(open(options, &pool)?, Arc::clone(&counters));
        let counted = Counted { exports: vec![(options.name(), counters)], ..Counted::default() };
        let service = Service::new(status(options, &sockets, &nbd.places, &*disk), counted);
        let metrics = prometheus::serve(options.metrics.as_ref(), &service)?;
        let control_path = control.path().display().to_string();
        let answers = Arc::new(DiskAnswers { service, disk: Arc::clone(&disk) });
        let _control = ControlServer::start(control, answers)
            .map_err(|error| Failure::cannot(format_args!("serve {control_path}"), &error))?;
        let (nbd, nbd_places) = nbd.serve(&options.name(), &disk)?;
        let mut server = Self {
            guests: Vec::new(),
            nbd,
            nbd_places,
            sockets,
            disk,
            metrics,
            _control,
            control_path,
            _pool: pool,
        };
        for socket in &server.sockets {
            let admitted = admit_guests(options, socket, &server.disk);
            let failed =
                |error: io::Error| Failure::cannot(format_args!("serve {}", socket.path().display()), &error);
            server.guests.push(admitted.map_err(failed)?);
        }
        Ok(server)
    }

    /// A line for each endpoint, with what to type on the other side.
    fn announce(&self, options: &DiskOptions) -> io::Result<()> {
        let mut out = io::stdout().lock();
        let size_bytes = self.disk.geometry().size_bytes;
        let only = if self.disk.profile().read_only { " read-only" } else { "" };
        for (index, socket) in self.sockets.iter().enumerate() {
            let path = socket.path();
            let shown = path.display();
            writeln!(out, "ready vhost-user-blk {shown} disk={} size={size_bytes}{only}", options.name())?;
            hints::disk::vhost_user(&mut out, index, &path, options.queues, &options.serial())?;
        }
        for place in &self.nbd_places {
            let tls = if place.is_secure { " tls" } else { "" };
            writeln!(out, "ready nbd {} disk={} size={size_bytes}{only}{tls}", place.at, options.name())?;
            hints::disk::nbd(&mut out, &place.at, &place.url, &options.name(), place.is_secure)?;
        }
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

fn open(options: &DiskOptions, pool: &ThreadPool) -> Result<Arc<dyn BlockDevice>, Failure> {
    if let Some(url) = NbdUrl::parse(&options.file) {
        let url = url.map_err(Failure::usage)?;
        let disk = NbdDisk::connect(url.server.clone(), &url.export)
            .map_err(|error| Failure::cannot(format_args!("have the disk of {url}"), &error))?;
        return Ok(disk);
    }
    let DiskOptions { read_only, block_size: block_bytes, .. } = *options;
    let image = ImageOptions { read_only, block_bytes, ..ImageOptions::default() };
    let disk = ImageFile::open(&options.file, &image, pool.lane())
        .map_err(|error| Failure::cannot("serve a disk", &error))?;
    Ok(disk)
}

fn admit_guests(
    options: &DiskOptions,
    socket: &GuestSocket,
    disk: &Arc<dyn BlockDevice>,
) -> io::Result<VhostServer> {
    // Two guests that write destroy each other's file system.
    let guests_max = if disk.profile().read_only { Settings::default().guests_max } else { 1 };
    let settings = Settings { guests_max, ..Settings::default() };
    let device = DeviceOptions { name: options.name(), serial: options.serial(), queues: options.queues };
    let disk = Arc::clone(disk);
    let make = move |guest: GuestId| {
        let blk = VirtioBlk::new(Arc::clone(&disk), device.clone(), SessionId(guest.0 + 1))?;
        Ok(Arc::new(blk) as Arc<dyn Device>)
    };
    VhostServer::start(socket.socket().try_clone()?, settings, Box::new(make))
}

fn status(
    options: &DiskOptions,
    sockets: &[GuestSocket],
    nbd: &[NbdPlace],
    disk: &dyn BlockDevice,
) -> Status {
    let export = ExportStatus {
        name: options.name(),
        source: source(&options.file),
        read_only: disk.profile().read_only,
    };
    let endpoints = sockets.iter().map(|socket| EndpointStatus {
        kind: "vhost-user-blk".into(),
        at: socket.path().display().to_string(),
        export: options.name(),
    });
    let nbd = nbd.iter().map(|place| EndpointStatus {
        kind: "nbd".into(),
        at: place.at.clone(),
        export: options.name(),
    });
    Status::of_this_process(vec![export], endpoints.chain(nbd).collect())
}

/// What `status` says of where a disk comes from.
pub fn source(file: &Path) -> String {
    if let Some(Ok(url)) = NbdUrl::parse(file) {
        return format!("disk:{url}");
    }
    let file = absolute(file).unwrap_or_else(|_| file.to_owned());
    format!("disk:{}", file.display())
}

/// What tools ask a server of a disk: `size=SIZE` can be changed.
struct DiskAnswers {
    service: Arc<Service>,
    disk: Arc<dyn BlockDevice>,
}

impl Answers for DiskAnswers {
    fn answer(&self, request: &str) -> Option<Value> {
        self.service.answer(request)
    }

    fn set(&self, options: &str) -> Result<Value, String> {
        let size_bytes = options.strip_prefix("size=").and_then(disk::size).ok_or("write size=SIZE")?;
        let resize = self.disk.resize().ok_or("this disk has a size that cannot be changed")?;
        let resized = resize.set_size(&Ctx::root(SessionId(0)), size_bytes);
        self.disk.submit();
        resized.wait().map_err(|error| String::from(Reason::from(&error)))?;
        tracing::info!(size_bytes, "resized");
        Ok(json!({ "set": options }))
    }
}
