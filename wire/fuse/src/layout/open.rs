//! OPEN, CREATE, TMPFILE, RELEASE, FLUSH, FSYNC.

use super::wire_struct;
use bitflags::bitflags;

wire_struct! {
    /// `struct fuse_open_in`: OPEN and OPENDIR.
    pub struct OpenIn: 8 {
        /// `O_*` flags of the caller.
        pub flags: u32,
        /// [`OpenInFlags`].
        pub open_flags: u32,
    }

    /// `struct fuse_create_in`: CREATE and TMPFILE.
    pub struct CreateIn: 16 {
        /// `O_*` flags of the caller.
        pub flags: u32,
        /// File type and permission bits; with DONT_MASK the umask has not been applied.
        pub mode: u32,
        pub umask: u32,
        /// [`OpenInFlags`].
        pub open_flags: u32,
    }
}

bitflags! {
    /// `FUSE_OPEN_*`: the kernel's requests at an open.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct OpenInFlags: u32 {
        /// Clear the set-user-id and set-group-id bits when truncating (HANDLE_KILLPRIV_V2).
        const KILL_SUIDGID = 1 << 0;
    }
}

wire_struct! {
    /// `struct fuse_open_out`.
    pub struct OpenOut: 16 {
        /// Handle of the opening, which later requests contain; chosen by the server.
        pub fh: u64,
        /// [`OpenOutFlags`].
        pub open_flags: u32,
        /// Id of the backing file, with [`OpenOutFlags::PASSTHROUGH`].
        pub backing_id: i32,
    }
}

bitflags! {
    /// `FOPEN_*`: the kernel's treatment of the open file.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct OpenOutFlags: u32 {
        /// Bypass the page cache.
        const DIRECT_IO = 1 << 0;
        /// Keep pages cached before this open; without the flag the kernel drops them.
        const KEEP_CACHE = 1 << 1;
        /// The file is not seekable.
        const NONSEEKABLE = 1 << 2;
        /// The kernel may cache the directory's listing.
        const CACHE_DIR = 1 << 3;
        /// The file is a stream without a position.
        const STREAM = 1 << 4;
        /// No FLUSH at close (since 7.35).
        const NOFLUSH = 1 << 5;
        /// Concurrent direct writes of one file (since 7.38).
        const PARALLEL_DIRECT_WRITES = 1 << 6;
        /// Reads and writes use the backing file (since 7.40).
        const PASSTHROUGH = 1 << 7;
    }
}

wire_struct! {
    /// `struct fuse_release_in`: RELEASE and RELEASEDIR.
    pub struct ReleaseIn: 24 {
        pub fh: u64,
        /// `O_*` flags of the open.
        pub flags: u32,
        /// [`ReleaseFlags`].
        pub release_flags: u32,
        /// Owner of the POSIX locks for [`ReleaseFlags::FLUSH`], or of the flock lock for
        /// [`ReleaseFlags::FLOCK_UNLOCK`].
        pub lock_owner: u64,
    }
}

bitflags! {
    /// `FUSE_RELEASE_*`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ReleaseFlags: u32 {
        /// Flush as well: report delayed errors, and release the owner's POSIX locks.
        const FLUSH = 1 << 0;
        /// Drop the owner's flock lock.
        const FLOCK_UNLOCK = 1 << 1;
    }
}

wire_struct! {
    /// `struct fuse_flush_in`.
    pub struct FlushIn: 24 {
        pub fh: u64,
        pub unused: u32,
        pub padding: u32,
        /// Owner of the POSIX locks to release.
        pub lock_owner: u64,
    }

    /// `struct fuse_fsync_in`: FSYNC and FSYNCDIR.
    pub struct FsyncIn: 16 {
        pub fh: u64,
        /// [`FSYNC_FDATASYNC`].
        pub fsync_flags: u32,
        pub padding: u32,
    }
}

/// `FUSE_FSYNC_FDATASYNC`: data only.
pub const FSYNC_FDATASYNC: u32 = 1 << 0;
