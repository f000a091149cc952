//! A file that both sides map entirely and may write: the host's side of QEMU's `memory-backend-file`
//! (ivshmem) or UML's `iomem=`.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use tombolo_mem::Region;
use tombolo_sys::Errno;
use tombolo_sys::creds;
use tombolo_sys::ranges::{self, AllocateMode};

use crate::region::{RegionError, map};

/// Maps an existing file, whose length must be a number of whole pages.
pub fn open(path: &Path) -> Result<Region, RegionError> {
    map_whole(path, &readable_and_writable().open(path).map_err(io(path))?)
}

/// The shared file of a server, mapped and locked.
#[derive(Debug)]
pub struct Served {
    /// The whole file, mapped for reading and writing.
    pub region: Region,
    /// The mapped file. It is locked as long as this descriptor is open or the region exists, so that no
    /// other server takes it.
    pub lock: File,
}

/// Maps a whole file for a server, and locks it. A missing file is created if `bytes` gives its length,
/// accessible to its owner only. Its memory is allocated at once, if the file system supports that, so that
/// none is lost when the file system fills up. An existing file keeps its size; it must belong to root or to
/// this process's user and not be world-writable, since a process that can write it can make any request as
/// any user.
pub fn serve(path: &Path, bytes: Option<u64>) -> Result<Served, RegionError> {
    if let Some(bytes) = bytes {
        match readable_and_writable().create_new(true).mode(0o600).open(path) {
            Ok(lock) => return made(path, lock, bytes),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(io(path)(error)),
        }
    }
    let lock = readable_and_writable().open(path).map_err(io(path))?;
    let metadata = lock.metadata().map_err(io(path))?;
    trusted(path, metadata.uid(), metadata.mode(), creds::own_ids().0)?;
    take(path, &lock)?;
    Ok(Served { region: map_whole(path, &lock)?, lock })
}

/// Prepares a new file of the given length.
fn made(path: &Path, lock: File, bytes: u64) -> Result<Served, RegionError> {
    let served = || {
        take(path, &lock)?;
        allocate(&lock, bytes).map_err(io(path))?;
        map_whole(path, &lock)
    };
    match served() {
        Ok(region) => Ok(Served { region, lock }),
        Err(error) => {
            // This process created the file, and cannot use it.
            let _ = std::fs::remove_file(path);
            Err(error)
        }
    }
}

fn take(path: &Path, lock: &File) -> Result<(), RegionError> {
    match lock.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(RegionError::Busy { path: path.to_owned() }),
        Err(TryLockError::Error(error)) => Err(io(path)(error)),
    }
}

fn readable_and_writable() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    options
}

fn io(path: &Path) -> impl Fn(io::Error) -> RegionError {
    move |source| RegionError::io(path.display(), source)
}

/// Sets a new file's size, and allocates its memory or disk space where its file system can.
fn allocate(file: &File, bytes: u64) -> io::Result<()> {
    match ranges::allocate(file.as_fd(), AllocateMode::empty(), 0, bytes) {
        Err(Errno::OPNOTSUPP) => file.set_len(bytes),
        outcome => outcome.map_err(io::Error::from),
    }
}

/// Refuses a file that belongs to another user or is world-writable.
fn trusted(path: &Path, owner: u32, mode: u32, us: u32) -> Result<(), RegionError> {
    if (owner == 0 || owner == us) && mode & 0o002 == 0 {
        return Ok(());
    }
    Err(RegionError::NotOurs { path: path.to_owned(), owner, mode: mode & 0o7777 })
}

fn map_whole(path: &Path, file: &File) -> Result<Region, RegionError> {
    let bytes = file.metadata().map_err(io(path))?.len();
    map(path, file, bytes)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::io::Read;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn two_that_map_a_file_see_each_other() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("memory");
        let one = serve(&path, Some(8192)).expect("made").region;
        let other = open(&path).expect("there already");
        assert_eq!(other.len(), 8192);
        one.write_at(8000, b"there").expect("inside");
        other.write_at(0, b"back").expect("inside");
        let mut got = [0; 5];
        other.read_at(8000, &mut got).expect("inside");
        assert_eq!(&got, b"there");
        one.read_at(0, &mut got[..4]).expect("inside");
        assert_eq!(&got[..4], b"back");
    }

    #[test]
    fn a_length_of_no_whole_pages_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("memory");
        assert!(matches!(open(&path), Err(RegionError::Io { .. })));
        for bytes in [0, 1, 4097] {
            File::create(&path).and_then(|file| file.set_len(bytes)).expect("a file");
            assert!(matches!(open(&path), Err(RegionError::Size { bytes: found, .. }) if found == bytes));
        }
    }

    #[test]
    fn a_foreign_or_world_writable_file_is_refused() {
        let path = Path::new("/dev/shm/memory");
        for (owner, mode, is_trusted) in [
            (0, 0o600, true),
            (1000, 0o660, true),
            (1001, 0o600, false),
            (1000, 0o606, false),
            (0, 0o100_666, false),
        ] {
            assert_eq!(trusted(path, owner, mode, 1000).is_ok(), is_trusted, "{owner} {mode:o}");
        }
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("memory");
        drop(serve(&path, Some(8192)).expect("made"));
        std::fs::set_permissions(&path, Permissions::from_mode(0o666)).expect("permissions");
        for bytes in [Some(8192), None] {
            let refused = serve(&path, bytes).expect_err("it is world-writable");
            assert!(refused.to_string().contains("mode 0666"), "{bytes:?}: {refused}");
        }
    }

    /// Locks the mapped file, even if the path leads to another file by then.
    #[test]
    fn the_lock_is_on_the_file_that_is_mapped() {
        let dir = tempfile::tempdir().expect("a directory");
        let (path, moved) = (dir.path().join("memory"), dir.path().join("moved"));
        let served = serve(&path, Some(8192)).expect("made");
        assert!(matches!(serve(&path, Some(8192)), Err(RegionError::Busy { .. })));
        std::fs::rename(&path, &moved).expect("renamed");
        assert!(matches!(serve(&moved, None), Err(RegionError::Busy { .. })));
        let other = serve(&path, Some(4096)).expect("another file");
        served.region.write_at(0, b"mine").expect("inside");
        let mut got = [0; 4];
        File::open(&moved).and_then(|mut file| file.read_exact(&mut got)).expect("there");
        assert_eq!(&got, b"mine");
        // A holder of the memory could still write it.
        let Served { region, lock } = served;
        drop((lock, other));
        assert!(matches!(serve(&moved, None), Err(RegionError::Busy { .. })));
        drop(region);
        assert!(serve(&moved, None).is_ok());
    }

    #[test]
    fn new_file_is_fully_allocated() {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let path = dir.path().join("memory");
        drop(serve(&path, Some(1 << 20)).expect("made"));
        let metadata = std::fs::metadata(&path).expect("there");
        assert_eq!((metadata.len(), metadata.blocks() * 512), (1 << 20, 1 << 20));
        // More than a file can have: an error now, and no file left behind, instead of a server that loses
        // its memory later.
        let too_large = dir.path().join("too-large");
        assert!(serve(&too_large, Some(1 << 63)).is_err());
        assert!(!too_large.exists());
    }
}
