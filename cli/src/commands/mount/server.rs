//! Server of one mount.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, mpsc};

use tombolo_core::fs::{Client, Export, NOTICE_BYTES, PermissionCheck};
use tombolo_core::{Ctx, SessionId};
use tombolo_front_fuse::dev::{Mount as FuseMount, MountError, Options as FuseOptions};
use tombolo_host_runtime::descriptors::DescriptorBudget;
use tombolo_host_runtime::{signals, time_slices};
use tombolo_host_service::control::Server as ControlServer;
use tombolo_host_service::metrics::Server as MetricsServer;
use tombolo_host_service::sandbox::SandboxStatus;
use tombolo_sys::open::Reopen;

use crate::assembly::options::coherence::Coherence;
use crate::assembly::plan::needs::directories_of;
use crate::assembly::sandbox::{Closed, Sandbox};
use crate::commands::ready::leave_terminal;
use crate::failure::{Failure, OrCannot, Outcome, Reason};
use crate::location::{Location, NfsOptions};
use crate::service::prometheus;
use crate::service::status::{EndpointStatus, ExportStatus, Status};
use crate::service::{self, Counted, Service, counted};

use super::Mount;
use super::log::append;
use super::options::Locks;
use super::source::{self, Source};
use crate::mount_point::{MountTable, mounted_at};

/// Mounts, reports readiness, and serves until the mount has ended. With a log, also detaches from the
/// terminal.
///
/// `again`: the previous server of the mount was killed. The new one then waits for the remote server without
/// a time limit, until the dead mount is unmounted.
pub fn serve(mount: &Mount, log: Option<&Path>, again: bool) -> Outcome {
    let mounting = format!("mount {} at {}", mount.source, mount.point.path.display());
    // The first call raises the limit on open files. Threads started after the second inherit its setting.
    DescriptorBudget::of_process();
    time_slices::request_short_slices();
    let log = log.map(append).transpose().or_cannot(&mounting)?;
    let name = || format!("mount-{}", mount.point.word(NAME_BYTES_MAX));
    let control = service::control_socket(mount.control.as_deref(), name)?;
    let has_left = Cell::new(false);
    // A background server detaches from the terminal, once.
    let leave = || match &log {
        Some(log) if !has_left.replace(true) => leave_terminal(log),
        _ => Ok(()),
    };
    let metrics = prometheus::listen(mount.metrics.as_ref())?;
    // The mount table is opened before entering the sandbox, which has its own mounts.
    let table = again.then(MountTable::open).transpose().or_cannot(&mounting)?;
    let bell = source::open_bell(mount, again)?;
    let mut outside = Outside::start(mount, again, log.as_ref(), control.path())?;
    let source = Source::open(mount, bell.as_ref(), table.as_ref(), &leave, outside.broker.take())?;
    let (export, counters) = counted(source.export);
    let name = mount.source.to_string();
    let nfs = source.nfs.clone();
    let counted = Counted {
        exports: vec![(name.clone(), counters)],
        clients: source.nfs.into_iter().map(|nfs| (name.clone(), nfs)).collect(),
        ..Counted::default()
    };
    let service = Service::new(status(mount), counted);
    let metrics = prometheus::serve(metrics, &service)?;
    // The control socket outlives the mount: a client that waits for the end of its connection finds the
    // mount ended.
    let _control = ControlServer::start(control, service).or_cannot(&mounting)?;
    let (stop, stopped) = mpsc::channel();
    signals::on_stop(move |signal| {
        let _ = stop.send(signal);
    })
    .or_cannot(&mounting)?;
    let coherence = coherence(mount, &*export);
    let options = FuseOptions { coherence: coherence.into(), ..outside.options };
    let fuse = FuseMount::start(&*export, SESSION, &mount.point.path, &options)
        .map_err(|error| Failure::cannot(&mounting, reason(&error)))?;
    // From here on only the mount keeps a local directory in use.
    drop(export);
    let fuse = Arc::new(fuse);
    let announced = match log {
        None => announce(mount, coherence, &metrics, outside.sandbox),
        Some(_) => {
            tracing::debug!(sandbox = %outside.sandbox, "confined");
            leave()
        }
    };
    let announced = announced.and_then(|()| end_on(stopped, &fuse));
    if let Err(error) = announced {
        let _ = fuse.unmount();
        return Err(Failure::cannot(&mounting, &error));
    }
    fuse.wait();
    drop(fuse);
    if let Some(nfs) = nfs {
        nfs.leave();
    }
    tracing::info!(mountpoint = %mount.point.path.display(), "unmounted");
    Ok(())
}

/// Maximum length of the mount point in the name of the control socket, whose path has at most 107 bytes.
const NAME_BYTES_MAX: usize = 40;

fn status(mount: &Mount) -> Status {
    let source = mount.source.to_string();
    // A server of links is not informed that this mount is read-only, so it refuses nothing.
    let read_only = mount.options.is_read_only() && !matches!(mount.source, Location::Shm(_));
    let export = ExportStatus { name: source.clone(), source: source.clone(), read_only };
    let endpoint = EndpointStatus::new("fuse", &mount.point.path.display(), &source);
    Status::of_this_process(vec![export], vec![endpoint])
}

/// Kernel read-ahead for NFS servers: allows two maximum-size requests in flight. The client itself reads
/// further ahead.
const FAR_READ_AHEAD_BYTES: u32 = 2 << 20;

