//! State directory: persistent state of servers.
//!
//! ```text
//! STATE/version        "1\n": layout version of everything below
//! STATE/NAME/          state of one server, locked while it runs
//! STATE/NAME/lock
//! STATE/NAME/source    what it serves, by which servers of one name are distinguished (`server_of`)
//! ```
//!
//! No privileges are needed. A directory of a newer version is refused and left unchanged.

use std::env;
use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use thiserror::Error;
use tombolo_sys::creds;

/// Layout version written by this program.
pub const VERSION: u32 = 1;

/// File locked by the running server.
const LOCK: &str = "lock";

/// File with the name of what a server serves.
pub const SOURCE: &str = "source";

/// Error of using a state directory.
#[derive(Debug, Error)]
pub enum StateError {
    /// Neither `$XDG_STATE_HOME` nor `$HOME` is set.
    #[error("no default state directory: neither XDG_STATE_HOME nor HOME is set")]
    NoPlace,
    /// The directory has a newer version.
    #[error("{}: written by a newer version ({found}, this program knows {VERSION})", path.display())]
    Newer {
        /// The directory.
        path: PathBuf,
        /// Version of the directory.
        found: u32,
    },
    /// The file `version` has no number, or is missing although there are other files.
    #[error("{}: not a state directory (its file `version` is malformed)", path.display())]
    NotState {
        /// The directory.
        path: PathBuf,
    },
    /// Another server of the same name is running.
    #[error("{}: in use by another server", path.display())]
    InUse {
        /// The server's directory.
        path: PathBuf,
    },
    /// The name is not a single path component.
    #[error("{name:?} is not a valid server name")]
    BadName {
        /// The name.
        name: String,
    },
    /// Creating, reading or writing failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

/// A state directory of a supported version.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
}

impl StateDir {
    /// Returns `$XDG_STATE_HOME/tombolo`; without an absolute path in that variable `/var/lib/tombolo` for
    /// root, and `~/.local/state/tombolo` for others.
    pub fn default_path() -> Result<PathBuf, StateError> {
        let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let (uid, _) = creds::own_ids();
        match (absolute("XDG_STATE_HOME"), absolute("HOME")) {
            (Some(state), _) => Ok(state.join("tombolo")),
            (None, _) if uid == 0 => Ok(PathBuf::from("/var/lib/tombolo")),
            (None, Some(home)) => Ok(home.join(".local/state/tombolo")),
            (None, None) => Err(StateError::NoPlace),
        }
    }

    /// Opens the directory at `path`, and creates it if missing (mode 0700).
    pub fn open(path: &Path) -> Result<Self, StateError> {
        make_directory(path)?;
        let _turn = locked(path)?;
        let version = path.join("version");
        match fs::read_to_string(&version) {
            Ok(text) => check_version(path, &text)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let draft = draft_of(&version);
                // A draft of the version is left by a crash before its rename.
                let foreign = |entry: io::Result<fs::DirEntry>| entry.map(|entry| entry.path() != draft);
                for entry in fs::read_dir(path).map_err(at(path))? {
                    if foreign(entry).map_err(at(path))? {
                        return Err(StateError::NotState { path: path.into() });
                    }
                }
                write_whole(&version, format!("{VERSION}\n").as_bytes())?;
            }
            Err(error) => return Err(at(&version)(error)),
        }
        Ok(Self { path: path.into() })
    }

    /// Locks the directory of the server `name` for the lifetime of the result. Creates a missing
    /// directory.
    pub fn server(&self, name: &str) -> Result<ServerState, StateError> {
        loop {
            if let Some(server) = lock_server(self.files_of(name)?)? {
                return Ok(server);
            }
        }
    }

    /// Locks the directory of the server `name`; `None` if it does not exist.
    pub fn existing(&self, name: &str) -> Result<Option<ServerState>, StateError> {
        loop {
            let files = self.existing_files(name)?;
            if !files.path.is_dir() {
                return Ok(None);
            }
            if let Some(server) = lock_server(files)? {
                return Ok(Some(server));
            }
        }
    }

    /// Locks the directory of the server of `source` with this name. If the name belongs to a server of
    /// something else, the directory is `name-2`, and so on, the same at each start.
    pub fn server_of(&self, name: &str, source: &str) -> Result<ServerState, StateError> {
        let _turn = locked(&self.path)?;
        let source = format!("{source}\n").into_bytes();
        let names =
            std::iter::once(name.to_owned()).chain((2_u32..).map(|number| format!("{name}-{number}")));
        for name in names {
            let files = self.files_of(&name)?;
            let of_another = files.read(SOURCE)?.map(|known| known != source);
            if of_another != Some(true) {
                let server = self.server(&name)?;
                if of_another.is_none() {
                    files.write(SOURCE, &source)?;
                }
                return Ok(server);
            }
        }
        Err(StateError::BadName { name: name.into() })
    }

    /// Returns the files of the server `name`, running or not. Creates a missing directory.
    pub fn files_of(&self, name: &str) -> Result<ServerFiles, StateError> {
        let files = self.existing_files(name)?;
        make_directory(&files.path)?;
        Ok(files)
    }

    /// Returns the files of the server `name` without creating a directory.
    pub fn existing_files(&self, name: &str) -> Result<ServerFiles, StateError> {
        let plain = !matches!(name, "" | "." | ".." | "version") && !name.contains(['/', '\0']);
        if !plain {
            return Err(StateError::BadName { name: name.into() });
        }
        Ok(ServerFiles { path: self.path.join(name) })
    }

    /// Returns the names of all servers with a directory.
    pub fn servers(&self) -> Result<Vec<String>, StateError> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(at(&self.path))? {
            let entry = entry.map_err(at(&self.path))?;
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                names.extend(entry.file_name().into_string());
            }
        }
        names.sort_unstable();
        Ok(names)
    }
}

