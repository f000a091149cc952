//! The cache directory: the lock of the process that owns it, the identity of its origin (file `cache`), and
//! the allocation of object numbers (file `next-id`).

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use thiserror::Error;
use tombolo_core::fs::Volume;
use tombolo_host_runtime::private;
use tombolo_sys::lock::{LockKind, try_flock};
use tombolo_sys::random;

/// Identity of the file system that a cache caches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginIdentity {
    /// Location, as the user wrote it.
    pub location: String,
    /// Volume announced by the file system.
    pub volume: Volume,
}

/// Reason for which a cache directory cannot be used.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The directory cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// Path of the file or directory concerned.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The database cannot be used.
    #[error("{}: {source}", path.display())]
    Database {
        /// Path of the database.
        path: PathBuf,
        /// The database's error.
        #[source]
        source: rusqlite::Error,
    },
    /// Another process uses the directory.
    #[error("{}: in use by process {owner}", path.display())]
    InUse {
        /// Path of the cache directory.
        path: PathBuf,
        /// The other process, by its own statement.
        owner: String,
    },
    /// The directory belongs to another user, who could read and replace its contents.
    #[error("{}: it belongs to user {uid}, not to the user of this process", path.display())]
    OtherOwner {
        /// Path of the cache directory.
        path: PathBuf,
        /// User that owns the directory.
        uid: u32,
    },
    /// Not a cache directory, or one of a newer version. It is left unchanged.
    #[error("{}: not a cache of this version of tombolo", path.display())]
    Foreign {
        /// Path of the cache directory.
        path: PathBuf,
    },
    /// The cache is of an origin at another location.
    #[error("{}: a cache of {location}", path.display())]
    OtherOrigin {
        /// Path of the cache directory.
        path: PathBuf,
        /// Location of the cache's origin.
        location: String,
    },
    /// The file system at this location is another than the one cached.
    #[error("{}: a cache of another file system, formerly at {location}", path.display())]
    OtherVolume {
        /// Path of the cache directory.
        path: PathBuf,
        /// Location of the cached file system and of the present one.
        location: String,
    },
}

/// A cache directory that this process owns.
#[derive(Debug)]
pub(super) struct Directory {
    pub path: PathBuf,
    /// Volume of the handles that this cache issues, chosen at random when the directory was created.
    pub volume: Volume,
    /// Location of the origin.
    pub location: String,
    /// The lock file, locked until it is closed.
    _owner: File,
}

const VERSION_LINE: &str = "tombolo cache, version 1";

