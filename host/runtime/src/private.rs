//! Files and directories readable only by this process's user, whatever the umask and the permissions of the
//! parent directory.

use std::fs::{DirBuilder, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use tombolo_sys::creds;

const DIRECTORY: u32 = 0o700;
const FILE: u32 = 0o600;

/// Returns the owner of a file or directory, or `None` if it belongs to the user of this process.
///
/// # Errors
/// The file cannot be examined.
pub fn other_owner(path: &Path) -> io::Result<Option<u32>> {
    let owner = path.metadata()?.uid();
    Ok((owner != creds::own_ids().0).then_some(owner))
}

/// Creates a directory, and missing parents. An existing one is made private.
///
/// # Errors
/// The directory cannot be created or made private, or belongs to another user.
pub fn directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(DIRECTORY).create(path)?;
    make_private(&File::open(path)?, DIRECTORY)
}

/// Opens a file for reading and writing, creating it if necessary. An existing one is made private.
///
/// # Errors
/// The file cannot be opened or made private, or belongs to another user.
pub fn file(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    let file = options.read(true).write(true).create(true).truncate(false).mode(FILE).open(path)?;
    make_private(&file, FILE)?;
    Ok(file)
}

/// Creates an empty file for writing, to be renamed over another. A file that an earlier attempt has left is
/// removed.
///
/// # Errors
/// The file cannot be created.
pub fn draft(path: &Path) -> io::Result<File> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = File::options().write(true).create_new(true).mode(FILE).open(path)?;
    make_private(&file, FILE)?;
    Ok(file)
}

/// Makes a database file, which is created if necessary, and its companions (`-wal`, `-shm`, `-journal`)
/// private. SQLite gives new companions the mode of the database.
///
/// # Errors
/// One of the files cannot be opened or made private, or belongs to another user.
pub fn database(path: &Path) -> io::Result<()> {
    file(path)?;
    for suffix in ["-wal", "-shm", "-journal"] {
        let mut beside = path.as_os_str().to_owned();
        beside.push(suffix);
        match File::open(&beside) {
            Ok(open) => make_private(&open, FILE)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Restricts a file to this process's user by `mode`. Refuses another user's file.
fn make_private(open: &File, mode: u32) -> io::Result<()> {
    let about = open.metadata()?;
    if about.uid() != creds::own_ids().0 {
        let problem = format!("it belongs to user {}", about.uid());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, problem));
    }
    match about.mode() & 0o7777 {
        now if now == mode => Ok(()),
        _ => open.set_permissions(Permissions::from_mode(mode)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        path.metadata().expect("it is there").mode() & 0o7777
    }

    #[test]
    fn old_and_new_ones_are_closed_to_others() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir(at("old")).expect("made");
        std::fs::set_permissions(at("old"), Permissions::from_mode(0o755)).expect("opened to all");
        std::fs::write(at("old/db-wal"), "").expect("written");
        std::fs::set_permissions(at("old/db-wal"), Permissions::from_mode(0o644)).expect("opened to all");
        directory(&at("old")).expect("closed");
        directory(&at("new/deep")).expect("made");
        database(&at("old/db")).expect("made");
        file(&at("new/file")).expect("made");
        for _ in 0..2 {
            draft(&at("new/draft")).expect("made");
        }
        assert_eq!([mode(&at("old")), mode(&at("new")), mode(&at("new/deep"))], [DIRECTORY; 3]);
        let files = ["old/db", "old/db-wal", "new/file", "new/draft"].map(|name| mode(&at(name)));
        assert_eq!(files, [FILE; 4]);
    }

    #[test]
    fn foreign_private_directory_is_refused() {
        if creds::own_ids().0 != 0 {
            return;
        }
        let dir = tempfile::tempdir().expect("a directory");
        std::os::unix::fs::chown(dir.path(), Some(65534), None).expect("given away");
        assert_eq!(other_owner(dir.path()).expect("looked at"), Some(65534));
        assert!(directory(dir.path()).is_err());
    }
}
