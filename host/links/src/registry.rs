//! Registry of the link servers on this host and their exports. A server announces itself in a [`Directory`];
//! programs that list servers read it, and remove the entries of dead ones.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use thiserror::Error;
use tombolo_shm::link::Health;
use tombolo_sys::{creds, random};

/// Description of a running server, as other processes find it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Announcement {
    /// Name of the server, for users; several servers may have the same one.
    pub name: String,
    /// Process id.
    pub pid: u32,
    /// Start time, in seconds since 1970.
    pub since_secs: u64,
    /// Names of the server's exports.
    pub exports: Vec<String>,
    /// Locations to connect to, as users write them: `shm:SOCKET/NAME` and similar.
    pub places: Vec<String>,
    /// Clients that have links.
    pub guests: Vec<GuestEntry>,
}

/// A client that has a link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestEntry {
    /// Name of the client, for users.
    pub label: String,
    /// Export in use.
    pub export: String,
    /// Time at which the link was made, in seconds since 1970.
    pub since_secs: u64,
    /// State of the client's heartbeat: "well", "late" or "lost".
    pub health: String,
    /// Time since the client's last heartbeat in milliseconds; 0 while the heartbeat is well.
    #[serde(default)]
    pub silence_ms: u64,
    /// Number of requests answered.
    #[serde(default)]
    pub answers: u64,
    /// Number of requests not answered yet.
    #[serde(default)]
    pub in_flight: u64,
    /// Number of times that the server's thread for this link slept.
    #[serde(default)]
    pub sleeps: u64,
    /// Number of times that the server woke a sleeping client.
    #[serde(default)]
    pub rings: u64,
}

/// A registry in which servers announce themselves, for other processes to find them.
pub trait Registry: Send + Sync {
    /// Registers a server until the registration is dropped or the process ends.
    fn announce(&self, announcement: &Announcement) -> Result<Box<dyn Registration>, RegistryError>;

    /// Returns all live servers, ordered by name.
    fn list(&self) -> Result<Vec<Announcement>, RegistryError>;
}

/// A server's registration. Dropping it removes the server.
pub trait Registration: Send {
    /// Replaces the announcement.
    fn update(&mut self, announcement: &Announcement) -> Result<(), RegistryError>;
}

/// Reason why a registry cannot be read or written.
#[derive(Debug, Error)]
pub enum RegistryError {
    /// The path names no directory, or one that belongs to another user or is writable by other users.
    #[error("{}: must be a directory of user {uid} that no other user can write to", path.display())]
    Unsafe {
        /// The directory.
        path: PathBuf,
        /// Required owner.
        uid: u32,
    },
    /// A system call failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// System error.
        #[source]
        source: io::Error,
    },
}

/// Registry of one host: a directory with two files for each server. `ID.lock` is locked for as long as the
/// server lives, however it ends; `ID.json` contains its announcement, and is replaced atomically. Process
/// ids are informational: they may be reused, so they are never checked for liveness.
#[derive(Debug, Clone)]
pub struct Directory {
    path: PathBuf,
}

/// Maximum number of bytes read of an announcement.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Names of an entry's files, in the order of removal. The lock file is the last, because a reader that
/// removes a dead entry finds the entry by its lock file.
const FILES: [fn(&str) -> String; 4] = [data_name, new_data_name, new_lock_name, lock_name];
/// Age up to which an unlocked lock file under its temporary name is preserved: it may be about to be locked.
const BEING_MADE: Duration = Duration::from_secs(60);

fn lock_name(id: &str) -> String {
    format!("{id}.lock")
}

fn data_name(id: &str) -> String {
    format!("{id}.json")
}

/// Returns the lock file's temporary name.
fn new_lock_name(id: &str) -> String {
    format!(".{id}")
}

/// Returns the data file's temporary name.
fn new_data_name(id: &str) -> String {
    format!(".{id}.new")
}

impl Directory {
    /// Opens the registry in a directory. A missing directory is created, without access for other users; one
    /// that belongs to another user, or is writable by others, is refused.
    pub fn open(path: &Path) -> Result<Directory, RegistryError> {
        let io = |source| RegistryError::Io { path: path.to_owned(), source };
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(io)?;
        let metadata = fs::symlink_metadata(path).map_err(io)?;
        let (uid, _) = creds::own_ids();
        if !metadata.is_dir() || metadata.uid() != uid || metadata.mode() & 0o022 != 0 {
            return Err(RegistryError::Unsafe { path: path.to_owned(), uid });
        }
        Ok(Directory { path: path.to_owned() })
    }

    fn io(&self, name: &str) -> impl Fn(io::Error) -> RegistryError {
        let path = self.path.join(name);
        move |source| RegistryError::Io { path: path.clone(), source }
    }

