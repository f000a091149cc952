//! Numbers of Linux's user interface that FUSE passes through: `O_*`, `S_IF*`, `SEEK_*` and friends.
//!
//! The generic values, as x86 and most others have them. A guest of another architecture that has its own
//! (`O_DIRECT` on arm) translates them itself before they reach the wire only where its kernel does.
#![allow(missing_docs, reason = "names that the kernel's header explains")]

/// Which accesses an open asks for.
pub const O_ACCMODE: u32 = 0o3;
pub const O_RDONLY: u32 = 0o0;
pub const O_WRONLY: u32 = 0o1;
pub const O_RDWR: u32 = 0o2;
/// Fail if the name exists.
pub const O_EXCL: u32 = 0o200;
/// Empty the file.
pub const O_TRUNC: u32 = 0o1000;
/// Every write goes to the end.
pub const O_APPEND: u32 = 0o2000;
/// Do not wait.
pub const O_NONBLOCK: u32 = 0o4000;
/// Data is durable when a write returns.
pub const O_DSYNC: u32 = 0o10000;
/// Past the cache.
pub const O_DIRECT: u32 = 0o40000;
/// Reading leaves the access time alone.
pub const O_NOATIME: u32 = 0o1_000_000;
/// Data and attributes are durable when a write returns.
pub const O_SYNC: u32 = 0o4_000_000 | O_DSYNC;
/// `__FMODE_EXEC`, which the kernel leaves in the flags when a program is executed.
pub const FMODE_EXEC: u32 = 0o40;

/// The bits of a mode that hold the file type.
pub const S_IFMT: u32 = 0o170_000;
pub const S_IFSOCK: u32 = 0o140_000;
pub const S_IFLNK: u32 = 0o120_000;
pub const S_IFREG: u32 = 0o100_000;
pub const S_IFBLK: u32 = 0o060_000;
pub const S_IFDIR: u32 = 0o040_000;
pub const S_IFCHR: u32 = 0o020_000;
pub const S_IFIFO: u32 = 0o010_000;

pub const SEEK_DATA: u32 = 3;
pub const SEEK_HOLE: u32 = 4;

/// Fail if the new name exists.
pub const RENAME_NOREPLACE: u32 = 1;
/// Swap the two names.
pub const RENAME_EXCHANGE: u32 = 2;
/// Leave a whiteout behind.
pub const RENAME_WHITEOUT: u32 = 4;

/// The attribute must not exist.
pub const XATTR_CREATE: u32 = 1;
/// The attribute must exist.
pub const XATTR_REPLACE: u32 = 2;

/// Leave the size alone.
pub const FALLOC_FL_KEEP_SIZE: u32 = 0x01;
/// Make a hole.
pub const FALLOC_FL_PUNCH_HOLE: u32 = 0x02;
/// Cut a range out.
pub const FALLOC_FL_COLLAPSE_RANGE: u32 = 0x08;
/// Make a range zeros.
pub const FALLOC_FL_ZERO_RANGE: u32 = 0x10;
/// Push a hole in.
pub const FALLOC_FL_INSERT_RANGE: u32 = 0x20;
/// Give a range blocks of its own.
pub const FALLOC_FL_UNSHARE_RANGE: u32 = 0x40;
