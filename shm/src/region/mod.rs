//! Shared memory of two domains, by kind.
//!
//! - [`sealed`]: between processes of one kernel. The owner writes, the peer reads, and the kernel sees to
//!   that.
//! - [`file`], [`pci`], [`mmapper`]: one file that both sides can write all of: QEMU's ivshmem and UML's
//!   iomem on the host, and what their guests see of it. Nothing but good manners keeps a side in its half.

pub mod file;
pub mod mmapper;
pub mod pci;
pub mod sealed;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;
use tombolo_mem::{MapError, Region};

/// Why there is no such region.
#[derive(Debug, Error)]
pub enum RegionError {
    /// The peer's memory is not sealed as it must be, so it could be truncated, or written by others.
    #[error("the memory is not sealed")]
    NotSealed,
    /// It is smaller than was said.
    #[error("the memory has {bytes} bytes, and {wanted_bytes} are needed")]
    TooSmall {
        /// What it has.
        bytes: u64,
        /// What it should have.
        wanted_bytes: u64,
    },
    /// Its size is not a number of whole pages, or more than an address space holds.
    #[error("{}: {bytes} bytes are no region", path.display())]
    Size {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
    },
    /// The file is another user's, or world-writable.
    #[error("{}: owner {owner}, mode {mode:04o}; it must be root's or the server's own, and not for all to write", path.display())]
    NotOurs {
        /// The file.
        path: PathBuf,
        /// Its owner's user id.
        owner: u32,
        /// Its permissions.
        mode: u32,
    },
    /// A server has the file.
    #[error("{}: another server is there", path.display())]
    Busy {
        /// The file.
        path: PathBuf,
    },
    /// There is no device with shared memory.
    #[error("no PCI device {}", which.as_deref().unwrap_or("1af4:1110 (ivshmem)"))]
    NoDevice {
        /// The device that was asked for, if it was one in particular.
        which: Option<String>,
    },
    /// There are several, and none was named.
    #[error("several PCI devices share memory, name one: {}", found.join(", "))]
    Several {
        /// Their addresses.
        found: Vec<String>,
    },
    /// It cannot be mapped.
    #[error("{what}: {source}")]
    Map {
        /// What was to be mapped.
        what: String,
        /// Why not.
        #[source]
        source: MapError,
    },
    /// The system refused something.
    #[error("{what}: {source}")]
    Io {
        /// What was being done, or the file.
        what: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

impl RegionError {
    pub(crate) fn io(what: impl std::fmt::Display, source: impl Into<io::Error>) -> RegionError {
        RegionError::Io { what: what.to_string(), source: source.into() }
    }

    fn map(what: impl std::fmt::Display, source: MapError) -> RegionError {
        RegionError::Map { what: what.to_string(), source }
    }
}

/// What a mapping is made of.
const PAGE_BYTES: u64 = 4096;

/// The number of bytes, if so many can be a region: whole pages, and not more than an address space has.
fn region_len(path: &Path, bytes: u64) -> Result<usize, RegionError> {
    let size = || RegionError::Size { path: path.to_owned(), bytes };
    if bytes == 0 || !bytes.is_multiple_of(PAGE_BYTES) {
        return Err(size());
    }
    usize::try_from(bytes).map_err(|_| size())
}

/// Maps the first `bytes` of a file or device for reading and writing.
fn map(path: &Path, file: &File, bytes: u64) -> Result<Region, RegionError> {
    let len = region_len(path, bytes)?;
    Region::map(file, 0, len).map_err(|source| RegionError::map(path.display(), source))
}
