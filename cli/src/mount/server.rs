//! The server of one mount, from its start to its end.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, mpsc};

use tombolo_back_local_dir::{LocalDir, Options as DirOptions};
use tombolo_core::fs::{Export, SessionId};
use tombolo_front_fuse::dev::{Mount as FuseMount, MountError, Options as FuseOptions};
use tombolo_host::control::{self, PROTOCOL, Server as ControlServer};
use tombolo_host::daemon;
use tombolo_host::listener::Listener;
use tombolo_host::signals;
use tombolo_sys::process;

use crate::failure::{Failure, Outcome, Reason};
use crate::service::{Service, counted};
use crate::status::{ExportStatus, Status, WayStatus};

use super::Mount;
use super::background::READY;
use super::log::append;
use super::source::Source;

/// Mounts, and serves until the mount has ended. With a log to go to, says that it is ready and leaves the terminal.
pub fn serve(mount: &Mount, log: Option<&Path>) -> Outcome {
    let mounting = format!("mount {} at {}", mount.source, mount.point.path.display());
    if let Err(error) = process::raise_open_file_limit() {
        tracing::warn!(%error, "the limit on open files stays as it is");
    }
    let log = log.map(append).transpose().map_err(|error| Failure::cannot(&mounting, &error))?;
    let control = listen(mount)?;
    let (export, counters) = counted(open(mount)?);
    let service = Service::new(status(mount), vec![(mount.source.to_string(), counters)], Vec::new());
    // The last to go: who waits for the end of its connection finds all else released.
    let _control =
        ControlServer::start(control, service).map_err(|error| Failure::cannot(&mounting, &error))?;
    let (stop, stopped) = mpsc::channel();
    signals::on_stop(move |signal| {
        let _ = stop.send(signal);
    })
    .map_err(|error| Failure::cannot(&mounting, &error))?;
    let fuse = FuseMount::start(&*export, SessionId(1), &mount.point.path, &fuse_options(mount))
        .map_err(|error| Failure::cannot(&mounting, reason(&error)))?;
    // It holds the directory; the mount does now.
    drop(export);
    let fuse = Arc::new(fuse);
    let announced = announce(mount, log.as_ref()).and_then(|()| end_on(stopped, &fuse));
    if let Err(error) = announced {
        let _ = fuse.unmount();
        return Err(Failure::cannot(&mounting, &error));
    }
    fuse.wait();
    tracing::info!(mountpoint = %mount.point.path.display(), "unmounted");
    Ok(())
}

fn open(mount: &Mount) -> Result<Arc<dyn Export>, Failure> {
    let Source::Dir(path) = &mount.source;
    let options = DirOptions {
        read_only: mount.options.read_only,
        submounts: mount.options.submounts.into(),
        ..DirOptions::default()
    };
    let opened = LocalDir::open(path, options);
    Ok(Arc::new(opened.map_err(|error| Failure::cannot(format_args!("mount {}", mount.source), &error))?))
}

fn listen(mount: &Mount) -> Result<Listener, Failure> {
    let listening = "listen for `tombolo top`";
    match &mount.control {
        Some(path) => Listener::bind(path, 0o600).map_err(|error| Failure::cannot(listening, &error)),
        None => {
            let name = format!("mount-{}", mount.point.word(NAME_BYTES_MAX));
            control::free_socket(&control::default_directory(), &name).map_err(|error| {
                Failure::cannot(listening, &error).remedy("choose a place with --control SOCKET")
            })
        }
    }
}

/// A socket's path has 107 bytes.
const NAME_BYTES_MAX: usize = 40;

fn status(mount: &Mount) -> Status {
    let source = mount.source.to_string();
    let at = mount.point.path.display().to_string();
    Status {
        protocol: PROTOCOL,
        version: env!("CARGO_PKG_VERSION").into(),
        pid: std::process::id(),
        exports: vec![ExportStatus {
            name: source.clone(),
            source: source.clone(),
            read_only: mount.options.read_only,
        }],
        ways: vec![WayStatus { kind: "fuse".into(), at, export: source }],
    }
}

fn fuse_options(mount: &Mount) -> FuseOptions {
    let options = &mount.options;
    let Source::Dir(path) = &mount.source;
    let defaults = FuseOptions::default();
    FuseOptions {
        source: options.fsname.clone().unwrap_or_else(|| path.display().to_string()),
        allow_other: options.allow_other,
        kernel_checks: true,
        read_only: options.read_only,
        devices: options.devices,
        set_id: options.set_id,
        exec: !options.no_exec,
        threads: options.threads.unwrap_or(defaults.threads),
        coherence: options.coherence.into(),
    }
}

/// The kernel's or the helper's own words, where the rest of the line says what failed.
pub fn reason(error: &MountError) -> Reason {
    match error {
        MountError::Target { source, .. } | MountError::Mount { source, .. } => source.into(),
        error => error.into(),
    }
}

/// Says that the mount is ready; in the background, leaves the terminal too.
fn announce(mount: &Mount, log: Option<&File>) -> io::Result<()> {
    let mut out = io::stdout();
    match log {
        None => writeln!(out, "ready fuse {} {}", mount.point.path.display(), mount.source),
        Some(log) => {
            out.write_all(READY.as_bytes())?;
            out.flush()?;
            daemon::leave_terminal(log)
        }
    }
}

/// Unmounts when a signal says so.
fn end_on(stopped: mpsc::Receiver<signals::StopSignal>, fuse: &Arc<FuseMount>) -> io::Result<()> {
    let fuse = Arc::clone(fuse);
    let end = move || {
        let Ok(signal) = stopped.recv() else { return };
        tracing::info!(%signal, "unmounting");
        match fuse.unmount() {
            Ok(true) => {}
            Ok(false) => tracing::warn!("the mount is in use: out of sight, it ends with its last user"),
            Err(error) => tracing::error!(%error, "cannot unmount"),
        }
    };
    std::thread::Builder::new().name("unmount".into()).spawn(end).map(drop)
}
