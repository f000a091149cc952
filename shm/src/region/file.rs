//! A file that both sides map whole and may write: what QEMU's `memory-backend-file` (ivshmem) or UML's `iomem=` is given on the host.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use tombolo_mem::Region;

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

/// Maps the whole file, which is made first if it is not there, of that size and for its owner only. One that is there keeps its
/// size.
pub fn open_or_create(path: &Path, bytes: u64) -> Result<Region, RegionError> {
    let io = |source| RegionError::io(path.display(), source);
    let created = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path);
    match created {
        Ok(file) => {
            file.set_len(bytes).map_err(io)?;
            map(path, &file)
        }
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => open(path),
        Err(error) => Err(io(error)),
    }
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
}