    /// Returns the announcement of a live server. Removes the files of a dead one, and returns `None`.
    fn check(&self, id: &str) -> io::Result<Option<Announcement>> {
        if is_dead(&File::open(self.path.join(lock_name(id)))?)? {
            self.remove(id)?;
            return Ok(None);
        }
        let mut text = String::new();
        File::open(self.path.join(data_name(id)))?.take(FILE_BYTES_MAX).read_to_string(&mut text)?;
        serde_json::from_str(&text).map(Some).map_err(io::Error::from)
    }

    /// Removes the remains of a server that died before its lock file was named.
    fn clear(&self, id: &str) -> io::Result<()> {
        let lock = File::open(self.path.join(new_lock_name(id)))?;
        let age = SystemTime::now().duration_since(lock.metadata()?.modified()?).unwrap_or_default();
        if age > BEING_MADE && is_dead(&lock)? { self.remove(id) } else { Ok(()) }
    }

    /// Removes all existing files of an entry.
    fn remove(&self, id: &str) -> io::Result<()> {
        for name in FILES {
            match fs::remove_file(self.path.join(name(id))) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Returns `true` if no server has the lock. The result `true` is final: a server locks its file once, before
/// the file gets its name, and ids are not reused. Readers lock shared, so none takes another for a server.
fn is_dead(lock: &File) -> io::Result<bool> {
    match lock.try_lock_shared() {
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
        Ok(()) => Ok(true),
    }
}

impl Registry for Directory {
    fn announce(&self, announcement: &Announcement) -> Result<Box<dyn Registration>, RegistryError> {
        let mut bytes = [0; 8];
        random::fill(&mut bytes).map_err(|error| self.io("")(error.into()))?;
        let id = format!("{:016x}", u64::from_le_bytes(bytes));
        let (hidden, lock_name) = (new_lock_name(&id), lock_name(&id));
        // The lock file gets its final name only once it is locked: until then the server would be considered
        // dead.
        let lock = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(self.path.join(&hidden))
            .map_err(self.io(&hidden))?;
        // From now on dropping the entry removes its files.
        let mut entry = DirectoryRegistration { directory: self.clone(), id, lock };
        entry.lock.try_lock().map_err(|error| self.io(&hidden)(error.into()))?;
        entry.update(announcement)?;
        fs::rename(self.path.join(&hidden), self.path.join(&lock_name)).map_err(self.io(&lock_name))?;
        Ok(Box::new(entry))
    }

    fn list(&self) -> Result<Vec<Announcement>, RegistryError> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(self.io(""))? {
            let name = entry.map_err(self.io(""))?.file_name();
            let Some(name) = name.to_str() else { continue };
            let (id, outcome) = match (name.strip_suffix(".lock"), name.strip_prefix('.')) {
                (Some(id), _) => (id, self.check(id)),
                (None, Some(id)) if !id.contains('.') => (id, self.clear(id).map(|()| None)),
                _ => continue,
            };
            match outcome {
                Ok(announcement) => found.extend(announcement),
                // The server ended meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => tracing::warn!(%error, id, "a server's entry cannot be read"),
            }
        }
        found.sort_by(|one, other| (&one.name, one.pid).cmp(&(&other.name, other.pid)));
        Ok(found)
    }
}

struct DirectoryRegistration {
    directory: Directory,
    id: String,
    /// Lock file, locked as long as it is open.
    lock: File,
}

impl Registration for DirectoryRegistration {
    fn update(&mut self, announcement: &Announcement) -> Result<(), RegistryError> {
        let name = data_name(&self.id);
        let io = self.directory.io(&name);
        let text = serde_json::to_vec(announcement).map_err(|error| io(error.into()))?;
        let new = self.directory.path.join(new_data_name(&self.id));
        let write = || {
            let mut file =
                OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
            file.write_all(&text)?;
            fs::rename(&new, self.directory.path.join(&name))
        };
        write().map_err(|error| {
            // The disk may be full; the previous announcement stays valid.
            let _ = fs::remove_file(&new);
            io(error)
        })
    }
}

impl Drop for DirectoryRegistration {
    fn drop(&mut self) {
        // The next reader removes leftovers.
        let _ = self.directory.remove(&self.id);
    }
}

impl Announcement {
    /// Returns an announcement of this process, started now.
    pub fn of_this_process(name: &str) -> Announcement {
        Announcement {
            name: name.into(),
            pid: std::process::id(),
            since_secs: secs(SystemTime::now()),
            exports: Vec::new(),
            places: Vec::new(),
            guests: Vec::new(),
        }
    }
}

impl From<super::listen::Guest> for GuestEntry {
    fn from(guest: super::listen::Guest) -> GuestEntry {
        let health = match guest.health {
            Health::Well => "well",
            Health::Late => "late",
            Health::Lost => "lost",
        };
        let counts = guest.counts.unwrap_or_default();
        // Silence is normal between two beats, so it is reported only once the heartbeat is late.
        let silence_ms = if guest.health == Health::Well { 0 } else { guest.silence.as_millis() };
        GuestEntry {
            label: guest.peer.label.to_string(),
            export: guest.peer.export,
            since_secs: secs(guest.since),
            health: health.into(),
            silence_ms: u64::try_from(silence_ms).unwrap_or(u64::MAX),
            answers: counts.answers,
            in_flight: counts.in_flight,
            sleeps: counts.sleeps,
            rings: counts.rings,
        }
    }
}

fn secs(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn servers_are_listed_while_they_live() {
        let dir = tempfile::tempdir().expect("a directory");
        let registry = Directory::open(&dir.path().join("links")).expect("a directory of its own");
        assert_eq!(registry.list().expect("a list"), []);
        let mut first = Announcement::of_this_process("src");
        first.exports.push("/src".into());
        let mut entry = registry.announce(&first).expect("announced");
        let second = Announcement::of_this_process("other");
        let other = registry.announce(&second).expect("announced");
        assert_eq!(registry.list().expect("a list"), [second.clone(), first.clone()]);
        first.exports.push("/more".into());
        entry.update(&first).expect("updated");
        drop(other);
        assert_eq!(registry.list().expect("a list"), [first]);
        drop(entry);
        assert_eq!(registry.list().expect("a list"), []);
        assert_eq!(fs::read_dir(dir.path().join("links")).expect("read").count(), 0);
    }

    #[test]
    fn the_dead_are_forgotten_and_cleared_away() {
        let dir = tempfile::tempdir().expect("a directory");
        let registry = Directory::open(dir.path()).expect("a directory");
        // Remains of a killed server: both files, and no lock. Its process id is reused.
        fs::write(dir.path().join("00.lock"), "").expect("write");
        let text = serde_json::to_string(&Announcement::of_this_process("dead")).expect("text");
        fs::write(dir.path().join("00.json"), text).expect("write");
        fs::write(dir.path().join("01.lock"), "").expect("write");
        // It was replacing its announcement.
        fs::write(dir.path().join(".00.new"), "{").expect("write");
        // One died before its lock file was named, long ago; another may be about to lock it.
        for name in [".02", ".02.new", "02.json", ".03"] {
            fs::write(dir.path().join(name), "").expect("write");
        }
        let long_ago = SystemTime::now() - 2 * BEING_MADE;
        let old = File::options().write(true).open(dir.path().join(".02")).expect("it is there");
        old.set_modified(long_ago).expect("its time");
        let _live = registry.announce(&Announcement::of_this_process("live")).expect("announced");
        let names: Vec<_> = registry.list().expect("a list").into_iter().map(|server| server.name).collect();
        assert_eq!(names, ["live"]);
        let left = fs::read_dir(dir.path()).expect("read").map(|entry| entry.expect("an entry").file_name());
        let left: Vec<_> = left.filter(|name| name.to_string_lossy().len() < 10).collect();
        assert_eq!(left, [".03"], "beside the two files of the live one");
        assert_eq!(fs::read_dir(dir.path()).expect("read").count(), 3);
    }

    #[test]
    fn a_failed_announcement_leaves_nothing_behind() {
        let dir = tempfile::tempdir().expect("a directory");
        let registry = Directory::open(dir.path()).expect("a directory");
        let live = Announcement::of_this_process("live");
        let mut entry = registry.announce(&live).expect("announced");
        // A directory in place of the file prevents the rename.
        let ids = |suffix: &str| -> Vec<String> {
            let names =
                fs::read_dir(dir.path()).expect("read").map(|entry| entry.expect("an entry").file_name());
            names.filter_map(|name| name.to_str()?.strip_suffix(suffix).map(str::to_owned)).collect()
        };
        let data = dir.path().join(data_name(&ids(".lock")[0]));
        fs::remove_file(&data).expect("removed");
        fs::create_dir(&data).expect("in its way");
        assert!(entry.update(&live).is_err());
        assert_eq!(ids(".new"), [""; 0]);
        fs::remove_dir(&data).expect("out of the way");
        drop(entry);
        assert_eq!(fs::read_dir(dir.path()).expect("read").count(), 0);
    }

    #[test]
    fn a_directory_that_others_can_write_to_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).expect("chmod");
        assert!(matches!(Directory::open(dir.path()), Err(RegistryError::Unsafe { .. })));
    }
}
