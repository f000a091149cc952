//! Where a VM lies: its directory, which outlives it, and one for its sockets.

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
use tombolo_sys::{fuse_dev, packet, process, socket};

use super::config::{CONFIG, Config, HERE, Here, uuid};
use super::shares;
use super::supervisor::log_of;
use crate::assembly::plan::overlay::sync_name;
use crate::commands::files::shown;
use crate::failure::{Failure, Outcome};

/// What the names of VMs begin with in the state directory, where servers have theirs.
const PREFIX: &str = "vm-";

/// Beside the log of a VM that has never started, which goes with it.
pub const UNSTARTED: &str = "unstarted";

/// What the names of directories begin with that were VMs.
const REMOVED: &str = ".removed-vm-";

/// How a VM stands. The file that says so changes as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// There is none yet: what makes the VM was not finished.
    Incomplete,
    /// Device state, memory and disk are of one moment.
    Suspended,
    /// It runs, or died.
    Running,
    /// It has ended. Of its memory nothing is left.
    Off,
    /// It ended, and not all that it wrote is known to be on its disk.
    Failed(String),
}

const PHASE: &str = "phase";

/// A VM's directory.
pub struct Home {
    pub name: String,
    pub path: PathBuf,
    state: StateDir,
    files: ServerFiles,
}

fn failed(error: &StateError) -> Failure {
    Failure::cannot("use the state directory", error)
}

fn state_dir() -> Result<(StateDir, PathBuf), Failure> {
    // What answers in a directory that another user has made first may be that user's.
    control::prepare(&control::default_directory())
        .map_err(|error| Failure::cannot("use the directory of sockets", &error))?;
    let path = StateDir::default_path().map_err(|error| failed(&error))?;
    Ok((StateDir::open(&path).map_err(|error| failed(&error))?, path))
}

/// A name that also is one of files, sockets and guests.
pub fn checked_name(text: &str) -> Result<String, String> {
    let is_good = text.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
    if is_good && text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.len() <= 40 {
        Ok(text.into())
    } else {
        Err("up to 40 letters, digits, `.`, `_` and `-`, the first a letter or a digit".into())
    }
}

fn none_of_that_name(name: &str) -> Failure {
    Failure::cannot(format_args!("find the VM {name}"), "there is none of that name")
        .remedy("see tombolo vm list")
}

impl Home {
    /// Of a VM that is there, whole or not.
    pub fn of(name: &str) -> Result<Self, Failure> {
        let (state, path) = state_dir()?;
        let path = path.join(format!("{PREFIX}{name}"));
        if !path.is_dir() {
            return Err(none_of_that_name(name));
        }
        Self::at(state, &path, name)
    }

    /// Makes one for a VM that is not there yet.
    pub fn create(name: &str) -> Result<Self, Failure> {
        let (state, path) = state_dir()?;
        let path = path.join(format!("{PREFIX}{name}"));
        let made = fs::DirBuilder::new().mode(0o700).create(&path).and_then(|()| sync_name(&path));
        made.map_err(|error| {
            let making = format!("make the VM {name}");
            if error.kind() != io::ErrorKind::AlreadyExists {
                return Failure::cannot(making, &error);
            }
            Failure::cannot(making, "there is one already")
                .remedy(format_args!("choose another name, or remove it: tombolo vm rm {name}"))
        })?;
        let home = Self::at(state, &path, name)?;
        home.files.write(UNSTARTED, b"").map_err(|error| failed(&error))?;
        Ok(home)
    }

    /// Says that its VMM has taken it up, so that it is kept whatever comes.
    pub fn has_started(&self) {
        // One that is left costs a log of which only the end is shown.
        let _ = fs::remove_file(self.file(UNSTARTED));
    }

