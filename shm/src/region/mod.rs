//! Shared memory of two domains, by kind.
//!
//! - [`sealed`]: between processes of one kernel. The owner writes, the peer reads, enforced by the kernel.
//! - [`file`], [`pci`], [`mmapper`]: one file that both sides can write completely: QEMU's ivshmem and UML's
//!   iomem on the host, and their guests' views of it. A side is confined to its half by convention only.

pub mod file;
pub mod mmapper;
pub mod pci;
pub mod sealed;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;
use tombolo_mem::{MapError, Region};

/// The reason why a region is unavailable.
#[derive(Debug, Error)]
pub enum RegionError {
    /// The peer's memory lacks seals, so it could be truncated, or written by others.
    #[error("the memory is not sealed")]
    NotSealed,
    /// The peer's memory is smaller than the peer has announced.
    #[error("the memory has {bytes} bytes, but {wanted_bytes} are needed")]
    TooSmall {
        /// Actual size.
        bytes: u64,
        /// Announced size.
        wanted_bytes: u64,
    },
    /// The size is zero, not a number of whole pages, or larger than the address space.
    #[error("{}: {bytes} bytes are not a valid region size", path.display())]
    Size {
        /// The file or device to be mapped.
        path: PathBuf,
        /// Size of the file in bytes.
        bytes: u64,
    },
    /// The file belongs to another user, or is world-writable.
    #[error("{}: owner {owner}, mode {mode:04o}; it must belong to root or the server's user, and not be world-writable", path.display())]
    NotOurs {
        /// The file to be mapped.
        path: PathBuf,
        /// User id of the file's owner.
        owner: u32,
        /// Permission bits of the file.
        mode: u32,
    },
    /// The file is in use by a server.
    #[error("{}: in use by another server", path.display())]
    Busy {
        /// The file to be mapped, which the other server has locked.
        path: PathBuf,
    },
    /// There is no ivshmem device, or none at the requested address.
    #[error("no PCI device {}", which.as_deref().unwrap_or("1af4:1110 (ivshmem)"))]
    NoDevice {
        /// Requested PCI address; `None` for any device.
        which: Option<String>,
    },
    /// There are several ivshmem devices, and none was requested.
    #[error("several ivshmem devices, specify one of {}", found.join(", "))]
    Several {
        /// PCI addresses of the devices.
        found: Vec<String>,
    },
    /// The mapping failed.
    #[error("{what}: {source}")]
    Map {
        /// The file, device or memory to be mapped.
        what: String,
        /// Reason why the memory cannot be mapped.
        #[source]
        source: MapError,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    Io {
        /// The file or the object of the failed call.
        what: String,
        /// The failure of the system call.
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

/// Granularity of mappings, in bytes.
const PAGE_BYTES: u64 = 4096;

/// Returns the number of bytes if valid for a region: whole pages, and not larger than the address space.
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
