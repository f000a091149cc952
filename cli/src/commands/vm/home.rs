//! Directories of a VM: its persistent one, and one for its sockets.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tombolo_core::fs::Timestamp;
use tombolo_host_service::control;
use tombolo_host_service::state_dir::{ServerFiles, ServerState, StateDir, StateError};
use tombolo_host_vmm::Monitor;
use tombolo_host_vmm::shares::SHARES_MAX;
use tombolo_sys::{Errno, fuse_dev, packet, process, socket};

use super::config::{CONFIG, Config, HERE, HostConfig, uuid};
use super::shares;
use super::supervisor::log_of;
use crate::assembly::plan::overlay::sync_name;
use crate::commands::files::shown;
use crate::failure::{Failure, OrCannot, Outcome};

/// Prefix of VM names in the state directory, which servers use too.
const PREFIX: &str = "vm-";

/// Marker file of a VM that has never started.
pub const UNSTARTED: &str = "unstarted";

/// Prefix of the directories of removed VMs.
const REMOVED: &str = ".removed-vm-";

/// State of a VM, stored in a file that is replaced atomically.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The VM is not completely created.
    Incomplete,
    /// Device state, memory and disk are consistent.
    Suspended,
    /// The VM is running, or its processes were killed.
    Running,
    /// The VM has not been booted yet, or has ended; its memory is lost.
    Off,
    /// Reason why the VM is unusable: it has ended with possibly unsaved writes, or its restoration is
    /// incomplete.
    Failed(String),
}

const PHASE: &str = "phase";

/// Persistent directory of a VM, with its configuration, phase and files.
pub struct Home {
    pub name: String,
    pub path: PathBuf,
    state: StateDir,
    files: ServerFiles,
}

const USING_STATE: &str = "use the state directory";

fn state_dir() -> Result<(StateDir, PathBuf), Failure> {
    // A directory created by another user could hold that user's sockets.
    control::prepare(&control::default_directory()).or_cannot("use the socket directory")?;
    let path = StateDir::default_path().or_cannot(USING_STATE)?;
    Ok((StateDir::open(&path).or_cannot(USING_STATE)?, path))
}

/// Validates a name, which also names files, sockets and the guest.
pub fn checked_name(text: &str) -> Result<String, String> {
    let is_good = text.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
    if is_good && text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.len() <= 40 {
        Ok(text.into())
    } else {
        Err("at most 40 letters, digits, `.`, `_` and `-`, starting with a letter or digit".into())
    }
}

fn none_of_that_name(name: &str) -> Failure {
    Failure::cannot(format_args!("find VM {name}"), "no VM has that name").remedy("see tombolo vm list")
}

impl Home {
    /// Opens the directory of an existing VM, complete or not.
    pub fn of(name: &str) -> Result<Self, Failure> {
        let (state, path) = state_dir()?;
        let path = path.join(format!("{PREFIX}{name}"));
        if !path.is_dir() {
            return Err(none_of_that_name(name));
        }
        Self::at(state, &path, name)
    }

    pub fn create(name: &str) -> Result<Self, Failure> {
        let (state, path) = state_dir()?;
        let path = path.join(format!("{PREFIX}{name}"));
        let made = fs::DirBuilder::new().mode(0o700).create(&path).and_then(|()| sync_name(&path));
        made.map_err(|error| {
            let making = format!("create VM {name}");
            if error.kind() != io::ErrorKind::AlreadyExists {
                return Failure::cannot(making, &error);
            }
            Failure::cannot(making, "it already exists")
                .remedy(format_args!("choose another name, or remove it: tombolo vm rm {name}"))
        })?;
        let home = Self::at(state, &path, name)?;
        home.files.write(UNSTARTED, b"").or_cannot(USING_STATE)?;
        Ok(home)
    }

    /// Records that the VMM has started, so that the VM is kept from now on.
    pub fn has_started(&self) {
        // A leftover marker affects only the messages of later failures.
        let _ = fs::remove_file(self.file(UNSTARTED));
    }

