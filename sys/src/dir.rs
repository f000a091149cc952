//! Directory listings: getdents64 into a reusable buffer.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::fs::SeekFrom;

use crate::errno::{Errno, Result, check, retry};

/// A position in a directory, in its file system's encoding (`d_off`): opaque, 0 is the start.
///
/// On ext4, xfs, btrfs and (since Linux 6.6) tmpfs it stays valid during the life of the directory, across
/// renames and restarts of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Cookie(pub u64);

/// One entry of a listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Inode number in the directory's file system: for a mount point, of the directory beneath the mount.
    pub inode: u64,
    /// Position of the next entry.
    pub next: Cookie,
    /// Type bits of a mode, or 0 where the file system does not report them.
    pub kind: u32,
    /// Name, possibly `.` or `..`.
    pub name: &'a [u8],
}

/// A reusable buffer of entries, allocated once; each [`fill`](Self::fill) replaces its contents.
#[derive(Debug)]
pub struct Listing {
    bytes: Vec<u8>,
    filled: usize,
}

/// Length of the fixed part of `struct linux_dirent64`: inode 8, offset 8, length 2, type 1.
const HEADER_LEN: usize = 19;

impl Listing {
    /// Allocates a buffer of `size_bytes`; at least 1 KiB, so that an entry with the longest name fits.
    pub fn with_size(size_bytes: usize) -> Self {
        Self { bytes: vec![0; size_bytes.max(1024)], filled: 0 }
    }

    /// Reads the next entries of `dir`, replacing the buffer's contents. Returns `false` at the end of the
    /// directory.
    ///
    /// Advances the position of the open directory. May block on disk I/O.
    pub fn fill(&mut self, dir: BorrowedFd<'_>) -> Result<bool> {
        self.filled = 0;
        self.filled = retry(|| {
            // SAFETY: the kernel writes at most the given length to the buffer, which this function borrows
            // exclusively during the call.
            let outcome = unsafe {
                libc::syscall(
                    libc::SYS_getdents64,
                    dir.as_raw_fd(),
                    self.bytes.as_mut_ptr(),
                    self.bytes.len(),
                )
            };
            check(outcome)
        })?;
        Ok(self.filled > 0)
    }

    /// Drops the entries without freeing the buffer.
    pub fn clear(&mut self) {
        self.filled = 0;
    }

    /// Returns the entries of the last read.
    pub fn entries(&self) -> Entries<'_> {
        Entries { rest: &self.bytes[..self.filled] }
    }
}

/// An iterator over the entries in a [`Listing`].
#[derive(Debug, Clone)]
pub struct Entries<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Entries<'a> {
    type Item = Entry<'a>;

    fn next(&mut self) -> Option<Entry<'a>> {
        let header = self.rest.get(..HEADER_LEN)?;
        let inode = u64::from_ne_bytes(header[..8].try_into().ok()?);
        let next = u64::from_ne_bytes(header[8..16].try_into().ok()?);
        let len = usize::from(u16::from_ne_bytes(header[16..18].try_into().ok()?));
        let kind = u32::from(header[18]) << 12;
        let text = self.rest.get(HEADER_LEN..len)?;
        let name = text.split(|&byte| byte == 0).next()?;
        self.rest = &self.rest[len..];
        Some(Entry { inode, next: Cookie(next), kind, name })
    }
}

/// Returns `true` if an open directory can be moved to a position. The kernel refuses offsets of 2^63 and
/// above, because it treats them as negative. File systems behind NFS and FUSE may return such offsets; past
/// them a directory can only be read sequentially.
pub fn can_seek(place: Cookie) -> bool {
    i64::try_from(place.0).is_ok()
}

/// Moves an open directory to a position returned by an earlier listing.
pub fn seek(dir: BorrowedFd<'_>, place: Cookie) -> Result<()> {
    if !can_seek(place) {
        return Err(Errno::INVAL);
    }
    rustix::fs::seek(dir, SeekFrom::Start(place.0)).map(drop)
}