    /// Returns a failure to start it. One that has never started is removed: nothing is in it but what the
    /// command that made it can make again.
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
        // What lies in it is opened over no links, as are images.
        let path = path
            .canonicalize()
            .map_err(|error| Failure::cannot(format_args!("find {}", path.display()), &error))?;
        let files = state.existing_files(&format!("{PREFIX}{name}")).map_err(|error| failed(&error))?;
        Ok(Self { name: name.into(), path, state, files })
    }

    /// Removes it, in one step for all other commands. The caller has it locked, or has just made it.
    pub fn remove(&self) -> Outcome {
        let removing = format!("remove {}", self.path.display());
        let cannot = |error: io::Error| Failure::cannot(&removing, &error);
        let dir = self.path.parent().unwrap_or(Path::new("/"));
        fs::rename(&self.path, dir.join(format!("{REMOVED}{}", uuid()?)))
            .and_then(|()| sync_name(&self.path))
            .map_err(cannot)?;
        // And what an earlier removal has left that was killed.
        for entry in fs::read_dir(dir).map_err(cannot)? {
            let entry = entry.map_err(cannot)?;
            if entry.file_name().to_string_lossy().starts_with(REMOVED)
                && let Err(error) = fs::remove_dir_all(entry.path())
                && entry.path().exists()
            {
                return Err(cannot(error));
            }
        }
        Ok(())
    }

    /// All that are there.
    pub fn all() -> Result<Vec<Self>, Failure> {
        let (state, _) = state_dir()?;
        let names = state.servers().map_err(|error| failed(&error))?;
        let names = names.iter().filter_map(|name| name.strip_prefix(PREFIX));
        // One that another command removes meanwhile is not there.
        Ok(names.filter_map(|name| Self::of(name).ok()).collect())
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The directory as ours alone, as long as the result lives. `None` while the VM runs.
    pub fn lock(&self) -> Result<Option<ServerState>, Failure> {
        match self.state.existing(&format!("{PREFIX}{}", self.name)) {
            Ok(Some(state)) => Ok(Some(state)),
            Ok(None) => Err(none_of_that_name(&self.name)),
            Err(StateError::InUse { .. }) => Ok(None),
            Err(error) => Err(failed(&error)),
        }
    }

    /// The same, and a failure while it runs.
    pub fn locked(&self) -> Result<ServerState, Failure> {
        let running = || {
            Failure::cannot(format_args!("change the VM {}", self.name), "it runs")
                .remedy(format_args!("first tombolo vm suspend {0}, or tombolo vm stop {0}", self.name))
        };
        self.lock_within(GLANCE)?.ok_or_else(running)
    }

    /// Waits for the end of what runs it. `None` if it runs longer.
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
        let text = self.files.read(PHASE).map_err(|error| failed(&error))?;
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
        self.files.write(PHASE, format!("{text}\n").as_bytes()).map_err(|error| failed(&error))
    }

    pub fn write<T: Serialize>(&self, name: &str, content: &T) -> Outcome {
        let text = toml::to_string(content).map_err(|error| Failure::cannot("write down the VM", &error))?;
        self.files.write(name, text.as_bytes()).map_err(|error| failed(&error))
    }

    fn text(&self, name: &str) -> Result<String, Failure> {
        let (path, mut text) = (self.file(name), String::new());
        let read = fs::File::open(&path).and_then(|file| file.take(TEXT_BYTES_MAX).read_to_string(&mut text));
        read.map_err(|error| Failure::cannot(format_args!("read {}", path.display()), &error))?;
        Ok(text)
    }

    /// Adds a line to its log, with the time: what a command has done with the guest, of which the process
    /// that watches it does not know.
    pub fn note(&self, step: &str) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let at =
            shown::exact_time(Timestamp { secs: since.as_secs().cast_signed(), nanos: since.subsec_nanos() });
        let line = format!("{at} {step}\n");
        // It is not what the guest waits for.
        let _ = fs::File::options()
            .append(true)
            .open(log_of(self))
            .and_then(|mut log| log.write_all(line.as_bytes()));
    }

    pub fn config(&self) -> Result<Config, Failure> {
        self.config_of(&self.file(CONFIG))
    }

    /// Returns the same, copied from this file, which is what a failure names: the VM of an image that cannot
    /// be used is removed.
    pub fn config_of(&self, origin: &Path) -> Result<Config, Failure> {
        Config::read(&self.text(CONFIG)?, origin)
    }

    pub fn here(&self) -> Result<Here, Failure> {
        self.toml(HERE)
    }

    pub fn toml<T: DeserializeOwned>(&self, name: &str) -> Result<T, Failure> {
        let path = self.file(name);
        toml::from_str(&self.text(name)?)
            .map_err(|error| Failure::cannot(format_args!("use {}", path.display()), &error))
    }

    /// Where its sockets are while it runs: where the session that started it has them, whichever asks.
    pub fn run(&self) -> Run {
        let written = fs::read_to_string(self.file(RUN)).ok().map(PathBuf::from);
        // What answers in a directory of another user may be that user's.
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

    /// The same, for the process that runs it from now on, in its own session.
    pub fn make_run(&self) -> Result<Run, Failure> {
        let usual = control::default_directory();
        let usual = usual
            .to_str()
            .ok_or_else(|| Failure::cannot("use the directory of sockets", "it has no name in UTF-8"))?;
        self.files.write(RUN, usual.as_bytes()).map_err(|error| failed(&error))?;
        let run = self.run();
        run.make().map_err(|error| Failure::cannot(format_args!("make {}", run.own.display()), &error))?;
        Ok(run)
    }
}

