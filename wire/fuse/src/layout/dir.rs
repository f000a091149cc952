//! Directory entries: creation, renaming and listing, and forgets, which release look-ups.

use super::attr::EntryOut;
use super::wire_struct;

wire_struct! {
    /// `struct fuse_forget_in`.
    pub struct ForgetIn: 8 {
        /// Number of look-ups to release.
        pub nlookup: u64,
    }

    /// `struct fuse_batch_forget_in`; that many [`ForgetOne`] follow.
    pub struct BatchForgetIn: 8 {
        pub count: u32,
        pub dummy: u32,
    }

    /// `struct fuse_forget_one`.
    pub struct ForgetOne: 16 {
        pub nodeid: u64,
        /// Number of look-ups to release.
        pub nlookup: u64,
    }

    /// `struct fuse_mknod_in`; the name follows.
    pub struct MknodIn: 16 {
        pub mode: u32,
        /// Device number, in the kernel's 32-bit encoding.
        pub rdev: u32,
        pub umask: u32,
        pub padding: u32,
    }

    /// `struct fuse_mkdir_in`; the name follows.
    pub struct MkdirIn: 8 {
        pub mode: u32,
        pub umask: u32,
    }

    /// `struct fuse_rename_in`; the old and the new name follow.
    pub struct RenameIn: 8 {
        pub newdir: u64,
    }

    /// `struct fuse_rename2_in`; the old and the new name follow.
    pub struct Rename2In: 16 {
        pub newdir: u64,
        /// `RENAME_*`.
        pub flags: u32,
        pub padding: u32,
    }

    /// `struct fuse_link_in`; the new name follows.
    pub struct LinkIn: 8 {
        /// The node to be linked.
        pub oldnodeid: u64,
    }

    /// `struct fuse_dirent`; the name follows, padded to 8 bytes.
    pub struct Dirent: 24 {
        pub ino: u64,
        /// Cookie of the position behind this entry, with which a later READDIR continues.
        pub off: u64,
        /// Length of the name, without the padding.
        pub namelen: u32,
        /// `DT_*`.
        pub kind: u32,
    }

    /// `struct fuse_direntplus`; the name follows, padded to 8 bytes.
    pub struct DirentPlus: 152 {
        /// Result of a LOOKUP of the name; node id 0 for none.
        pub entry: EntryOut,
        pub dirent: Dirent,
    }
}
