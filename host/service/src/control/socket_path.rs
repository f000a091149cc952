//! Paths of control sockets, and the private directory for them.

use std::env;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use thiserror::Error;
use tombolo_sys::{creds, socket};

use tombolo_host_runtime::listener::{ListenError, Listener};

/// Error of creating a control socket.
#[derive(Debug, Error)]
pub enum SocketPathError {
    /// The directory belongs to another user, or grants permissions to others.
    #[error("{}: it must be a directory of user {uid} that no other user can enter", path.display())]
    Unsafe {
        /// The directory.
        path: PathBuf,
        /// The required owner.
        uid: u32,
    },
    /// Creating or inspecting the directory failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The directory.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The socket cannot be created.
    #[error(transparent)]
    Listen(#[from] ListenError),
}

/// Returns `$XDG_RUNTIME_DIR/tombolo`; without an absolute path in that variable `/run/tombolo` for root, and
/// `$TMPDIR/tombolo-UID` (default `/tmp/tombolo-UID`) for others.
pub fn default_directory() -> PathBuf {
    let (uid, _) = creds::own_ids();
    match env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from) {
        Some(runtime) if runtime.is_absolute() => runtime.join("tombolo"),
        _ if uid == 0 => PathBuf::from("/run/tombolo"),
        _ => env::temp_dir().join(format!("tombolo-{uid}")),
    }
}

/// Listens on `NAME.sock` in `directory`, or on `NAME-2.sock` and so on, up to 100, if running servers use
/// those names. A missing directory is created; one that others may enter is refused.
pub fn free_socket(directory: &Path, name: &str) -> Result<Listener, SocketPathError> {
    prepare(directory)?;
    let mut last = None;
    for number in 1..=SAME_NAME_LIMIT {
        let file = if number == 1 { format!("{name}.sock") } else { format!("{name}-{number}.sock") };
        match Listener::bind(&directory.join(file), 0o600) {
            Err(error @ ListenError::Busy { .. }) => last = Some(error),
            outcome => return Ok(outcome?),
        }
    }
    Err(last.map_or_else(
        || SocketPathError::Io { path: directory.into(), source: io::Error::other("busy") },
        Into::into,
    ))
}

/// Returns the sockets in `directory` that a server listens on, by name; empty if there is no such directory.
pub fn sockets(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_socket() && socket::listens(&entry.path()).unwrap_or(false) {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

const SAME_NAME_LIMIT: u32 = 100;

/// Creates the directory if it is missing.
///
/// # Errors
/// Another user owns it or may enter it, or it cannot be created.
pub fn prepare(directory: &Path) -> Result<(), SocketPathError> {
    let io = |source| SocketPathError::Io { path: directory.to_owned(), source };
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(io(error)),
        _ => {}
    }
    // In /tmp another user may have created the directory first.
    let (uid, _) = creds::own_ids();
    let metadata = fs::symlink_metadata(directory).map_err(io)?;
    let private = metadata.is_dir() && metadata.uid() == uid && metadata.permissions().mode() & 0o077 == 0;
    if private { Ok(()) } else { Err(SocketPathError::Unsafe { path: directory.to_owned(), uid }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_server_of_a_name_gets_next_socket() {
        let dir = tempfile::tempdir().expect("a directory");
        let place = dir.path().join("tombolo");
        let first = free_socket(&place, "src").expect("first");
        let second = free_socket(&place, "src").expect("second");
        assert_eq!(sockets(&place).expect("list"), [second.path(), first.path()]);
        assert!(second.path().ends_with("src-2.sock"));
        drop((first, second));
        assert_eq!(sockets(&place).expect("list"), [] as [PathBuf; 0]);
    }

    #[test]
    fn a_directory_that_others_may_enter_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let place = dir.path().join("tombolo");
        fs::create_dir(&place).expect("mkdir");
        fs::set_permissions(&place, fs::Permissions::from_mode(0o777)).expect("chmod");
        assert!(matches!(free_socket(&place, "src"), Err(SocketPathError::Unsafe { .. })));
        std::os::unix::fs::symlink("/etc", dir.path().join("link")).expect("symlink");
        assert!(matches!(free_socket(&dir.path().join("link"), "src"), Err(SocketPathError::Unsafe { .. })));
    }
}
