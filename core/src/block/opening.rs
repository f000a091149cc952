//! How disks are opened.

use super::SECTOR_BYTES;

/// How a back end opens what a disk lies in.
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// Nothing is changed.
    pub read_only: bool,
    /// Whether it is locked against other users of it, where that can be done. Without, two that write destroy each other's work.
    pub locks: bool,
    /// The disk's block size, in bytes: a power of two from 512 to 64 KiB.
    pub block_bytes: u32,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self { read_only: false, locks: true, block_bytes: SECTOR_BYTES }
    }
}
