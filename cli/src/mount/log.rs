//! Where a server without a terminal writes its log: a file in the state directory, fresh for each mount; the one
//! before it is kept as `log.old`.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tombolo_host::state_dir::{ServerState, StateDir, StateError};

use super::Mount;

/// The log of a mount. The state directory of that name is ours while it lives.
pub struct Log {
    path: PathBuf,
    file: File,
    _state: Option<ServerState>,
}

impl Log {
    /// Begins a log; nowhere, if there is no place for it.
    pub fn open(mount: &Mount) -> io::Result<Self> {
        let in_state = state(mount).and_then(|state| {
            let path = state.path().join("log");
            let file = fresh(&path).map_err(|source| StateError::Io { path: path.clone(), source })?;
            Ok(Self { path, file, _state: Some(state) })
        });
        in_state.or_else(|error| {
            tracing::warn!(%error, "no log will be kept");
            let path = PathBuf::from("/dev/null");
            Ok(Self { file: append(&path)?, path, _state: None })
        })
    }

    /// The file, open for appending.
    pub fn file(&self) -> &File {
        &self.file
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

/// The keeper of a mount that was just ended may need a moment to be gone.
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
    match fs::rename(path, path.with_extension("old")) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    File::options().create_new(true).append(true).mode(0o600).open(path)
}