/// The directory of sockets in which its own is.
const RUN: &str = "run";

/// The process that watches it. It is found also when the directory of sockets went with the session that
/// made it.
const PID: &str = "pid";

/// The places of a VM that runs.
pub struct Run {
    own: PathBuf,
    /// What has the process that watches it: as long as that has the lock, and it may be another one's
    /// afterwards.
    supervisor: PathBuf,
    pub monitor: PathBuf,
    /// The monitor of a VMM that waits to take the guest over.
    pub next_monitor: PathBuf,
    /// The disk's socket.
    pub disk: PathBuf,
    /// Where its memory is mounted, if that is an overlay.
    pub memory: PathBuf,
    /// Where the process that watches it makes checkpoints.
    pub checkpoints: PathBuf,
    pub disk_control: PathBuf,
    pub memory_control: PathBuf,
}

/// `vm.toml` of a stranger may be of any length.
pub const TEXT_BYTES_MAX: u64 = 64 << 10;

/// Commands that look how a VM stands have its directory for a moment.
pub const GLANCE: Duration = Duration::from_millis(200);

const LOOK_EVERY: Duration = Duration::from_millis(5);

/// For what is left of a VM whose supervisor was killed, which was asked to end then.
const PATIENCE: Duration = Duration::from_secs(4);

impl Run {
    /// Makes them, for this process.
    fn make(&self) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.memory)?;
        fs::write(&self.supervisor, std::process::id().to_string())
    }

    /// Has the process that watches it end it.
    pub fn stop(&self) -> io::Result<()> {
        Ok(process::terminate(self.supervisor()?)?)
    }

    /// Kills the process that watches it, and with that the VMM.
    pub fn kill(&self) -> io::Result<()> {
        Ok(process::kill(self.supervisor()?)?)
    }

    /// A file as the process that watches it sees it.
    pub fn in_its_namespace(&self, file: &Path) -> io::Result<PathBuf> {
        let root = PathBuf::from(format!("/proc/{}/root", self.supervisor()?));
        Ok(root.join(file.strip_prefix("/").map_err(io::Error::other)?))
    }

    fn supervisor(&self) -> io::Result<u32> {
        fs::read_to_string(&self.supervisor)?.parse().map_err(io::Error::other)
    }

    /// The socket of the server of a share, as they are numbered.
    pub fn share(&self, number: usize) -> PathBuf {
        self.own.join(format!("share-{number}"))
    }

    /// The control socket of that server.
    pub fn share_control(&self, number: usize) -> PathBuf {
        self.own.join(format!("share-{number}.sock"))
    }

    /// Removes what a VMM that has not taken the guest over, and its server of the memory, have left.
    pub fn remove_next(&self) {
        // Of a server that was killed.
        let _ = fuse_dev::unmount(&self.memory, true);
        for file in [&self.next_monitor, &self.memory_control] {
            let _ = fs::remove_file(file);
        }
    }

    /// Removes what those who have ended have left.
    pub fn remove(&self) {
        self.remove_next();
        for file in [&self.supervisor, &self.monitor, &self.checkpoints, &self.disk, &self.disk_control] {
            let _ = fs::remove_file(file);
        }
        shares::files(self).for_each(|file| drop(fs::remove_file(file)));
        let _ = fs::remove_dir(&self.memory);
        let _ = fs::remove_dir(&self.own);
    }

    /// Ends what a supervisor that was killed has left, in the order in which it would have.
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

/// Ends the server with this control socket, if there is one, and waits until it has. One that does not is
/// killed.
fn end_server(control: &Path) {
    let Ok(stream) = UnixStream::connect(control) else { return };
    // The kernel's answer: a server that hangs gives none, and has the lock of what the next one is to serve.
    let Ok(listener) = socket::peer(stream.as_fd()) else { return };
    let pid = listener.pid.unsigned_abs();
    let Ok(watched) = process::watched(pid) else { return };
    let _ = process::terminate(pid);
    if packet::wait_for(&watched, PATIENCE).is_ok_and(|has_ended| !has_ended) {
        // It was started as the first of a group, in which its helpers are.
        let _ = process::kill_group(pid).or_else(|_| process::kill(pid));
        let _ = packet::wait(&watched);
    }
}
