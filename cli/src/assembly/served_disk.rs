//! A served disk: the resources opened before the sandbox is entered, and the front ends.

use std::io::{self, Write};
use std::path::absolute;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tombolo_back_nfs_client::NfsExport;
use tombolo_core::block::{BlockDevice, OpenOptions};
use tombolo_core::{Answer, Ctx, Error, SessionId, lock};
use tombolo_front_nbd::Server as NbdServer;
use tombolo_front_virtio_blk::{Options as DeviceOptions, VirtioBlk};
use tombolo_host_runtime::task;
use tombolo_host_runtime::thread_pool::{ThreadPool, ThreadPoolLimits};
use tombolo_host_service::control::{Answers, Start};
use tombolo_host_service::sandbox::Needs;
use tombolo_host_vhost::{Device, GuestId, Server as VhostServer, Settings};
use tombolo_layer_basic::stats::{self, Counters};
use tombolo_layer_basic::switch::Switch;

use crate::assembly::hints;
use crate::assembly::layers::{Devices, PreparedLayers};
use crate::assembly::options::disk;
use crate::assembly::options::virtiofs::VirtioFsSocket;
use crate::assembly::plan::disk::{DiskPlan, DiskSource, OpenedDisk};
use crate::assembly::plan::needs::{directories_of, with_targets};
use crate::assembly::servers::guest_socket::{GuestSocket, SocketAccess};
use crate::assembly::servers::nbd::{NbdPlace, NbdSockets};
use crate::failure::{Failure, OrCannot, Outcome, Reason};
use crate::service::Counted;
use crate::service::status::{EndpointStatus, ExportStatus};

/// Maximum number of pending requests on a local disk.
const PENDING_MAX: usize = 1 << 17;

/// Maximum time to wait for a disk's outstanding requests when its VM is checkpointed or suspended; shorter
/// than the wait for the VMM's answer (`vm::running::PATIENCE`). A device state does not contain them, and a
/// guest restored from it would wait for them for ever, so the command fails if any remain.
const CHECKPOINT_DRAIN_TIMEOUT: Duration = Duration::from_secs(45);

/// Time after which the flush at the end counts as delayed, by a slow disk or an unreachable server. The
/// flush is then abandoned if the disk belongs to a server and nothing was written, otherwise awaited.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// Resources of a disk that are opened before the sandbox is entered.
pub struct PreparedDisk {
    plan: DiskPlan,
    sockets: Vec<GuestSocket>,
    nbd: NbdSockets,
    /// The disk, if it is local. Others are opened inside the sandbox.
    opened: Option<OpenedDisk>,
    /// Receiver of layer changes, if enabled.
    layers: Option<PreparedLayers>,
    pool: Arc<ThreadPool>,
}

impl PreparedDisk {
    /// Binds the sockets before it opens a local disk, so that a busy address fails the start without
    /// effect. `kept` are the sockets of guests that a keeper has passed. Starts no thread: it would remain
    /// outside the sandbox.
    pub fn open(plan: &DiskPlan, kept: &[i32]) -> Result<Self, Failure> {
        let sockets = guest_sockets(plan, kept)?;
        let nbd = NbdSockets::open(&plan.options, &plan.name)?;
        let limits = ThreadPoolLimits { queue_len: PENDING_MAX, ..ThreadPoolLimits::default() };
        let pool = Arc::new(ThreadPool::new("disk", limits));
        let is_here = plan.source.is_of_this_host();
        let opened = is_here.then(|| plan.source.open(&how(plan), &pool)).transpose()?;
        let bottom = match &plan.source {
            DiskSource::Overlay(overlay) => overlay.bottom(),
            _ => None,
        };
        let layers = bottom.map(PreparedLayers::new).transpose();
        let layers = layers.or_cannot("receive its layers on standard input")?;
        Ok(Self { plan: plan.clone(), sockets, nbd, opened, layers, pool })
    }

    pub fn needs(&self) -> Needs {
        let mut needs = self.plan.source.needs();
        let made = self.sockets.iter().map(GuestSocket::path).chain(self.nbd.paths());
        needs.removes = directories_of(made);
        needs.reads.extend(self.nbd.tls_dir.as_deref().into_iter().flat_map(with_targets));
        needs
    }

