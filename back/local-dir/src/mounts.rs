//! The mounts that the export spans: what their file systems can do, and a descriptor for finding files by
//! handle.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use tombolo_core::fs::Volume;
use tombolo_core::{Error, Result};
use tombolo_sys::handle::FileHandle;
use tombolo_sys::open::{OpenFlags, OwnDescriptors};
use tombolo_sys::stat::{Device, Stat};
use tombolo_sys::statfs::{self, file_system_stat};

/// Tells the file systems of an export apart, in handles: the two halves of the [`Volume`], one xored with
/// the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag(pub [u8; 8]);

/// One mount.
#[derive(Debug)]
pub(crate) struct Mount {
    /// The kernel's number for it.
    id: u64,
    /// Something open on it, where it could be opened.
    descriptor: Option<OwnedFd>,
    /// The device, packed as in [`Key`](crate::table::Key). Subvolumes of btrfs have others.
    pub device: u32,
    /// Which file system it is.
    pub volume: Volume,
    /// Whether files can be found again by handle.
    pub handles: bool,
    /// Whether a handle tells the inode number, so that it can be checked against attributes that were asked
    /// for apart.
    pub handles_tell_numbers: bool,
    pub medium: Medium,
    has_volumes: AtomicBool,
}

/// What a mount's data lie on: what may be done there at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Medium {
    /// This machine, so that work on names is quick unless a disk is.
    pub local: bool,
    /// Memory, so that reading and making stable never wait.
    pub memory: bool,
    /// A file system where a copy is a read and a write.
    pub plain_copies: bool,
    /// A file system that gives no place in a directory which the kernel does not seek.
    pub seeks_all: bool,
}

impl Mount {
    /// Finds a file again, as a place. Stale if it is gone.
    pub fn find(&self, handle: &FileHandle) -> Result<OwnedFd> {
        let on = self.descriptor.as_ref().ok_or(Error::NotSupported)?;
        Ok(handle.open(on.as_fd(), OpenFlags::PATH | OpenFlags::NOFOLLOW)?)
    }

    /// What stands for its file system in handles; `None` where it has no name of its own.
    pub fn tag(&self) -> Option<Tag> {
        let halves = u128::from_ne_bytes(self.volume.0);
        let tag = (halves >> 64) as u64 ^ halves as u64;
        (tag != 0).then(|| Tag(tag.to_ne_bytes()))
    }

    /// Whether that is another mount of the same file system.
    pub fn is_seen_twice(&self, other: &Self) -> bool {
        self.device == other.device && self.id != other.id
    }

    /// Whether it has shown files of other devices than its root's: of subvolumes.
    pub fn has_volumes(&self) -> bool {
        self.has_volumes.load(Ordering::SeqCst)
    }

    /// It has. True the first time.
    pub fn has_another_volume(&self) -> bool {
        !self.has_volumes.swap(true, Ordering::SeqCst)
    }

    /// Something open on it.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor.as_ref().map(AsFd::as_fd)
    }
}

/// All mounts met so far; the first is the root's. They are few, and stay.
#[derive(Debug, Default)]
pub(crate) struct Mounts {
    list: RwLock<Vec<Arc<Mount>>>,
    some_far: AtomicBool,
    some_without_handles: AtomicBool,
}

/// More mounts than this in one export, and further ones do not exist.
const MOUNTS_MAX: usize = 4096;

impl Mounts {
    /// The index of the mount that a file was reached through, if it is known.
    pub fn index_of(&self, stat: &Stat) -> Option<u32> {
        let list = self.list.read().unwrap_or_else(PoisonError::into_inner);
        list.iter().position(|mount| mount.id == stat.mount).map(|index| index as u32)
    }

