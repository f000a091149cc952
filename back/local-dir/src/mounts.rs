//! The mounts inside the export: capabilities of their file systems, and a descriptor to open handles on
//! each.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use tombolo_core::fs::Volume;
use tombolo_core::{Error, Result};
use tombolo_sys::handle::FileHandle;
use tombolo_sys::open::{OpenFlags, OwnDescriptors};
use tombolo_sys::stat::{Device, Stat};
use tombolo_sys::statfs::{self, file_system_stat};

/// Identifier of a file system in handles: the two halves of the [`Volume`], XORed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag(pub [u8; 8]);

/// A mount that files of the export lie on, and its properties.
#[derive(Debug)]
pub(crate) struct Mount {
    /// The kernel's mount id.
    id: u64,
    /// A descriptor on the mount, if one could be opened.
    descriptor: Option<OwnedFd>,
    /// The device, packed as in [`Key`](crate::table::Key). Subvolumes of btrfs have other device numbers.
    pub device: u32,
    /// Identity of the file system; zero if it has none.
    pub volume: Volume,
    /// `true` if files can be opened by handle.
    pub handles: bool,
    /// `true` if handles contain the inode number, so that they can be checked against attributes fetched
    /// separately.
    pub handles_have_inodes: bool,
    pub medium: Medium,
    has_volumes: AtomicBool,
}

/// The storage under a mount, which determines the operations that cannot block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Medium {
    /// `true` if it is known to be on this machine, so operations on names are quick unless the disk is slow.
    pub local: bool,
    /// `true` if it is in memory, so reads and syncs wait for no disk but that of swap space.
    pub memory: bool,
    /// `true` if the kernel copies a range by reading and writing.
    pub plain_copies: bool,
    /// `true` if lseek(2) accepts every directory cookie of the file system.
    pub seeks_all: bool,
}

impl Mount {
    /// Opens a file by handle (`O_PATH`). [`Error::Stale`] if it is deleted.
    pub fn find(&self, handle: &FileHandle) -> Result<OwnedFd> {
        let on = self.descriptor.as_ref().ok_or(Error::NotSupported)?;
        Ok(handle.open(on.as_fd(), OpenFlags::PATH | OpenFlags::NOFOLLOW)?)
    }

    /// Returns the file system's tag for handles; `None` if it has no identity of its own.
    pub fn tag(&self) -> Option<Tag> {
        let halves = u128::from_ne_bytes(self.volume.0);
        let tag = (halves >> 64) as u64 ^ halves as u64;
        (tag != 0).then(|| Tag(tag.to_ne_bytes()))
    }

    /// Returns `true` if `other` is another mount of the same file system.
    pub fn is_same_file_system(&self, other: &Self) -> bool {
        self.device == other.device && self.id != other.id
    }

    /// Returns `true` if the mount has shown files of other devices than its root's: those of subvolumes.
    pub fn has_volumes(&self) -> bool {
        self.has_volumes.load(Ordering::SeqCst)
    }

    /// Records a file of another device than the root's. Returns `true` the first time.
    pub fn record_volume(&self) -> bool {
        !self.has_volumes.swap(true, Ordering::SeqCst)
    }

    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor.as_ref().map(AsFd::as_fd)
    }
}

/// All mounts encountered; the first is the mount of the root. Entries are few, and never removed.
#[derive(Debug, Default)]
pub(crate) struct Mounts {
    list: RwLock<Vec<Arc<Mount>>>,
    some_remote: AtomicBool,
    some_without_handles: AtomicBool,
}

/// Limit of mounts in one export; look-ups of files on further ones fail with [`Error::NotFound`].
const MOUNTS_MAX: usize = 4096;

impl Mounts {
    /// Returns the index of the mount of a file, if it is registered.
    pub fn index_of(&self, stat: &Stat) -> Option<u32> {
        let list = self.list.read().unwrap_or_else(PoisonError::into_inner);
        list.iter().position(|mount| mount.id == stat.mount).map(|index| index as u32)
    }

    /// Returns the index of the mount that `location` lies on. Registers the mount if it is new.
    pub fn register(&self, own: &OwnDescriptors, location: BorrowedFd<'_>, stat: &Stat) -> Result<u32> {
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
        tracing::debug!(mount.id, mount.handles, mount.medium.local, "found a file system inside the export");
        self.some_remote.fetch_or(!mount.medium.local, Ordering::Relaxed);
        self.some_without_handles.fetch_or(!mount.handles, Ordering::Relaxed);
        list.push(mount);
        Ok((list.len() - 1) as u32)
    }

    /// Returns the mounts of the file system with this [`Tag`].
    pub fn tagged(&self, tag: Tag) -> Vec<Arc<Mount>> {
        let list = self.list.read().unwrap_or_else(PoisonError::into_inner);
        list.iter().filter(|mount| mount.handles && mount.tag() == Some(tag)).cloned().collect()
    }

    /// Returns a mount by its index; [`Error::Stale`] if there is none.
    pub fn mount(&self, index: u32) -> Result<Arc<Mount>> {
        let list = self.list.read().unwrap_or_else(PoisonError::into_inner);
        list.get(index as usize).cloned().ok_or(Error::Stale)
    }

    /// Returns all mounts encountered so far, in the order of their indices.
    pub fn all(&self) -> Vec<Arc<Mount>> {
        self.list.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns `true` if all mounts encountered so far are on this machine.
    pub fn all_local(&self) -> bool {
        !self.some_remote.load(Ordering::Relaxed)
    }

    /// Returns `true` if files can be opened by handle on all mounts encountered so far.
    pub fn all_have_handles(&self) -> bool {
        !self.some_without_handles.load(Ordering::Relaxed)
    }
}

/// Packs a device number as the kernel does: 12 and 20 bits.
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
    // The handle is opened as a test: any process may request one, but opening it takes CAP_DAC_READ_SEARCH.
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
        handles_have_inodes: handle.is_some_and(|handle| handle.contains_inode(stat.inode)),
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

/// File systems whose storage is on this machine, or mostly is (an overlay); tmpfs is added in
/// [`Medium::of`].
const LOCAL: [u64; 5] =
    [statfs::MAGIC_EXT4, statfs::MAGIC_XFS, statfs::MAGIC_BTRFS, statfs::MAGIC_OVERLAY, statfs::MAGIC_F2FS];

/// File systems whose cookies are at most 2^63 - 1. An overlay may pass on larger ones of the file systems
/// beneath it.
const SEEKS_ALL: [u64; 3] = [statfs::MAGIC_EXT4, statfs::MAGIC_XFS, statfs::MAGIC_BTRFS];

/// File systems without `remap_file_range`: to share blocks, xfs and btrfs first write dirty data back, and
/// so wait for the disk. An overlay does as the file systems beneath it do.
const PLAIN_COPIES: [u64; 2] = [statfs::MAGIC_EXT4, statfs::MAGIC_F2FS];