    /// Opens a disk that is not local, and starts the front ends with addresses. Guests follow with
    /// [`admit`](ServedDisk::admit).
    pub fn start(self) -> Result<ServedDisk, Failure> {
        let Self { plan, sockets, nbd, opened, layers, pool } = self;
        let OpenedDisk { disk, client } = match opened {
            Some(opened) => opened,
            None => plan.source.open(&how(&plan), &pool)?,
        };
        let devices = Devices::default();
        let switch = layers
            .map(|layers| layers.start(disk.clone(), devices.clone(), &pool))
            .transpose()
            .or_cannot("receive its layers")?;
        let disk = switch.as_ref().map_or(disk, Switch::disk);
        let counters = Counters::of_disk();
        let disk = stats::disk::over(disk, Arc::clone(&counters));
        let (nbd, nbd_places) = nbd.serve(&plan.name, &disk)?;
        Ok(ServedDisk {
            guests: Vec::new(),
            nbd,
            nbd_places,
            sockets,
            disk,
            devices,
            switch,
            counters,
            client,
            plan,
            _pool: pool,
        })
    }
}

fn how(plan: &DiskPlan) -> OpenOptions {
    let (read_only, block_bytes) = (plan.options.read_only, plan.options.block_size);
    OpenOptions { read_only, block_bytes, user: place_of(plan), ..OpenOptions::default() }
}

