//! Server of one disk, as `tombolo disk` runs it: to guests, to NBD clients and as a file of a mount.

use std::io::{self, Write};
use std::net::TcpListener;

use tombolo_host_runtime::listener::Listener;
use tombolo_host_service::control::Server as ControlServer;
use tombolo_host_service::metrics::Server as MetricsServer;
use tombolo_host_service::sandbox::SandboxStatus;
use tombolo_host_vhost::Settings;
use tombolo_host_vhost::keeper::Settings as KeeperSettings;

use crate::assembly::disk_mount::{DiskMount, PreparedDiskMount};
use crate::assembly::keeper::{self, Turn};
use crate::assembly::options::disk::{DiskOptions, DiskServerOptions};
use crate::assembly::plan::disk::{DiskPlan, DiskSource};
use crate::assembly::plan::needs::{directories_of, join, of_mounts};
use crate::assembly::sandbox::Sandbox;
use crate::assembly::served_disk::{DiskAnswers, PreparedDisk, ServedDisk, guest_sockets};
use crate::assembly::servers::until_stopped;
use crate::failure::{Failure, OrCannot, Outcome};
use crate::service::status::Status;
use crate::service::{self, Counted, Service, prometheus};

pub fn serve(disk: DiskOptions, options: &DiskServerOptions) -> Outcome {
    let mut plan = DiskPlan::new(disk)?;
    if options.keep && matches!(plan.source, DiskSource::Qcow2 { .. }) {
        // The mapping of unflushed clusters exists only in the server's memory.
        let refused = format!(
            "--keep does not support {}: unflushed writes would be lost with its server",
            plan.source
        );
        return Err(
            Failure::usage(refused).remedy("omit --keep, or convert it to a raw image or use it as the base of an overlay: tombolo disk convert, create")
        );
    }
    if options.keep && plan.options.mount.is_some() {
        let refused = "--keep and --mount exclude each other: a mapped file is lost with its server";
        return Err(Failure::usage(refused).remedy("omit one of them"));
    }
    if options.keep && options.kept.is_empty() {
        return keep(&plan);
    }
    let turn = Turn::wait(&options.kept)?;
    if let (DiskSource::Overlay(overlay), Some(descriptor)) = (&mut plan.source, options.kept_states) {
        overlay.keep_states_in(descriptor)?;
    }
    if let (DiskSource::Overlay(overlay), Some(layers)) = (&mut plan.source, options.layers) {
        overlay.hand_out_below(layers);
        overlay.base_in_use = options.base_in_use;
    }
    if let Some(file) = &options.record {
        let DiskSource::Overlay(overlay) = &mut plan.source else {
            return Err(Failure::usage(format!(
                "--record requires an overlay, and {} is not one",
                plan.source
            )));
        };
        overlay.record_in(file)?;
    }
    until_stopped(
        &turn,
        || Prepared::open(&plan, options),
        DiskServer::start,
        DiskServer::announce,
        DiskServer::end,
    )
}

/// Runs the keeper, which holds the guests' sockets while one server replaces another.
fn keep(plan: &DiskPlan) -> Outcome {
    let sockets = guest_sockets(plan, &[])?;
    // Only the server knows which guest has access, so the keeper of a writable disk admits one guest.
    let guests_max = if plan.options.read_only { Settings::default().guests_max } else { 1 };
    let settings = KeeperSettings { guests_max, refuses_front_end_areas: false };
    let states = match &plan.source {
        DiskSource::Overlay(overlay) if !plan.options.read_only => Some(overlay.memory_for_states()?),
        _ => None,
    };
    let own = states.iter().map(|(_, descriptor)| format!("--kept-states={descriptor}")).collect();
    keeper::keep(&sockets, settings, &plan.name, own)
}

/// A running disk server. Fields drop in order: the mount, which uses the disk, before the disk.
struct DiskServer {
    mount: Option<DiskMount>,
    disk: ServedDisk,
    metrics: Vec<MetricsServer>,
    _control: ControlServer,
    control_path: String,
    sandbox: SandboxStatus,
}

/// Resources opened before the sandbox is entered.
struct Prepared {
    control: Listener,
    metrics: Vec<TcpListener>,
    mount: Option<PreparedDiskMount>,
    disk: PreparedDisk,
    sandbox: SandboxStatus,
}

impl Prepared {
    /// Opens everything that the sandbox would refuse, and enters the sandbox. No request is served before
    /// all sockets are bound, so a start that fails because an address is busy has no effect.
    fn open(plan: &DiskPlan, options: &DiskServerOptions) -> Result<Self, Failure> {
        let control = service::control_socket(options.control.as_deref(), || plan.name.clone())?;
        let disk = PreparedDisk::open(plan, &options.kept)?;
        let mut mount = PreparedDiskMount::of(plan, options.end_at_failed_write)?;
        let metrics = prometheus::listen(options.metrics.as_ref())?;
        let mut needs = disk.needs();
        needs.removes.extend(directories_of([control.path().to_owned()]));
        if mount.is_some() {
            join(&mut needs, of_mounts());
        }
        let mut sandbox = Sandbox::new(options.sandbox, needs, None);
        if let Some(mount) = &mut mount {
            mount.mounts_outside(&mut sandbox)?;
        }
        Ok(Self { control, metrics, mount, disk, sandbox: sandbox.close(&[])?.status })
    }
}

impl DiskServer {
    fn start(prepared: Prepared) -> Result<Self, Failure> {
        let Prepared { control, metrics, mount, disk, sandbox } = prepared;
        let mut disk = disk.start()?;
        let mount = mount.map(|mount| mount.start(disk.disk())).transpose()?;
        let mut counted = Counted::default();
        disk.add_to(&mut counted);
        let (export, endpoints) = disk.status();
        let endpoints = endpoints.chain(mount.as_ref().map(DiskMount::status)).collect();
        let service = Service::new(Status::of_this_process(vec![export], endpoints), counted);
        let metrics = prometheus::serve(metrics, &service)?;
        let control_path = control.path().display().to_string();
        let answers = DiskAnswers::over(service, [&disk]);
        let _control =
            ControlServer::start(control, answers).or_cannot(format_args!("serve {control_path}"))?;
        disk.admit()?;
        Ok(Self { mount, disk, metrics, _control, control_path, sandbox })
    }

    /// Prints a line for each endpoint, with commands for the peer.
    fn announce(&self) -> io::Result<()> {
        let mut out = io::stdout().lock();
        self.disk.announce(&mut out, &mut 0)?;
        if let Some(mount) = &self.mount {
            writeln!(out, "ready file {}", mount.path().display())?;
        }
        writeln!(out, "ready sandbox {}", self.sandbox)?;
        writeln!(out, "ready control {}", self.control_path)?;
        for metrics in &self.metrics {
            writeln!(out, "ready metrics http://{}/metrics", metrics.address())?;
        }
        out.flush()
    }

    /// Unmounts the file, then flushes the disk: writes through the mount reach the disk first.
    fn end(&mut self) -> Outcome {
        let file = self.mount.take().map_or(Ok(()), |mount| mount.end());
        self.disk.end().and(file)
    }
}
