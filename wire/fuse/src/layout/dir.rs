//! Directory entries: creation, renaming and listing, and forgets, which release look-ups.

use super::attr::EntryOut;
use super::{sizes, wire_struct};

wire_struct! {
    /// `struct fuse_forget_in`.
    pub struct ForgetIn {
        /// Number of look-ups to release.
        pub nlookup: u64,
    }
}

wire_struct! {
    /// `struct fuse_batch_forget_in`; that many [`ForgetOne`] follow.
    pub struct BatchForgetIn {
        pub count: u32,
        pub dummy: u32,
    }
}

wire_struct! {
    /// `struct fuse_forget_one`.
    pub struct ForgetOne {
        pub nodeid: u64,
        /// Number of look-ups to release.
        pub nlookup: u64,
    }
}

wire_struct! {
    /// `struct fuse_mknod_in`; the name follows.
    pub struct MknodIn {
        pub mode: u32,
        /// Device number, in the kernel's 32-bit encoding.
        pub rdev: u32,
        pub umask: u32,
        pub padding: u32,
    }
}

wire_struct! {
    /// `struct fuse_mkdir_in`; the name follows.
    pub struct MkdirIn {
        pub mode: u32,
        pub umask: u32,
    }
}

wire_struct! {
    /// `struct fuse_rename_in`; the old and the new name follow.
    pub struct RenameIn {
        pub newdir: u64,
    }
}

wire_struct! {
    /// `struct fuse_rename2_in`; the old and the new name follow.
    pub struct Rename2In {
        pub newdir: u64,
        /// `RENAME_*`.
        pub flags: u32,
        pub padding: u32,
    }
}

wire_struct! {
    /// `struct fuse_link_in`; the new name follows.
    pub struct LinkIn {
        /// The node to be linked.
        pub oldnodeid: u64,
    }
}

wire_struct! {
    /// `struct fuse_dirent`; the name follows, padded to 8 bytes.
    pub struct Dirent {
        pub ino: u64,
        /// Cookie behind this entry.
        pub off: u64,
        /// Length of the name.
        pub namelen: u32,
        /// `DT_*`.
        pub kind: u32,
    }
}

wire_struct! {
    /// `struct fuse_direntplus`; the name follows, padded to 8 bytes.
    pub struct DirentPlus {
        /// Result of a LOOKUP of the name; node id 0 for none.
        pub entry: EntryOut,
        pub dirent: Dirent,
    }
}

sizes!(
    ForgetIn = 8,
    BatchForgetIn = 8,
    ForgetOne = 16,
    MknodIn = 16,
    MkdirIn = 8,
    RenameIn = 8,
    Rename2In = 16,
    LinkIn = 8,
    Dirent = 24,
    DirentPlus = 152,
);