/// Locks a server's directory. `None` if it was removed meanwhile.
fn lock_server(files: ServerFiles) -> Result<Option<ServerState>, StateError> {
    let lock_path = files.path.join(LOCK);
    let lock = match File::options().create(true).append(true).mode(0o600).open(&lock_path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        lock => lock.map_err(at(&lock_path))?,
    };
    match lock.try_lock() {
        Ok(()) => {
            let own = lock.metadata().map_err(at(&lock_path))?;
            let is_there = fs::metadata(&lock_path)
                .is_ok_and(|named| (named.dev(), named.ino()) == (own.dev(), own.ino()));
            Ok(is_there.then_some(ServerState { files, _lock: lock }))
        }
        Err(TryLockError::WouldBlock) => Err(StateError::InUse { path: files.path }),
        Err(TryLockError::Error(error)) => Err(at(&lock_path)(error)),
    }
}

/// A server's state, locked until dropped or the process ends.
#[derive(Debug)]
pub struct ServerState {
    files: ServerFiles,
    _lock: File,
}

impl ServerState {
    /// Returns the directory.
    pub fn path(&self) -> &Path {
        &self.files.path
    }

    /// Removes the files `names`, and the directory unless it has other files. Errors are ignored.
    pub fn remove(self, names: &[&str]) {
        // The lock is removed last: a server that starts meanwhile must not lose files of its own. A
        // remaining directory does no harm.
        for name in names.iter().chain(&[LOCK]) {
            let _ = fs::remove_file(self.files.path.join(name));
        }
        let _ = fs::remove_dir(&self.files.path);
    }

    /// Returns the server's files.
    pub fn files(&self) -> &ServerFiles {
        &self.files
    }
}

/// Small files of a server's state, read and written whole, readable only by their owner.
#[derive(Clone, Debug)]
pub struct ServerFiles {
    path: PathBuf,
}

/// Lock against changes by other processes.
#[derive(Debug)]
pub struct FilesLock {
    _directory: File,
}

impl ServerFiles {
    /// Waits for the lock on the files.
    pub fn lock(&self) -> Result<FilesLock, StateError> {
        locked(&self.path).map(|directory| FilesLock { _directory: directory })
    }

    /// Reads the file `name`; `None` if it does not exist.
    pub fn read(&self, name: &str) -> Result<Option<Vec<u8>>, StateError> {
        let path = self.path.join(name);
        match fs::read(&path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(at(&path)(error)),
        }
    }

    /// Replaces the content of the file `name` atomically and durably.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<(), StateError> {
        write_whole(&self.path.join(name), bytes)
    }
}

fn at(path: &Path) -> impl Fn(io::Error) -> StateError {
    move |source| StateError::Io { path: path.to_owned(), source }
}

/// Creates a directory and its parents durably.
fn make_directory(path: &Path) -> Result<(), StateError> {
    let missing: Vec<_> = path.ancestors().take_while(|dir| !dir.exists()).collect();
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(at(path))?;
    missing.into_iter().try_for_each(|made| {
        let above = made.parent().filter(|above| !above.as_os_str().is_empty());
        let above = above.unwrap_or(Path::new("."));
        File::open(above).and_then(|above| above.sync_all()).map_err(at(above))
    })
}

/// Locks the directory itself, so that no lock file remains.
fn locked(path: &Path) -> Result<File, StateError> {
    let directory = File::open(path).map_err(at(path))?;
    directory.lock().map_err(at(path))?;
    Ok(directory)
}

fn check_version(path: &Path, text: &str) -> Result<(), StateError> {
    match text.trim_end().parse() {
        Ok(VERSION) => Ok(()),
        Ok(found) if found > VERSION => Err(StateError::Newer { path: path.into(), found }),
        _ => Err(StateError::NotState { path: path.into() }),
    }
}

fn draft_of(path: &Path) -> PathBuf {
    path.with_extension("new")
}

/// Writes a file atomically and durably.
fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), StateError> {
    let draft = draft_of(path);
    let mut file = locked_draft(&draft).map_err(at(&draft))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(at(&draft))?;
    fs::rename(&draft, path).map_err(at(path))?;
    let directory = path.parent().unwrap_or(Path::new("/"));
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(at(directory))
}