    /// Handles a failed start: a VM that has never started is removed, since the creating command can
    /// recreate it.
    pub fn not_started(&self, failure: Failure) -> Failure {
        if !self.file(UNSTARTED).exists() {
            return failure;
        }
        match self.locked().and_then(|_lock| self.remove()) {
            Ok(()) => failure,
            Err(_) => failure.remedy(format_args!("tombolo vm rm --force {}", self.name)),
        }
    }

    fn at(state: StateDir, path: &Path, name: &str) -> Result<Self, Failure> {
        // The VM's files are opened without following links, like those of images.
        let path = path.canonicalize().or_cannot(format_args!("find {}", path.display()))?;
        let files = state.existing_files(&format!("{PREFIX}{name}")).or_cannot(USING_STATE)?;
        Ok(Self { name: name.into(), path, state, files })
    }

    /// Removes the VM atomically. The caller must have locked or just created it.
    pub fn remove(&self) -> Outcome {
        let removing = format!("remove {}", self.path.display());
        let dir = self.path.parent().unwrap_or(Path::new("/"));
        fs::rename(&self.path, dir.join(format!("{REMOVED}{}", uuid()?)))
            .and_then(|()| sync_name(&self.path))
            .or_cannot(&removing)?;
        // Leftovers of interrupted removals are removed too.
        for entry in fs::read_dir(dir).or_cannot(&removing)? {
            let entry = entry.or_cannot(&removing)?;
            if entry.file_name().to_string_lossy().starts_with(REMOVED)
                && let Err(error) = fs::remove_dir_all(entry.path())
                && entry.path().exists()
            {
                return Err(error).or_cannot(&removing);
            }
        }
        Ok(())
    }

    /// Returns all VMs of this user, complete or not.
    pub fn all() -> Result<Vec<Self>, Failure> {
        let (state, _) = state_dir()?;
        let names = state.servers().or_cannot(USING_STATE)?;
        let names = names.iter().filter_map(|name| name.strip_prefix(PREFIX));
        // Skips VMs that cannot be opened, such as those removed meanwhile.
        Ok(names.filter_map(|name| Self::of(name).ok()).collect())
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Locks the directory until the result is dropped. Returns `None` if it is locked, by the supervisor of
    /// a running VM or by another command.
    pub fn lock(&self) -> Result<Option<ServerState>, Failure> {
        match self.state.existing(&format!("{PREFIX}{}", self.name)) {
            Ok(Some(state)) => Ok(Some(state)),
            Ok(None) => Err(none_of_that_name(&self.name)),
            Err(StateError::InUse { .. }) => Ok(None),
            Err(error) => Err(Failure::cannot(USING_STATE, &error)),
        }
    }

    /// Locks the directory. Fails if it stays locked for [`GLANCE`]: the VM is then taken to be running.
    pub fn locked(&self) -> Result<ServerState, Failure> {
        let running = || {
            Failure::cannot(format_args!("change VM {}", self.name), "it is running")
                .remedy(format_args!("first tombolo vm suspend {0}, or tombolo vm stop {0}", self.name))
        };
        self.lock_within(GLANCE)?.ok_or_else(running)
    }

    /// Locks the directory once it is free, usually because the VM's supervisor has ended. Returns `None` if
    /// it is still locked after this time.
    pub fn lock_within(&self, within: Duration) -> Result<Option<ServerState>, Failure> {
        let began = Instant::now();
        loop {
            match self.lock()? {
                None if began.elapsed() > within => return Ok(None),
                Some(state) => return Ok(Some(state)),
                None => std::thread::sleep(LOOK_EVERY),
            }
        }
    }

    pub fn phase(&self) -> Result<Phase, Failure> {
        let text = self.files.read(PHASE).or_cannot(USING_STATE)?;
        let text = text.map(|bytes| String::from_utf8_lossy(&bytes).trim_end().to_owned());
        Ok(match text.as_deref() {
            None => Phase::Incomplete,
            Some("suspended") => Phase::Suspended,
            Some("running") => Phase::Running,
            Some("off") => Phase::Off,
            Some(why) => Phase::Failed(why.into()),
        })
    }

    pub fn set_phase(&self, phase: &Phase) -> Outcome {
        let text = match phase {
            Phase::Incomplete => return Ok(()),
            Phase::Suspended => "suspended",
            Phase::Running => "running",
            Phase::Off => "off",
            Phase::Failed(why) => why,
        };
        self.files.write(PHASE, format!("{text}\n").as_bytes()).or_cannot(USING_STATE)
    }

    pub fn write<T: Serialize>(&self, name: &str, content: &T) -> Outcome {
        let text = toml::to_string(content).or_cannot("write the VM's configuration")?;
        self.files.write(name, text.as_bytes()).or_cannot(USING_STATE)
    }

    fn text(&self, name: &str) -> Result<String, Failure> {
        let (path, mut text) = (self.file(name), String::new());
        let read = fs::File::open(&path).and_then(|file| file.take(TEXT_BYTES_MAX).read_to_string(&mut text));
        read.or_cannot(format_args!("read {}", path.display()))?;
        Ok(text)
    }

    /// Appends a line with the present time to the VM's log: a step of a command or of the supervisor.
    pub fn note(&self, step: &str) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let at =
            shown::exact_time(Timestamp { secs: since.as_secs().cast_signed(), nanos: since.subsec_nanos() });
        let line = format!("{at} {step}\n");
        // The log is not essential.
        let _ = fs::File::options()
            .append(true)
            .open(log_of(self))
            .and_then(|mut log| log.write_all(line.as_bytes()));
    }