/// Returns the number of this server for [`OpenOptions::user`]: a hash (FNV-1a) of the guest's socket and the
/// disk's name. 0 without guests: transfers that a killed server has left in the kernel then write to no
/// guest's memory, and need not be waited for.
fn place_of(plan: &DiskPlan) -> u32 {
    let Some(path) = plan.options.vhost_user.first() else { return 0 };
    let path = absolute(path).unwrap_or_else(|_| path.clone());
    let bytes = path.as_os_str().as_encoded_bytes().iter().chain(plan.name.as_bytes());
    bytes.fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// Creates the sockets of VMMs, or adopts those passed by a keeper.
pub fn guest_sockets(plan: &DiskPlan, kept: &[i32]) -> Result<Vec<GuestSocket>, Failure> {
    let options = &plan.options;
    if !kept.is_empty() {
        return kept.iter().zip(&options.vhost_user).map(|(fd, path)| GuestSocket::kept(*fd, path)).collect();
    }
    let mode = options.socket_mode.as_ref().map(|mode| mode.0);
    let access = SocketAccess::new(options.socket_group.as_deref(), mode)?;
    let paths = options.vhost_user.iter().map(|path| VirtioFsSocket::Path(path.clone()));
    paths.map(|path| GuestSocket::open(&path, access)).collect()
}

/// A disk with its front ends. Fields drop in order: guests before the files of their sockets.
pub struct ServedDisk {
    guests: Vec<VhostServer>,
    nbd: Vec<NbdServer>,
    nbd_places: Vec<NbdPlace>,
    sockets: Vec<GuestSocket>,
    disk: Arc<dyn BlockDevice>,
    devices: Devices,
    switch: Option<Switch>,
    counters: Arc<Counters>,
    client: Option<Arc<NfsExport>>,
    plan: DiskPlan,
    /// Pool for blocking operations on local disks.
    _pool: Arc<ThreadPool>,
}

impl ServedDisk {
    /// Begins to accept guests at the vhost-user sockets.
    pub fn admit(&mut self) -> Outcome {
        for socket in &self.sockets {
            let failed =
                |error: io::Error| Failure::cannot(format_args!("serve {}", socket.path().display()), &error);
            self.guests.push(self.guests_of(socket).map_err(failed)?);
        }
        Ok(())
    }

    fn guests_of(&self, socket: &GuestSocket) -> io::Result<VhostServer> {
        // Two writing guests would corrupt each other's file system.
        let mut settings = Settings { one_at_a_time: !self.disk.profile().read_only, ..Settings::default() };
        if self.switch.is_some() {
            settings.drain_timeout = CHECKPOINT_DRAIN_TIMEOUT;
        }
        let DiskPlan { name, options, .. } = &self.plan;
        let serial = options.serial_of(name);
        let device = DeviceOptions { name: name.clone(), serial, queues: options.queues };
        let (disk, devices) = (Arc::clone(&self.disk), self.devices.clone());
        let make = move |guest: GuestId| {
            let blk = VirtioBlk::new(Arc::clone(&disk), device.clone(), SessionId(guest.0 + 1))?;
            let blk = Arc::new(blk);
            devices.add(&blk);
            Ok(blk as Arc<dyn Device>)
        };
        VhostServer::start(socket.socket().try_clone()?, settings, Box::new(make))
    }

    /// Returns the disk with its counters, which include the requests of a mount of it.
    pub fn disk(&self) -> Arc<dyn BlockDevice> {
        Arc::clone(&self.disk)
    }

    /// Prints a line for each endpoint, with commands for the peer. `index` counts the sockets of all disks.
    pub fn announce(&self, out: &mut impl Write, index: &mut usize) -> io::Result<()> {
        let DiskPlan { name, options, .. } = &self.plan;
        let size_bytes = self.disk.geometry().size_bytes;
        let only = if self.disk.profile().read_only { " read-only" } else { "" };
        for socket in &self.sockets {
            let path = socket.path();
            let shown = path.display();
            writeln!(out, "ready vhost-user-blk {shown} disk={name} size={size_bytes}{only}")?;
            hints::disk::vhost_user(out, *index, &path, options.queues, &options.serial_of(name))?;
            *index += 1;
        }
        for place in &self.nbd_places {
            let tls = if place.is_secure { " tls" } else { "" };
            writeln!(out, "ready nbd {} disk={name} size={size_bytes}{only}{tls}", place.address)?;
            hints::disk::nbd(out, place, name)?;
        }
        Ok(())
    }

    pub fn add_to(&self, counted: &mut Counted) {
        let name = || self.plan.name.clone();
        counted.exports.push((name(), Arc::clone(&self.counters)));
        counted.clients.extend(self.client.iter().map(|client| (name(), Arc::clone(client))));
    }

    pub fn status(&self) -> (ExportStatus, impl Iterator<Item = EndpointStatus>) {
        let name = self.plan.name.clone();
        let read_only = self.disk.profile().read_only;
        let status = ExportStatus { name: name.clone(), source: self.plan.source.shown(), read_only };
        let guests =
            self.sockets.iter().map(|socket| ("vhost-user-blk", socket.path().display().to_string()));
        let clients = self.nbd_places.iter().map(|place| ("nbd", place.address.clone()));
        let endpoints = guests.chain(clients);
        let endpoints =
            endpoints.map(move |(kind, at)| EndpointStatus { kind: kind.into(), at, export: name.clone() });
        (status, endpoints)
    }

    /// Ends the connections of guests and clients, and flushes the disk unless it is read-only.
    pub fn end(&mut self) -> Outcome {
        self.guests.drain(..).for_each(VhostServer::stop);
        self.nbd.clear();
        if self.disk.profile().read_only {
            return Ok(());
        }
        let cx = Ctx::root(SessionId(0));
        let settled = self.switch.as_ref().map_or(Ok(()), |switch| settle(switch, &cx));
        let name = &self.plan.name;
        let may_be_left = !self.plan.source.is_of_this_host() && !self.is_changed();
        let flushed = self.disk.flush(&cx);
        self.disk.submit();
        let (done, ended) = mpsc::channel();
        task::spawn(async move {
            let _ = done.send(flushed.resolve().await);
        });
        let flushed = match ended.recv_timeout(FLUSH_TIMEOUT) {
            Err(RecvTimeoutError::Timeout) if may_be_left => {
                tracing::warn!(disk = name, "its server does not respond: ending, since nothing was written");
                return Ok(());
            }
            Err(RecvTimeoutError::Timeout) => {
                tracing::warn!(
                    disk = name,
                    "writes are not durable yet: waiting for its server; a second signal ends immediately"
                );
                ended.recv().unwrap_or_else(|error| Err(Error::io(error)))
            }
            flushed => flushed.unwrap_or_else(|error| Err(Error::io(error))),
        };
        settled.and(flushed).or_cannot(format_args!("make the writes to {name} durable"))
    }

    /// Returns `true` if this process has completed a change.
    fn is_changed(&self) -> bool {
        let counted = self.counters.snapshot();
        let has_succeeded =
            |name| counted.operation(name).is_some_and(|operation| operation.count > operation.errors);
        ["write", "allocate"].into_iter().any(has_succeeded)
    }
}

/// Makes the frozen layer of an unfinished checkpoint durable, and passes flushes on again.
fn settle(switch: &Switch, cx: &Ctx) -> tombolo_core::Result<()> {
    loop {
        switch.settle(cx).wait()?;
        // Refused if another checkpoint has begun meanwhile.
        if switch.go_on().is_ok() {
            return Ok(());
        }
    }
}

/// Control requests of a server with disks: resizing (`size=SIZE,disk=NAME`; `size=SIZE,shrink,disk=NAME` to
/// a smaller size) and adopting a changed size of the file (`size,disk=NAME`).
pub struct DiskAnswers {
    /// Handler of all other requests.
    others: Arc<dyn Answers>,
    disks: Vec<(String, Arc<dyn BlockDevice>)>,
    /// Lock for reading and changing a size, so that concurrent requests are serialised.
    resizing: Mutex<()>,
}

/// Sizes of a disk before and after a resize, in bytes.
struct Resized {
    before: u64,
    now: u64,
}

impl DiskAnswers {
    pub fn over<'a>(
        others: Arc<dyn Answers>,
        disks: impl IntoIterator<Item = &'a ServedDisk>,
    ) -> Arc<dyn Answers> {
        let disks = disks.into_iter().map(|served| (served.plan.name.clone(), Arc::clone(&served.disk)));
        Arc::new(Self { others, disks: disks.collect(), resizing: Mutex::default() })
    }

    fn set_size(&self, size: &str, name: &str) -> Result<Resized, String> {
        let (_, disk) =
            self.disks.iter().find(|(known, _)| known == name).ok_or_else(|| format!("no disk {name:?}"))?;
        let (size, shrinks) = match size.strip_suffix(",shrink") {
            Some(size) => (size, true),
            None => (size, false),
        };
        let wanted = match size {
            "" => None,
            _ => Some(size.strip_prefix('=').and_then(disk::size).ok_or("write size=SIZE,disk=NAME")?),
        };
        let resize = disk.resize().ok_or("disks of this kind cannot be resized")?;
        let _alone = lock(&self.resizing);
        let before = disk.geometry().size_bytes;
        // The file may have grown since it was opened; a larger size than the disk's could otherwise truncate
        // it.
        let now = wait(&**disk, resize.follow_size(&Ctx::root(SessionId(0))))?;
        let Some(wanted) = wanted else { return Ok(Resized { before, now }) };
        if wanted < now && !shrinks {
            let lost = format!("it has {now} bytes, and data beyond {wanted} would be lost");
            return Err(format!("{lost} (use --shrink)"));
        }
        wait(&**disk, resize.set_size(&Ctx::root(SessionId(0)), wanted))?;
        Ok(Resized { before: now, now: wanted })
    }
}

fn wait<T>(disk: &dyn BlockDevice, resized: Answer<T>) -> Result<T, String> {
    disk.submit();
    resized.wait().map_err(|error| match error {
        Error::NotSupported => "resize it with its own tools, such as lvextend, and omit SIZE".into(),
        error => String::from(Reason::from(&error)),
    })
}

impl Answers for DiskAnswers {
    fn answer(&self, request: &str) -> Option<Value> {
        self.others.answer(request)
    }

    fn answer_of_session(&self, request: &str, session: &str) -> Option<Result<Value, String>> {
        self.others.answer_of_session(request, session)
    }

    fn create_session(&self, session: &str, start: Start) -> Result<Value, String> {
        self.others.create_session(session, start)
    }

    fn set(&self, options: &str) -> Result<Value, String> {
        let sized = options.strip_prefix("size").and_then(|rest| rest.split_once(",disk="));
        let Some((size, name)) = sized else { return self.others.set(options) };
        let Resized { before, now } = self.set_size(size, name)?;
        tracing::info!(disk = name, size_bytes = now, before_bytes = before, "resized");
        Ok(json!({ "set": options, "size_bytes": now, "before_bytes": before }))
    }
}