/// Returns the kernel's cache policy: by default push, if a shared-memory server reports all changes. Not
/// with noperm, since the kernel would serve cached data without checking permissions.
fn coherence(mount: &Mount, export: &dyn Export) -> Coherence {
    let said_in_url = match &mount.source {
        Location::Nfs(url) => &url.options,
        Location::NfsShm(url) => &url.options,
        Location::Shm(_) | Location::Dir(_) => &NfsOptions::default(),
    };
    let coherence = mount.options.coherence(said_in_url);
    let is_open = mount.options.coherence.is_none() && coherence == Coherence::default();
    let may_be_told = matches!(mount.source, Location::Shm(_)) && !mount.options.no_kernel_checks;
    if is_open && may_be_told && tells_all(export) { Coherence::Push } else { coherence }
}

/// Returns `true` if sessions are notified of all changes. Queries the server.
fn tells_all(export: &dyn Export) -> bool {
    let client = Client { session: PROBE, label: "mount".into(), checks: PermissionCheck::Caller };
    let Ok(fs) = export.attach(&client) else { return false };
    let Some(changes) = fs.changes() else { return false };
    changes.next(&Ctx::root(PROBE), 0, NOTICE_BYTES).wait().is_ok() && changes.is_complete()
}

/// Sessions of the mount, and of the query in [`tells_all`].
const SESSION: SessionId = SessionId(1);
const PROBE: SessionId = SessionId(2);

/// Helper processes outside the sandbox, which this process has entered, and the mount parameters.
struct Outside {
    broker: Option<Arc<dyn Reopen>>,
    /// Mount parameters, with the mounter to use.
    options: FuseOptions,
    sandbox: SandboxStatus,
}

impl Outside {
    fn start(mount: &Mount, again: bool, log: Option<&File>, control: &Path) -> Result<Self, Failure> {
        let mut needs = source::needs(mount);
        needs.removes = directories_of([control.to_owned()]);
        let mut sandbox = Sandbox::new(mount.options.sandbox, needs, log);
        let mut options = fuse_options(mount, again);
        let place = (&*mount.point.path, options.clone());
        if let Some(mounter) = sandbox.mounters(&[place])?.and_then(|mounters| mounters.into_iter().next()) {
            options.mounter = mounter;
        }
        let dirs = if let Location::Dir(dir) = &mount.source { vec![dir.clone()] } else { Vec::new() };
        let Closed { status, broker } = sandbox.close(&dirs)?;
        Ok(Self { broker, options, sandbox: status })
    }
}

/// Returns the mount parameters. A restarted server retains flags changed by `remount`.
fn fuse_options(mount: &Mount, again: bool) -> FuseOptions {
    let mut options = mount.options.clone();
    if again && let Ok(Some(dead)) = mounted_at(&mount.point.path) {
        let back_end_refuses = options.is_read_only() && !matches!(mount.source, Location::Shm(_));
        options.read_only = Some(back_end_refuses || dead.has("ro"));
        options.devices = Some(!dead.has("nodev"));
        options.set_id = Some(!dead.has("nosuid"));
        options.no_exec = Some(dead.has("noexec"));
    }
    let defaults = FuseOptions::default();
    let is_far = matches!(mount.source, Location::Nfs(_) | Location::NfsShm(_));
    FuseOptions {
        source: options.fsname.clone().unwrap_or_else(|| source::name(&mount.source)),
        allow_other: options.allow_other,
        kernel_checks: !options.no_kernel_checks,
        read_only: options.is_read_only(),
        devices: options.devices.unwrap_or(false),
        set_id: options.set_id.unwrap_or(false),
        exec: !options.no_exec.unwrap_or(false),
        threads: options.threads.unwrap_or(defaults.threads),
        local_locks: options.locks == Some(Locks::Local),
        xattrs: options.xattrs.are_shown(),
        read_ahead_bytes: is_far.then_some(FAR_READ_AHEAD_BYTES),
        ..defaults
    }
}

/// Returns the message of the kernel or the helper, for a line that already names the operation.
pub fn reason(error: &MountError) -> Reason {
    match error {
        MountError::Target { source, .. } | MountError::Mount { source, .. } => source.into(),
        error => error.into(),
    }
}

fn announce(
    mount: &Mount,
    coherence: Coherence,
    metrics: &[MetricsServer],
    sandbox: SandboxStatus,
) -> io::Result<()> {
    let mut out = io::stdout();
    for metrics in metrics {
        writeln!(out, "ready metrics http://{}/metrics", metrics.address())?;
    }
    writeln!(out, "ready sandbox {sandbox}")?;
    let (point, coherence) = (mount.point.path.display(), coherence.suffix());
    writeln!(out, "ready fuse {point} {}{coherence}", mount.source)
}

fn end_on(stopped: mpsc::Receiver<signals::StopSignal>, fuse: &Arc<FuseMount>) -> io::Result<()> {
    // The thread that waits for a signal must not keep an ended mount alive.
    let fuse = Arc::downgrade(fuse);
    let end = move || {
        let (Ok(signal), Some(fuse)) = (stopped.recv(), fuse.upgrade()) else { return };
        tracing::info!(%signal, "unmounting");
        match fuse.unmount() {
            Ok(true) => {}
            Ok(false) => tracing::warn!("the mount is busy: detached, ends with its last user"),
            Err(error) => tracing::error!(%error, "cannot unmount"),
        }
    };
    std::thread::Builder::new().name("unmount".into()).spawn(end).map(drop)
}
