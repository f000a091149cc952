//! READ, WRITE and the operations on ranges of a file.

use super::wire_struct;
use bitflags::bitflags;

wire_struct! {
    /// `struct fuse_read_in`: READ, READDIR and READDIRPLUS.
    pub struct ReadIn: 40 {
        pub fh: u64,
        /// Byte offset; in a directory the cookie of the last entry that the kernel has, or 0.
        pub offset: u64,
        /// Maximum length of the data, in bytes.
        pub size: u32,
        /// `FUSE_READ_*`.
        pub read_flags: u32,
        /// Owner of the locks that the read must respect, if `read_flags` contain `FUSE_READ_LOCKOWNER`.
        pub lock_owner: u64,
        /// `O_*` flags of the open file.
        pub flags: u32,
        pub padding: u32,
    }

    /// `struct fuse_write_in`; the data follow it.
    pub struct WriteIn: 40 {
        pub fh: u64,
        /// Byte offset.
        pub offset: u64,
        /// Length of the data in bytes.
        pub size: u32,
        /// [`WriteFlags`].
        pub write_flags: u32,
        /// Owner of the locks that the write must respect, if `write_flags` contain
        /// [`WriteFlags::LOCKOWNER`].
        pub lock_owner: u64,
        /// `O_*` flags of the open file.
        pub flags: u32,
        pub padding: u32,
    }
}

bitflags! {
    /// `FUSE_WRITE_*`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct WriteFlags: u32 {
        /// The data are from the page cache: any process with an open file may have written them, and the
        /// request names one of these files and a caller at random.
        const CACHE = 1 << 0;
        /// The lock owner is valid.
        const LOCKOWNER = 1 << 1;
        /// Clear the set-user-id and set-group-id bits (HANDLE_KILLPRIV_V2).
        const KILL_SUIDGID = 1 << 2;
    }
}

wire_struct! {
    /// `struct fuse_write_out`: reply to WRITE and COPY_FILE_RANGE.
    pub struct WriteOut: 8 {
        /// Number of bytes written.
        pub size: u32,
        pub padding: u32,
    }

    /// `struct fuse_fallocate_in`.
    pub struct FallocateIn: 32 {
        pub fh: u64,
        pub offset: u64,
        pub length: u64,
        /// `FALLOC_FL_*`.
        pub mode: u32,
        pub padding: u32,
    }

    /// `struct fuse_lseek_in`.
    pub struct LseekIn: 24 {
        pub fh: u64,
        pub offset: u64,
        /// `SEEK_DATA` or `SEEK_HOLE`; the kernel handles the others itself.
        pub whence: u32,
        pub padding: u32,
    }

    /// `struct fuse_lseek_out`.
    pub struct LseekOut: 8 {
        pub offset: u64,
    }

    /// `struct fuse_copy_file_range_in`.
    pub struct CopyFileRangeIn: 56 {
        pub fh_in: u64,
        pub off_in: u64,
        pub nodeid_out: u64,
        pub fh_out: u64,
        pub off_out: u64,
        /// Number of bytes to copy.
        pub len: u64,
        /// Flags of copy_file_range(2); none are defined.
        pub flags: u64,
    }

    /// `struct fuse_copy_file_range_out`: reply to COPY_FILE_RANGE_64 (since 7.45).
    pub struct CopyFileRangeOut: 8 {
        /// Number of bytes copied.
        pub bytes_copied: u64,
    }
}