    pub fn config(&self) -> Result<Config, Failure> {
        self.config_of(&self.file(CONFIG))
    }

    /// Returns the configuration copied from `origin`. Failures name `origin`, because the VM of an unusable
    /// image is removed.
    pub fn config_of(&self, origin: &Path) -> Result<Config, Failure> {
        Config::read(&self.text(CONFIG)?, origin)
    }

    pub fn here(&self) -> Result<HostConfig, Failure> {
        self.toml(HERE)
    }

    pub fn toml<T: DeserializeOwned>(&self, name: &str) -> Result<T, Failure> {
        let path = self.file(name);
        toml::from_str(&self.text(name)?).or_cannot(format_args!("use {}", path.display()))
    }

    /// Returns the runtime paths: those recorded by the login session that started the VM, otherwise those of
    /// the present one.
    pub fn run(&self) -> Run {
        let written = fs::read_to_string(self.file(RUN)).ok().map(PathBuf::from);
        // A directory owned by another user could hold that user's sockets.
        let written = written.filter(|usual| control::prepare(usual).is_ok());
        let usual = written.unwrap_or_else(control::default_directory);
        let own = usual.join(format!("{PREFIX}{}", self.name));
        let control = |what: &str| usual.join(format!("{PREFIX}{}-{what}.sock", self.name));
        Run {
            monitor: own.join("monitor"),
            next_monitor: own.join("monitor.next"),
            disk: own.join("disk"),
            memory: own.join("memory"),
            checkpoints: own.join("checkpoints"),
            disk_control: control("disk"),
            memory_control: control("memory"),
            supervisor: self.file(PID),
            own,
        }
    }

    /// Records the path of the login session's socket directory, and creates the VM's directory in it.
    pub fn make_run(&self) -> Result<Run, Failure> {
        let usual = control::default_directory();
        let usual = usual
            .to_str()
            .ok_or_else(|| Failure::cannot("use the socket directory", "its path is not UTF-8"))?;
        self.files.write(RUN, usual.as_bytes()).or_cannot(USING_STATE)?;
        let run = self.run();
        run.make().or_cannot(format_args!("make {}", run.own.display()))?;
        Ok(run)
    }
}

/// File with the path of the directory that contains the VM's sockets.
const RUN: &str = "run";

/// File with the supervisor's process id. It is in the persistent directory, because the login session's
/// directory may have been removed.
const PID: &str = "pid";

/// Runtime paths of a VM: its sockets, and the mount point of its memory.
pub struct Run {
    /// Directory of the VM's sockets.
    own: PathBuf,
    /// File with the supervisor's process id; valid while the supervisor holds the lock.
    supervisor: PathBuf,
    pub monitor: PathBuf,
    /// Monitor of the VMM that waits to take the guest over.
    pub next_monitor: PathBuf,
    /// vhost-user socket of the disk's server.
    pub disk: PathBuf,
    /// Mount point of the memory overlay, if any.
    pub memory: PathBuf,
    /// Socket at which the supervisor receives requests for checkpoints.
    pub checkpoints: PathBuf,
    pub disk_control: PathBuf,
    pub memory_control: PathBuf,
}