/// Opens an empty draft and locks it, so that processes that write one file do so in turn.
fn locked_draft(draft: &Path) -> io::Result<File> {
    loop {
        let file = File::options().write(true).create(true).truncate(false).mode(0o600).open(draft)?;
        file.lock()?;
        let opened = file.metadata()?;
        // If the name leads to another file, or to none, the process that had the lock has renamed its draft.
        if fs::metadata(draft).is_ok_and(|named| (named.dev(), named.ino()) == (opened.dev(), opened.ino())) {
            file.set_len(0)?;
            return Ok(file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn concurrent_writers_of_a_file_all_succeed() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("phase");
        std::thread::scope(|scope| {
            for word in ["running", "off"] {
                let path = &path;
                scope.spawn(move || {
                    (0..100).for_each(|_| write_whole(path, word.as_bytes()).expect("written"));
                });
            }
        });
        assert!(matches!(&*fs::read_to_string(&path).expect("read"), "running" | "off"));
        assert!(!draft_of(&path).exists());
    }

    #[test]
    fn a_new_directory_has_a_version_and_opens_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("deep/state");
        fs::create_dir_all(&path).expect("mkdir");
        fs::write(path.join("version.new"), "").expect("the trace of a crash");
        StateDir::open(&path).expect("new");
        assert_eq!(fs::read_to_string(path.join("version")).expect("version"), "1\n");
        StateDir::open(&path).expect("again");
        assert_eq!(fs::read_dir(&path).expect("list").count(), 1);
    }

    #[test]
    fn a_look_at_what_is_not_there_makes_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let state = StateDir::open(dir.path()).expect("new");
        assert!(state.existing("none").expect("no failure").is_none());
        assert_eq!(state.existing_files("none").expect("a name").read("keys").expect("no failure"), None);
        assert!(!dir.path().join("none").exists());
        drop(state.server("one").expect("made"));
        let held = state.existing("one").expect("no failure").expect("there");
        assert!(matches!(state.existing("one"), Err(StateError::InUse { .. })));
        drop(held);
    }

    #[test]
    fn newer_or_foreign_state_directory_is_refused_unchanged() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("version"), "2\n").expect("write");
        assert!(matches!(StateDir::open(dir.path()), Err(StateError::Newer { found: 2, .. })));
        fs::write(dir.path().join("version"), "banana").expect("write");
        assert!(matches!(StateDir::open(dir.path()), Err(StateError::NotState { .. })));
        fs::rename(dir.path().join("version"), dir.path().join("thesis.tex")).expect("rename");
        assert!(matches!(StateDir::open(dir.path()), Err(StateError::NotState { .. })));
        assert_eq!(fs::read_dir(dir.path()).expect("list").count(), 1);
    }

    #[test]
    fn server_files_are_private_and_replaced_atomically() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().expect("a directory");
        let state = StateDir::open(&dir.path().join("s")).expect("open");
        let server = state.server("src").expect("a server");
        let files = server.files();
        assert_eq!(files.read("keys").expect("read"), None);
        files.write("keys", b"one").expect("write");
        // Also while the server runs, and by another process.
        let others = state.files_of("src").expect("files");
        let lock = others.lock().expect("the lock");
        others.write("keys", b"two").expect("write");
        drop(lock);
        assert_eq!(files.read("keys").expect("read").as_deref(), Some(&b"two"[..]));
        let mode = |name: &str| server.path().join(name).metadata().expect("stat").permissions().mode();
        assert_eq!((mode("keys") & 0o777, mode("lock") & 0o777), (0o600, 0o600));
        assert_eq!(state.servers().expect("names"), ["src"]);
        assert!(matches!(state.files_of("a/b"), Err(StateError::BadName { .. })));
    }

    #[test]
    fn servers_of_different_sources_with_one_name_stay_apart() {
        let dir = tempfile::tempdir().expect("a directory");
        let state = StateDir::open(&dir.path().join("s")).expect("open");
        // Left by an older version.
        state.files_of("src").expect("files").write("keys", b"old").expect("write");
        let path = |source: &str| {
            let server = state.server_of("src", source)?;
            Ok::<_, StateError>((server.path().file_name().expect("a name").to_owned(), server))
        };
        let (one, running) = path("/a/src").expect("free");
        let (two, other) = path("/b/src").expect("a name of its own");
        assert_eq!((one.to_str(), two.to_str()), (Some("src"), Some("src-2")));
        assert_eq!(running.files().read("keys").expect("read").as_deref(), Some(&b"old"[..]));
        assert!(matches!(path("/b/src"), Err(StateError::InUse { .. })));
        drop((running, other));
        assert_eq!(path("/b/src").expect("again").0, "src-2");
        assert_eq!(path("/a/src").expect("again").0, "src");
    }

    #[test]
    fn one_server_of_a_name_runs_at_a_time() {
        let dir = tempfile::tempdir().expect("a directory");
        let state = StateDir::open(&dir.path().join("s")).expect("open");
        let first = state.server("src").expect("first");
        assert!(matches!(state.server("src"), Err(StateError::InUse { .. })));
        state.server("other").expect("another name");
        drop(first);
        state.server("src").expect("after it ended");
        for name in ["", "..", "a/b", "version"] {
            assert!(matches!(state.server(name), Err(StateError::BadName { .. })), "{name:?}");
        }
    }
}
