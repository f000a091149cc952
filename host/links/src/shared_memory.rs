//! Memory that both sides of a link can write: a file of the host, or a guest's view of one.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;
use tombolo_mem::Region;
use tombolo_shm::link::{Doorbells, PageError, length_of};
use tombolo_shm::region::file::Served;
use tombolo_shm::region::{RegionError, file, mmapper, pci};

use super::bell::BellSource;

/// Location of memory that both sides of a link can write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemoryLocation {
    /// A file: QEMU's `mem-path` of an ivshmem device, or the file of UML's `iomem=`.
    File(PathBuf),
    /// In a guest, the PCI device (ivshmem) with this address, or without an address the only such device.
    Pci(Option<String>),
    /// In a UML guest, `/dev/mmapper`, which does not report its length.
    Mmapper(PathBuf),
}

impl MemoryLocation {
    /// Returns the file to map. Fails if the PCI device is missing, or if there are several and no address.
    pub fn file(&self) -> Result<PathBuf, RegionError> {
        match self {
            Self::File(path) | Self::Mmapper(path) => Ok(path.clone()),
            Self::Pci(address) => pci::file(Path::new(pci::DEVICES), address.as_deref()),
        }
    }
}

/// Mapped memory for a link, with the lock and the bell that belong to it.
#[derive(Debug)]
pub struct SharedMemory {
    pub(super) region: Region,
    /// Number of bytes that the link uses: at a server, all; at a client, as many as the server's page
    /// states.
    pub(super) total: u64,
    /// Lock by which a server keeps other servers from the file; `None` at a client and for devices.
    pub(super) lock: Option<File>,
    /// Bell for links over this memory, if this side has one.
    pub(super) bell: Option<Arc<BellSource>>,
}

/// Reason why the memory is not available.
#[derive(Debug, Error)]
pub enum MemoryError {
    /// Mapping failed.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The memory does not begin with a valid rendezvous page, which its server writes.
    #[error("{place}: {source}")]
    Page {
        /// Location of the memory.
        place: String,
        /// Fault of the page.
        #[source]
        source: PageError,
    },
    /// The device does not report its length, which its server must therefore be given.
    #[error("{}: unknown length, which must be given", path.display())]
    Length {
        /// The device.
        path: PathBuf,
    },
}

impl SharedMemory {
    /// Maps memory for a server. A missing file is created with `bytes`; for a device that does not report
    /// its length, `bytes` is the length. A file is locked for exclusive use.
    pub fn to_serve(place: &MemoryLocation, bytes: Option<u64>) -> Result<SharedMemory, MemoryError> {
        let (region, lock) = match place {
            MemoryLocation::File(path) => {
                let Served { region, lock } = file::serve(path, bytes)?;
                (region, Some(lock))
            }
            MemoryLocation::Pci(address) => (pci::open(Path::new(pci::DEVICES), address.as_deref())?, None),
            MemoryLocation::Mmapper(path) => {
                let bytes = bytes.ok_or_else(|| MemoryError::Length { path: path.clone() })?;
                (mmapper::open(path, bytes)?, None)
            }
        };
        Ok(SharedMemory { total: region.len() as u64, region, lock, bell: None })
    }

    /// Maps memory for a client. A server must have initialized it: its page contains the length.
    pub fn to_use(place: &MemoryLocation) -> Result<SharedMemory, MemoryError> {
        let page_error = |source| MemoryError::Page { place: place.to_string(), source };
        let (region, total) = match place {
            MemoryLocation::Mmapper(path) => {
                let first = mmapper::open(path, 4096)?;
                let total = length_of(&first).map_err(page_error)?;
                (mmapper::open(path, total)?, total)
            }
            MemoryLocation::File(path) => with_length(file::open(path)?).map_err(page_error)?,
            MemoryLocation::Pci(address) => {
                with_length(pci::open(Path::new(pci::DEVICES), address.as_deref())?).map_err(page_error)?
            }
        };
        Ok(SharedMemory { region, total, lock: None, bell: None })
    }

    /// Sets the bell with which the sides wake each other, if both have one.
    #[must_use]
    pub fn with_bell(self, bell: Option<Arc<BellSource>>) -> SharedMemory {
        SharedMemory { bell, ..self }
    }

    /// Returns the doorbells that this side supports.
    pub(super) fn doorbells(&self) -> Doorbells {
        match &self.bell {
            Some(bell) if bell.is_usable() => Doorbells::SILENT | Doorbells::BELL,
            _ => Doorbells::SILENT,
        }
    }
}

fn with_length(region: Region) -> Result<(Region, u64), PageError> {
    let total = length_of(&region)?;
    Ok((region, total))
}

impl std::fmt::Display for MemoryLocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            MemoryLocation::File(path) | MemoryLocation::Mmapper(path) => path.display().fmt(f),
            MemoryLocation::Pci(Some(address)) => write!(f, "PCI device {address}"),
            MemoryLocation::Pci(None) => f.write_str("the PCI device that shares memory"),
        }
    }
}
