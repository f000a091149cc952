//! Constants of Linux's user interface in FUSE messages: `O_*`, `S_IF*`, `SEEK_*` and others.
//!
//! The values are the generic ones, as on x86 and most architectures, and in a program for arm those of arm.
//! A guest's kernel must be of an architecture with the same values, as they are not translated.
#![allow(missing_docs, reason = "names that the kernel's header explains")]

/// Mask of the access mode.
pub const O_ACCMODE: u32 = 0o3;
pub const O_RDONLY: u32 = 0o0;
pub const O_WRONLY: u32 = 0o1;
pub const O_RDWR: u32 = 0o2;
/// Fail if the name exists.
pub const O_EXCL: u32 = 0o200;
/// Truncate the file.
pub const O_TRUNC: u32 = 0o1000;
/// Append every write.
pub const O_APPEND: u32 = 0o2000;
/// Do not block.
pub const O_NONBLOCK: u32 = 0o4000;
/// Data are durable when a write returns.
pub const O_DSYNC: u32 = 0o10000;
/// Bypass the page cache. On arm, the generic value is that of `O_DIRECTORY`.
pub const O_DIRECT: u32 = match cfg!(any(target_arch = "arm", target_arch = "aarch64")) {
    true => 0o200_000,
    false => 0o40000,
};
/// Do not update the access time.
pub const O_NOATIME: u32 = 0o1_000_000;
/// Data and attributes are durable when a write returns.
pub const O_SYNC: u32 = 0o4_000_000 | O_DSYNC;
/// `__FMODE_EXEC`, which the kernel leaves in the flags of an executed program.
pub const FMODE_EXEC: u32 = 0o40;

/// Mask of the file type in a mode.
pub const S_IFMT: u32 = 0o170_000;

pub const SEEK_DATA: u32 = 3;
pub const SEEK_HOLE: u32 = 4;

/// Fail if the new name exists.
pub const RENAME_NOREPLACE: u32 = 1;
/// Exchange the two names.
pub const RENAME_EXCHANGE: u32 = 2;
/// Leave a whiteout behind.
pub const RENAME_WHITEOUT: u32 = 4;

/// The attribute must not exist.
pub const XATTR_CREATE: u32 = 1;
/// The attribute must exist.
pub const XATTR_REPLACE: u32 = 2;

/// Do not change the size.
pub const FALLOC_FL_KEEP_SIZE: u32 = 0x01;
/// Make a hole.
pub const FALLOC_FL_PUNCH_HOLE: u32 = 0x02;
/// Remove a range and shift the following data down.
pub const FALLOC_FL_COLLAPSE_RANGE: u32 = 0x08;
/// Zero a range.
pub const FALLOC_FL_ZERO_RANGE: u32 = 0x10;
/// Shift the following data up and leave a hole.
pub const FALLOC_FL_INSERT_RANGE: u32 = 0x20;
/// Give a range its own blocks.
pub const FALLOC_FL_UNSHARE_RANGE: u32 = 0x40;