    /// The index of the mount that `location` lies on, which is learned about if it is new.
    pub fn meet(&self, own: &OwnDescriptors, location: BorrowedFd<'_>, stat: &Stat) -> Result<u32> {
        if let Some(index) = self.index_of(stat) {
            return Ok(index);
        }
        let mount = Arc::new(examine(own, location, stat));
        let mut list = self.list.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = list.iter().position(|mount| mount.id == stat.mount) {
            return Ok(index as u32);
        }
        if list.len() >= MOUNTS_MAX {
            return Err(Error::NotFound);
        }
        tracing::debug!(mount.id, mount.handles, mount.medium.local, "a file system joins the export");
        self.some_far.fetch_or(!mount.medium.local, Ordering::Relaxed);
        self.some_without_handles.fetch_or(!mount.handles, Ordering::Relaxed);
        list.push(mount);
        Ok((list.len() - 1) as u32)
    }

    /// The mounts of a file system by their [`Tag`], with their indices.
    pub fn tagged(&self, tag: Tag) -> Vec<Arc<Mount>> {
        let list = self.list.read().unwrap_or_else(PoisonError::into_inner);
        list.iter().filter(|mount| mount.handles && mount.tag() == Some(tag)).cloned().collect()
    }

    /// A mount by its index.
    pub fn mount(&self, index: u32) -> Result<Arc<Mount>> {
        let list = self.list.read().unwrap_or_else(PoisonError::into_inner);
        list.get(index as usize).cloned().ok_or(Error::Stale)
    }

    /// All of them.
    pub fn all(&self) -> Vec<Arc<Mount>> {
        self.list.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether every one is on this machine.
    pub fn all_local(&self) -> bool {
        !self.some_far.load(Ordering::Relaxed)
    }

    /// Whether files can be found by handle on every one.
    pub fn all_have_handles(&self) -> bool {
        !self.some_without_handles.load(Ordering::Relaxed)
    }
}

/// A device number as the kernel packs it: 12 and 20 bits.
pub(crate) fn packed(device: Device) -> u32 {
    device.major << 20 | (device.minor & 0xF_FFFF)
}

fn examine(own: &OwnDescriptors, location: BorrowedFd<'_>, stat: &Stat) -> Mount {
    let descriptor = if stat.is_directory() {
        own.reopen_directory(location).ok()
    } else if stat.is_regular() {
        own.reopen(location, OpenFlags::RDONLY).ok()
    } else {
        None
    };
    // Making a handle is allowed to all; opening it is what needs CAP_DAC_READ_SEARCH.
    let handle = descriptor.as_ref().and_then(|on| {
        let (handle, _) = FileHandle::of(location).ok()?;
        handle.open(on.as_fd(), OpenFlags::PATH).ok().map(|_| handle)
    });
    let volume = descriptor.as_ref().and_then(|on| statfs::volume_id(on.as_fd()).ok()).unwrap_or_default();
    let magic = file_system_stat(location).map_or(0, |stat| stat.magic);
    Mount {
        id: stat.mount,
        descriptor,
        device: packed(stat.device),
        volume: Volume(volume),
        handles: handle.is_some(),
        handles_tell_numbers: handle.is_some_and(|handle| handle.tells(stat.inode)),
        medium: Medium::of(magic),
        has_volumes: AtomicBool::new(false),
    }
}

impl Medium {
    pub fn of(magic: u64) -> Self {
        let memory = magic == statfs::MAGIC_TMPFS;
        let is_in = |list: &[u64]| memory || list.contains(&magic);
        let (local, plain_copies) = (is_in(&LOCAL), is_in(&PLAIN_COPIES));
        Self { local, memory, plain_copies, seeks_all: is_in(&SEEKS_ALL) }
    }
}

const LOCAL: [u64; 5] =
    [statfs::MAGIC_EXT4, statfs::MAGIC_XFS, statfs::MAGIC_BTRFS, statfs::MAGIC_OVERLAY, statfs::MAGIC_F2FS];

/// Their places are at most 2^63 - 1. Those of an overlay are the ones of what lies below it.
const SEEKS_ALL: [u64; 3] = [statfs::MAGIC_EXT4, statfs::MAGIC_XFS, statfs::MAGIC_BTRFS];

/// Not those with `remap_file_range`: to share blocks, xfs and btrfs write back what is dirty first, and so
/// wait for the disk. An overlay does what the file system below it does.
const PLAIN_COPIES: [u64; 2] = [statfs::MAGIC_EXT4, statfs::MAGIC_F2FS];
