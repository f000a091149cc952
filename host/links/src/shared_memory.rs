//! Memory that both sides of a link can write: a file of the host, or what a guest sees of one.

use std::fs::File;
use std::path::{Path, PathBuf};

use thiserror::Error;
use tombolo_mem::Region;
use tombolo_shm::link::{PageError, length_of};
use tombolo_shm::region::file::Served;
use tombolo_shm::region::{RegionError, file, mmapper, pci};

/// Where such memory is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemoryLocation {
    /// A file: QEMU's `mem-path` of an ivshmem device, or the file of UML's `iomem=`.
    File(PathBuf),
    /// In a guest: a PCI device (ivshmem) by its address, or the only one there is.
    Pci(Option<String>),
    /// In a UML guest: `/dev/mmapper`, which does not know its length.
    Mmapper(PathBuf),
}

impl MemoryLocation {
    /// The file that is mapped; of a PCI device there is one only while it is there.
    pub fn file(&self) -> Result<PathBuf, RegionError> {
        match self {
            Self::File(path) | Self::Mmapper(path) => Ok(path.clone()),
            Self::Pci(address) => pci::file(Path::new(pci::DEVICES), address.as_deref()),
        }
    }
}

/// Memory that was mapped.
#[derive(Debug)]
pub struct SharedMemory {
    pub(super) region: Region,
    /// How much of it a link uses.
    pub(super) total: u64,
    /// Held by a server: no other serves there.
    pub(super) lock: Option<File>,
}

/// Why there is no such memory.
#[derive(Debug, Error)]
pub enum MemoryError {
    /// It cannot be mapped.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// There is no page of a server yet, or none that can be used.
    #[error("{place}: {source}")]
    Page {
        /// Where.
        place: String,
        /// What is wrong with it.
        #[source]
        source: PageError,
    },
    /// Of this device a server must give the length.
    #[error("{}: unknown length, which must be given", path.display())]
    Length {
        /// The device.
        path: PathBuf,
    },
}

impl SharedMemory {
    /// For a server. A file that is not there is made, of `bytes`; of a device that does not know its length
    /// they are the length. A file is locked, so that one server at a time has it.
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
        Ok(SharedMemory { total: region.len() as u64, region, lock })
    }

    /// For a client. A server must have been there before: its page holds the length of the memory.
    pub fn to_use(place: &MemoryLocation) -> Result<SharedMemory, MemoryError> {
        let page_error = |source| MemoryError::Page { place: place.to_string(), source };
        let (region, total) = match place {
            MemoryLocation::Mmapper(path) => {
                let first = mmapper::open(path, 4096)?;
                let total = length_of(&first).map_err(page_error)?;
                (mmapper::open(path, total)?, total)
            }
            MemoryLocation::File(path) => known(file::open(path)?).map_err(page_error)?,
            MemoryLocation::Pci(address) => {
                known(pci::open(Path::new(pci::DEVICES), address.as_deref())?).map_err(page_error)?
            }
        };
        Ok(SharedMemory { region, total, lock: None })
    }
}

fn known(region: Region) -> Result<(Region, u64), PageError> {
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