/// Maximum size in bytes of `vm.toml`, which may be from a foreign image, and of the VM's other TOML files.
pub const TEXT_BYTES_MAX: u64 = 64 << 10;

/// Maximum wait for the VM directory's lock, which status queries hold for a shorter time.
pub const GLANCE: Duration = Duration::from_millis(200);

const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Time limit for each process left by a killed supervisor to end.
const PATIENCE: Duration = Duration::from_secs(4);

impl Run {
    /// Creates the runtime directory, and records this process as the supervisor.
    fn make(&self) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.memory)?;
        fs::write(&self.supervisor, std::process::id().to_string())
    }

    /// Makes the supervisor end the VM.
    pub fn stop(&self) -> io::Result<()> {
        Ok(process::terminate(self.supervisor()?)?)
    }

    /// Kills the supervisor, and with it the VMM.
    pub fn kill(&self) -> io::Result<()> {
        Ok(process::kill(self.supervisor()?)?)
    }

    /// Returns a path by which this process reaches a file of the supervisor's mount namespace.
    pub fn in_its_namespace(&self, file: &Path) -> io::Result<PathBuf> {
        let root = PathBuf::from(format!("/proc/{}/root", self.supervisor()?));
        Ok(root.join(file.strip_prefix("/").map_err(io::Error::other)?))
    }

    fn supervisor(&self) -> io::Result<u32> {
        fs::read_to_string(&self.supervisor)?.parse().map_err(io::Error::other)
    }

    pub fn share(&self, number: usize) -> PathBuf {
        self.own.join(format!("share-{number}"))
    }

    pub fn share_control(&self, number: usize) -> PathBuf {
        self.own.join(format!("share-{number}.sock"))
    }

    /// Removes the sockets and the mount of a VMM that has not taken the guest over, and of its memory
    /// server.
    pub fn remove_next(&self) {
        // Without root only fusermount3 may unmount the mount of a killed server.
        if fuse_dev::unmount(&self.memory, true).is_err_and(|errno| errno == Errno::PERM) {
            let _ = fuse_dev::unmount_by_helper(&self.memory, true);
        }
        for file in [&self.next_monitor, &self.memory_control] {
            let _ = fs::remove_file(file);
        }
    }

    /// Removes leftovers of ended processes.
    pub fn remove(&self) {
        self.remove_next();
        for file in [&self.supervisor, &self.monitor, &self.checkpoints, &self.disk, &self.disk_control] {
            let _ = fs::remove_file(file);
        }
        shares::files(self).for_each(|file| drop(fs::remove_file(file)));
        let _ = fs::remove_dir(&self.memory);
        let _ = fs::remove_dir(&self.own);
    }

    /// Ends the processes that a killed supervisor has left, the VMM first, and removes their files.
    pub fn clear(&self) {
        if let Ok(mut monitor) = Monitor::connect(&self.monitor, || false, PATIENCE) {
            let _ = monitor.quit();
        }
        let shares = (0..SHARES_MAX).map(|number| self.share_control(number));
        for socket in [self.disk_control.clone(), self.memory_control.clone()].into_iter().chain(shares) {
            end_server(&socket);
        }
        self.remove();
    }
}

/// Terminates the server with this control socket and waits for its end; kills it after a time-out.
fn end_server(control: &Path) {
    let Ok(stream) = UnixStream::connect(control) else { return };
    // The kernel supplies the peer's credentials, so that a hung server, which still holds locks, can be
    // killed.
    let Ok(listener) = socket::peer(stream.as_fd()) else { return };
    let pid = listener.pid.unsigned_abs();
    let Ok(watched) = process::watched(pid) else { return };
    let _ = process::terminate(pid);
    if packet::wait_for(&watched, PATIENCE).is_ok_and(|has_ended| !has_ended) {
        // The server leads a process group with its helpers.
        let _ = process::kill_group(pid).or_else(|_| process::kill(pid));
        let _ = packet::wait(&watched);
    }
}
