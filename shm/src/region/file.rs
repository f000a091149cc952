//! A file that both sides map whole and may write: what QEMU's `memory-backend-file` (ivshmem) or UML's `iomem=` is given on the host.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use tombolo_mem::Region;
use tombolo_sys::Errno;
use tombolo_sys::creds;
use tombolo_sys::ranges::{self, AllocateMode};

use crate::region::{PAGE_BYTES, RegionError};

/// Maps the whole file. It must exist, and be a number of whole pages long.
pub fn open(path: &Path) -> Result<Region, RegionError> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .map_err(|source| RegionError::io(path.display(), source))?;
    map(path, &file)
}

/// Maps the whole file, which is made first if it is not there, of that size and for its owner only, with all its memory: a file
/// system that fills up later takes none of it away. One that is there keeps its size; it must be root's or our own, and not
/// everybody's to write, since whoever can write it can ask for anything in anybody's name.
pub fn open_or_create(path: &Path, bytes: u64) -> Result<Region, RegionError> {
    let io = |source| RegionError::io(path.display(), source);
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    match options.clone().create_new(true).mode(0o600).open(path) {
        Ok(file) => {
            let made = allocate(&file, bytes);
            if made.is_err() {
                // Ours, and of no use.
                let _ = std::fs::remove_file(path);
            }
            made.map_err(io)?;
            map(path, &file)
        }
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            let file = options.open(path).map_err(io)?;
            let metadata = file.metadata().map_err(io)?;
            trusted(path, metadata.uid(), metadata.mode(), creds::own_ids().0)?;
            map(path, &file)
        }
        Err(error) => Err(io(error)),
    }
}

/// Gives a new file its size, and the memory or disk for it where its file system can say so beforehand.
fn allocate(file: &File, bytes: u64) -> io::Result<()> {
    match ranges::allocate(file.as_fd(), AllocateMode::empty(), 0, bytes) {
        Err(Errno::OPNOTSUPP) => file.set_len(bytes),
        outcome => outcome.map_err(io::Error::from),
    }
}

/// Refuses a file that somebody else has made, or that anybody may write.
fn trusted(path: &Path, owner: u32, mode: u32, us: u32) -> Result<(), RegionError> {
    if (owner == 0 || owner == us) && mode & 0o002 == 0 {
        return Ok(());
    }
    Err(RegionError::NotOurs { path: path.to_owned(), owner, mode: mode & 0o7777 })
}

fn map(path: &Path, file: &File) -> Result<Region, RegionError> {
    let metadata = file.metadata().map_err(|source| RegionError::io(path.display(), source))?;
    let bytes = metadata.len();
    let size = || RegionError::Size { path: path.to_owned(), bytes };
    if bytes == 0 || !bytes.is_multiple_of(PAGE_BYTES) {
        return Err(size());
    }
    let len = usize::try_from(bytes).map_err(|_| size())?;
    Region::map(file, 0, len).map_err(|source| RegionError::map(path.display(), source))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn two_that_map_a_file_see_each_other() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("memory");
        let one = open_or_create(&path, 8192).expect("made");
        let other = open_or_create(&path, 4096).expect("there already");
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
    fn what_is_no_whole_number_of_pages_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("memory");
        assert!(matches!(open(&path), Err(RegionError::Io { .. })));
        for bytes in [0, 1, 4097] {
            File::create(&path).and_then(|file| file.set_len(bytes)).expect("a file");
            assert!(matches!(open(&path), Err(RegionError::Size { bytes: found, .. }) if found == bytes));
        }
    }

    #[test]
    fn a_file_that_a_stranger_made_or_anybody_may_write_is_not_served_from() {
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
        drop(open_or_create(&path, 8192).expect("made"));
        std::fs::set_permissions(&path, Permissions::from_mode(0o666)).expect("permissions");
        let refused = open_or_create(&path, 8192).expect_err("anybody may write it");
        assert!(refused.to_string().contains("mode 0666"), "{refused}");
    }

    #[test]
    fn a_new_file_has_all_its_memory() {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let path = dir.path().join("memory");
        drop(open_or_create(&path, 1 << 20).expect("made"));
        let metadata = std::fs::metadata(&path).expect("there");
        assert_eq!((metadata.len(), metadata.blocks() * 512), (1 << 20, 1 << 20));
        // More than a file can have: an error now, and no file left behind, instead of a server that loses its memory later.
        let too_large = dir.path().join("too-large");
        assert!(open_or_create(&too_large, 1 << 63).is_err());
        assert!(!too_large.exists());
    }
}
