//! MOUNT version 3 (RFC 1813 appendix I), which maps the path of an export, or of a directory in it, to a
//! handle.

mod list;
mod mnt;

pub use list::{ExportEntry, MountEntry};
pub use mnt::{
    DirPath, FLAVORS_MAX, Flavors, MntOk, MntReply, MountName, NAME_BYTES_MAX, PATH_BYTES_MAX, Status,
};

use tombolo_wire_xdr::{List, xdr_program};

/// RPC program number of MOUNT.
pub const PROGRAM: u32 = 100_005;
/// The version of MOUNT that accompanies NFS 3.
pub const VERSION: u32 = 3;

/// Results of DUMP (appendix I §5.2.2).
pub type DumpReply<'a> = List<'a, MountEntry<'a>>;
/// Results of EXPORT (appendix I §5.2.5).
pub type ExportReply<'a> = List<'a, ExportEntry<'a>>;

xdr_program! {
    /// Decodes the arguments of `procedure`.
    ///
    /// # Errors
    /// The arguments are invalid, to be answered GARBAGE_ARGS.
    pub fn decode;
    /// No operation.
    Null = 0,
    /// Get the handle of an export's root, or of a directory in it.
    Mnt(path: DirPath<'a>) = 1,
    /// List the mounts.
    Dump = 2,
    /// Remove one of the client's mounts.
    Umnt(path: DirPath<'a>) = 3,
    /// Remove all of the client's mounts.
    UmntAll = 4,
    /// List the exports.
    Export = 5,
}
