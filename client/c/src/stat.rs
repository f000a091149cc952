//! Attributes and access checks.

use std::ffi::{c_char, c_int};

use libtombolo::Last;
use tombolo_core::Answer;
use tombolo_core::fs::{AccessMask, Attr, Timestamp};

use crate::TomboloTree;
use crate::boundary::{Failure, guarded_int, path_of, tree_of};

/// A point in time: `struct tombolo_time`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Time {
    /// Seconds since 1970-01-01 UTC.
    pub sec: i64,
    /// Nanoseconds, below 10⁹.
    pub nsec: u32,
    /// Reserved: 0.
    pub reserved: u32,
}

/// Attributes of a file: `struct tombolo_stat`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// Type and permission bits.
    pub mode: u32,
    /// Number of hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Inode number.
    pub ino: u64,
    /// Size in bytes.
    pub size: u64,
    /// Space used, in units of 512 bytes.
    pub blocks: u64,
    /// Number of the file system within the tree.
    pub dev: u64,
    /// Number that distinguishes successive files with the same inode number.
    pub generation: u64,
    /// Preferred size of transfers, in bytes.
    pub blksize: u32,
    /// Driver number of a device node.
    pub rdev_major: u32,
    /// Unit number of a device node.
    pub rdev_minor: u32,
    /// Presence of optional fields: [`HAS_BTIME`].
    pub mask: u32,
    /// Time of the last read.
    pub atime: Time,
    /// Last change of the data.
    pub mtime: Time,
    /// Last change of the data or the attributes.
    pub ctime: Time,
    /// Time of creation.
    pub btime: Time,
    /// Reserved: zeroes.
    pub reserved: [u64; 3],
}

/// Bit `TOMBOLO_HAS_BTIME` of `mask`: `btime` is valid.
const HAS_BTIME: u32 = 1;

impl From<Timestamp> for Time {
    #[inline]
    fn from(time: Timestamp) -> Self {
        Self { sec: time.secs, nsec: time.nanos, reserved: 0 }
    }
}

impl From<&Attr> for Stat {
    #[inline]
    fn from(attr: &Attr) -> Self {
        Self {
            mode: attr.file_type.mode_bits() | attr.mode.bits(),
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            ino: attr.fileid,
            size: attr.size,
            blocks: attr.blocks,
            dev: attr.fsid,
            generation: attr.generation,
            blksize: attr.block_size,
            rdev_major: attr.rdev.major,
            rdev_minor: attr.rdev.minor,
            mask: if attr.btime.is_some() { HAS_BTIME } else { 0 },
            atime: attr.atime.into(),
            mtime: attr.mtime.into(),
            ctime: attr.ctime.into(),
            btime: attr.btime.unwrap_or_default().into(),
            reserved: [0; 3],
        }
    }
}

impl TomboloTree {
    #[inline]
    pub(crate) fn attr(&self, path: &[u8], last: Last) -> Answer<Attr> {
        match last {
            Last::Follow => self.cached.stat(path),
            Last::Keep => self.cached.lstat(path),
        }
    }
}

/// Writes the attributes of a path to `out`.
///
/// # Safety
/// The conditions of [`tombolo_stat`].
#[inline]
unsafe fn stat(
    tree: *const TomboloTree,
    path: *const c_char,
    last: Last,
    out: *mut Stat,
) -> Result<c_int, Failure> {
    // SAFETY: null or an open tree, which is not closed before this returns.
    let tree = unsafe { tree_of(tree) }?;
    if out.is_null() {
        return Err(Failure::INVALID);
    }
    // SAFETY: null or a string, which the caller keeps until this returns.
    let path = unsafe { path_of(path) }?;
    let attr = tree.attr(path, last).wait()?;
    // SAFETY: points to writable memory for the attributes.
    unsafe { out.write(Stat::from(&attr)) };
    Ok(0)
}

/// Returns the attributes of what a path leads to; documented in the header.
///
/// # Safety
/// `tree` is null or an open tree, `path` null or a string; `out` is null or points to writable attributes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_stat(
    tree: *const TomboloTree,
    path: *const c_char,
    out: *mut Stat,
) -> c_int {
    // SAFETY: the caller guarantees the same.
    guarded_int(|| unsafe { stat(tree, path, Last::Follow, out) })
}

/// Returns the attributes of what is at a path; documented in the header.
///
/// # Safety
/// The conditions of [`tombolo_stat`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_lstat(
    tree: *const TomboloTree,
    path: *const c_char,
    out: *mut Stat,
) -> c_int {
    // SAFETY: the caller guarantees the same.
    guarded_int(|| unsafe { stat(tree, path, Last::Keep, out) })
}

/// Checks the user's access to what a path leads to; documented in the header.
///
/// # Safety
/// `tree` is null or an open tree, `path` null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_access(tree: *const TomboloTree, path: *const c_char, mode: c_int) -> c_int {
    guarded_int(|| {
        // SAFETY: null or an open tree, which is not closed before this returns.
        let tree = unsafe { tree_of(tree) }?;
        // SAFETY: null or a string, which the caller keeps until this returns.
        let path = unsafe { path_of(path) }?;
        let mask = mask_of(mode).ok_or(Failure::INVALID)?;
        tree.cached.access(path, mask).wait()?;
        Ok(0)
    })
}

/// Converts the mode bits of access(2); `None` if there are unknown ones.
fn mask_of(mode: c_int) -> Option<AccessMask> {
    let pairs =
        [(libc::R_OK, AccessMask::READ), (libc::W_OK, AccessMask::WRITE), (libc::X_OK, AccessMask::EXECUTE)];
    let asked = pairs.into_iter().filter(|(bit, _)| mode & bit != 0);
    (mode & !(libc::R_OK | libc::W_OK | libc::X_OK) == 0).then(|| asked.map(|(_, mask)| mask).collect())
}
