//! How disks are opened.

use super::SECTOR_BYTES;

/// How a back end opens what a disk lies in.
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// Nothing is changed.
    pub read_only: bool,
    /// Whether it is locked against other users of it, where that can be done. Without, two that write
    /// destroy each other's work.
    pub locks: bool,
    /// Tells those apart that read one disk at a time: what goes on in the place of a user that was killed
    /// has its number. What the kernel has still to do for that one is waited for. 0 is any number of users,
    /// of which none is waited for.
    pub user: u32,
    /// The disk's block size, in bytes: a power of two from 512 to 64 KiB.
    pub block_bytes: u32,
    /// Refuses a file of the host whose path leads over a symbolic link: another user may have put it there
    /// since the path was checked.
    pub no_links: bool,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self { read_only: false, locks: true, user: 0, block_bytes: SECTOR_BYTES, no_links: false }
    }
}
