//! Options for opening disks.

use super::SECTOR_BYTES;

/// Options for opening the storage of a disk.
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// Open the storage for reading only, so that the disk refuses all changes.
    pub read_only: bool,
    /// Lock the storage against other programs, where possible. Without the lock, two writers may corrupt
    /// each other's data.
    pub locks: bool,
    /// Number that distinguishes concurrent readers of one disk; writers ignore it. The process that replaces
    /// a killed reader passes the same number, and then waits for requests that the kernel is still executing
    /// for the killed one. 0: waits for no reader; any number of readers may pass it.
    pub user: u32,
    /// Block size of the disk, in bytes: a power of two from 512 to 64 KiB.
    pub block_bytes: u32,
    /// Refuse a host file whose path contains a symbolic link: another user may have placed the link after
    /// the path was checked.
    pub no_links: bool,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self { read_only: false, locks: true, user: 0, block_bytes: SECTOR_BYTES, no_links: false }
    }
}
