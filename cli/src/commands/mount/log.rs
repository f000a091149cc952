//! Log file of a background mount, in the state directory: new for each mount, with the previous one as
//! `log.old`.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tombolo_host_service::state_dir::{ServerState, StateDir, StateError};

use super::Mount;

/// File names of the current and of the previous log.
const NAME: &str = "log";
const PREVIOUS: &str = "log.old";

/// Log of a mount; owns the mount's state directory.
pub struct Log {
    path: PathBuf,
    file: File,
    state: Option<ServerState>,
}

impl Log {
    /// Creates the log; falls back to /dev/null.
    pub fn open(mount: &Mount) -> io::Result<Self> {
        let in_state = state(mount).and_then(|state| {
            let path = state.path().join(NAME);
            let file = fresh(&path).map_err(|source| StateError::Io { path: path.clone(), source })?;
            Ok(Self { path, file, state: Some(state) })
        });
        in_state.or_else(|error| {
            tracing::warn!(%error, "cannot create the log");
            let path = PathBuf::from("/dev/null");
            Ok(Self { file: append(&path)?, path, state: None })
        })
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    /// Ends the log; an empty one is removed, with the previous one.
    pub fn end(self) {
        let is_empty = self.file.metadata().is_ok_and(|log| log.len() == 0);
        if let Some(state) = self.state.filter(|_| is_empty) {
            state.remove(&[NAME, PREVIOUS]);
        }
    }

    /// Returns the path of the log, which servers open for appending; /dev/null if the log could not be
    /// created.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

pub fn append(path: &Path) -> io::Result<File> {
    File::options().append(true).open(path)
}

/// Time for the supervisor of a just-ended mount to exit.
const END_TIMEOUT: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

fn state(mount: &Mount) -> Result<ServerState, StateError> {
    let state = StateDir::open(&StateDir::default_path()?)?;
    let name = format!("mount-{}", mount.point.word(NAME_BYTES_MAX));
    let end = Instant::now() + END_TIMEOUT;
    loop {
        match state.server(&name) {
            Err(StateError::InUse { .. }) if Instant::now() < end => std::thread::sleep(POLL_INTERVAL),
            outcome => return outcome,
        }
    }
}

/// Maximum length of the mount point in the name of the log's directory: file names have at most 255 bytes.
const NAME_BYTES_MAX: usize = 200;

fn fresh(path: &Path) -> io::Result<File> {
    match fs::rename(path, path.with_file_name(PREVIOUS)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    File::options().create_new(true).append(true).mode(0o600).open(path)
}
