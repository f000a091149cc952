//! Where a server without a terminal writes its log: a file in the state directory, fresh for each mount; the
//! one before it stays as `log.old`.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tombolo_host_service::state_dir::{ServerState, StateDir, StateError};

use super::Mount;

/// The log, and the one before it.
const NAME: &str = "log";
const BEFORE: &str = "log.old";

/// The log of a mount. The state directory of that name is ours while it lives.
pub struct Log {
    path: PathBuf,
    file: File,
    state: Option<ServerState>,
}

impl Log {
    /// Begins a log; nowhere, if there is no place for it.
    pub fn open(mount: &Mount) -> io::Result<Self> {
        let in_state = state(mount).and_then(|state| {
            let path = state.path().join(NAME);
            let file = fresh(&path).map_err(|source| StateError::Io { path: path.clone(), source })?;
            Ok(Self { path, file, state: Some(state) })
        });
        in_state.or_else(|error| {
            tracing::warn!(%error, "there will be no log");
            let path = PathBuf::from("/dev/null");
            Ok(Self { file: append(&path)?, path, state: None })
        })
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    /// The mount has ended: of one that had nothing to say nothing is left.
    pub fn end(self) {
        let is_empty = self.file.metadata().is_ok_and(|log| log.len() == 0);
        if let Some(state) = self.state.filter(|_| is_empty) {
            state.remove(&[NAME, BEFORE]);
        }
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Opens an existing log to write on.
pub fn append(path: &Path) -> io::Result<File> {
    File::options().append(true).open(path)
}

/// The supervisor of a mount that was just ended may need a moment to be gone.
const PATIENCE: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_millis(5);

fn state(mount: &Mount) -> Result<ServerState, StateError> {
    let state = StateDir::open(&StateDir::default_path()?)?;
    let name = format!("mount-{}", mount.point.word(NAME_BYTES_MAX));
    let end = Instant::now() + PATIENCE;
    loop {
        match state.server(&name) {
            Err(StateError::InUse { .. }) if Instant::now() < end => std::thread::sleep(LOOK_EVERY),
            outcome => return outcome,
        }
    }
}

/// A file's name has 255 bytes.
const NAME_BYTES_MAX: usize = 200;

fn fresh(path: &Path) -> io::Result<File> {
    match fs::rename(path, path.with_file_name(BEFORE)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    File::options().create_new(true).append(true).mode(0o600).open(path)
}
