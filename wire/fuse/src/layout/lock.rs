//! POSIX and flock locks.

use super::wire_struct;

wire_struct! {
    /// `struct fuse_file_lock`.
    pub struct FileLock: 24 {
        /// First byte.
        pub start: u64,
        /// Last byte, inclusive; `i64::MAX` for the end of the file, however far it grows.
        pub end: u64,
        /// [`F_RDLCK`], [`F_WRLCK`] or [`F_UNLCK`].
        pub kind: u32,
        /// Process that holds the lock (in the reply to GETLK) or requests it.
        pub pid: u32,
    }

    /// `struct fuse_lk_in`: GETLK, SETLK, SETLKW.
    pub struct LkIn: 48 {
        pub fh: u64,
        /// The owner of the lock.
        pub owner: u64,
        pub lk: FileLock,
        /// [`LK_FLOCK`].
        pub lk_flags: u32,
        pub padding: u32,
    }

    /// `struct fuse_lk_out`: reply to GETLK.
    pub struct LkOut: 24 {
        /// The conflicting lock, or one of kind [`F_UNLCK`].
        pub lk: FileLock,
    }
}

/// `FUSE_LK_FLOCK`: a flock(2) lock.
pub const LK_FLOCK: u32 = 1 << 0;
/// A shared lock.
pub const F_RDLCK: u32 = 0;
/// An exclusive lock.
pub const F_WRLCK: u32 = 1;
/// Release of a lock; in the reply to GETLK: no lock conflicts.
pub const F_UNLCK: u32 = 2;
/// The `end` of a lock that extends to the end of the file, however far it grows.
pub const OFFSET_MAX: u64 = i64::MAX as u64;