impl Directory {
    /// Opens and locks the directory, creating it for a given origin. `None` accepts an existing cache of any
    /// origin.
    pub(super) fn open(path: &Path, origin: Option<&OriginIdentity>) -> Result<Self, OpenError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| OpenError::Io { path, source }
        };
        let objects = path.join("objects");
        if origin.is_some() && !path.exists() {
            private::directory(path).map_err(failed(path))?;
        }
        if let Some(uid) = private::other_owner(path).map_err(failed(path))? {
            return Err(OpenError::OtherOwner { path: path.to_owned(), uid });
        }
        if origin.is_some() {
            private::directory(&objects).map_err(failed(&objects))?;
        }
        let owner = Self::take(path)?;
        let about = path.join("cache");
        let text = match fs::read_to_string(&about) {
            Ok(text) => {
                // A file of an earlier version may be readable by all, so its mode is restricted.
                private::file(&about).map_err(failed(&about))?;
                text
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound && origin.is_some() => {
                let text = origin.map(described).unwrap_or_default();
                let next = path.join("next-id");
                replace(&next, next_id(FIRST_ID).as_bytes()).map_err(failed(&next))?;
                replace(&about, text.as_bytes()).map_err(failed(&about))?;
                // The name of the directory is synced too: if it were lost, object numbers would be reused.
                File::open(path.join("..")).and_then(|above| above.sync_all()).map_err(failed(path))?;
                text
            }
            Err(error) => return Err(failed(&about)(error)),
        };
        let foreign = || OpenError::Foreign { path: path.to_owned() };
        let about = About::read(&text).ok_or_else(foreign)?;
        let location = about.location.clone();
        if let Some(origin) = origin {
            if about.location != origin.location {
                return Err(OpenError::OtherOrigin { path: path.to_owned(), location });
            }
            if about.origin != origin.volume {
                return Err(OpenError::OtherVolume { path: path.to_owned(), location });
            }
        }
        Ok(Self { path: path.to_owned(), volume: about.volume, location, _owner: owner })
    }

    fn take(path: &Path) -> Result<File, OpenError> {
        let lock = path.join("lock");
        let failed = |source| OpenError::Io { path: lock.clone(), source };
        let mut owner = private::file(&lock).map_err(failed)?;
        match try_flock(owner.as_fd(), LockKind::Exclusive) {
            Ok(()) => {}
            Err(tombolo_sys::Errno::AGAIN) => {
                let owner = fs::read_to_string(&lock).unwrap_or_default().trim().to_owned();
                return Err(OpenError::InUse { path: path.to_owned(), owner });
            }
            Err(error) => return Err(failed(error.into())),
        }
        let pid = format!("{}\n", std::process::id());
        owner.set_len(0).and_then(|()| owner.write_all(pid.as_bytes())).map_err(failed)?;
        Ok(owner)
    }

    /// Reserves `count` object numbers, durably, and returns the first.
    pub(super) fn reserve_ids(&self, count: u64) -> io::Result<u64> {
        let path = self.path.join("next-id");
        let next = match fs::read(&path) {
            Ok(text) => read_next_id(&String::from_utf8_lossy(&text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        // If the file is damaged or missing, continue from a random number, so that none is used twice.
        let next = next.map_or_else(random_start, Ok)?;
        replace(&path, next_id(next + count).as_bytes())?;
        Ok(next)
    }
}

/// First number after the root's.
const FIRST_ID: u64 = 2;

/// Encodes the next number with a checksum: reading a lower one would assign numbers twice.
fn next_id(next: u64) -> String {
    format!("{next} {:08x}\n", crc32c::crc32c(next.to_string().as_bytes()))
}

fn read_next_id(text: &str) -> Option<u64> {
    let next = text.split(' ').next()?.parse().ok()?;
    (text == next_id(next)).then_some(next)
}

fn random_start() -> io::Result<u64> {
    let mut bytes = [0; 8];
    random::fill(&mut bytes)?;
    // The shift leaves space for higher numbers; bit 40 exceeds all numbers counted from [`FIRST_ID`].
    Ok((u64::from_le_bytes(bytes) >> 2) | 1 << 40)
}

/// Contents of the file `cache`.
struct About {
    volume: Volume,
    location: String,
    origin: Volume,
}

impl About {
    fn read(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        if lines.next()? != VERSION_LINE {
            return None;
        }
        let mut field = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(": ").map(str::to_owned);
        Some(Self {
            volume: volume(&field("id")?)?,
            location: field("origin")?,
            origin: volume(&field("volume")?)?,
        })
    }
}

fn described(origin: &OriginIdentity) -> String {
    let mut id = [0; 16];
    // Without randomness the id is all zeros, which is valid too, but not unique.
    let _ = random::fill(&mut id);
    let (id, volume) = (hex(&Volume(id)), hex(&origin.volume));
    format!("{VERSION_LINE}\nid: {id}\norigin: {}\nvolume: {volume}\n", origin.location)
}

pub(super) fn hex(volume: &Volume) -> String {
    volume.0.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn volume(text: &str) -> Option<Volume> {
    let bytes = (0..16).map(|at| u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok());
    let bytes: Option<Vec<u8>> = bytes.collect();
    (text.len() == 32).then_some(())?;
    bytes?.try_into().ok().map(Volume)
}

/// Replaces a file atomically, synced before the return.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let fresh = path.with_extension("new");
    let mut file = private::draft(&fresh)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&fresh, path)?;
    match path.parent() {
        Some(parent) => File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}
