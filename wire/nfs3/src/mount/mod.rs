//! MOUNT version 3 (RFC 1813 appendix I), which maps an export's path to the handle of its root.

mod list;
mod mnt;

pub use list::{ExportEntry, MountEntry};
pub use mnt::{
    DirPath, FLAVORS_MAX, Flavors, MntOk, MntReply, MountName, NAME_BYTES_MAX, PATH_BYTES_MAX, Status,
};

use tombolo_wire_xdr::{Decoder, Encode, Encoder, List, Result, xdr_enum};

/// RPC program number of MOUNT.
pub const PROGRAM: u32 = 100_005;
/// The version of MOUNT that accompanies NFS 3.
pub const VERSION: u32 = 3;

/// Results of DUMP (appendix I §5.2.2).
pub type DumpReply<'a> = List<'a, MountEntry<'a>>;
/// Results of EXPORT (appendix I §5.2.5).
pub type ExportReply<'a> = List<'a, ExportEntry<'a>>;

xdr_enum! {
    /// A procedure. NULL, UMNT and UMNTALL have no results.
    pub enum Procedure {
        /// No operation.
        Null = 0,
        /// Get the root of an export.
        Mnt = 1,
        /// List the mounts.
        Dump = 2,
        /// Remove one of the client's mounts.
        Umnt = 3,
        /// Remove all of the client's mounts.
        UmntAll = 4,
        /// List the exports.
        Export = 5,
    }
}

/// A procedure with its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each case is the procedure of its name")]
pub enum Call<'a> {
    Null,
    Mnt(DirPath<'a>),
    Dump,
    Umnt(DirPath<'a>),
    UmntAll,
    Export,
}

impl<'a> Call<'a> {
    /// Decodes the arguments of `procedure`.
    ///
    /// # Errors
    /// The arguments are invalid, to be answered GARBAGE_ARGS.
    pub fn decode(procedure: Procedure, xdr: &mut Decoder<'a>) -> Result<Self> {
        match procedure {
            Procedure::Null => Ok(Self::Null),
            Procedure::Mnt => xdr.value().map(Self::Mnt),
            Procedure::Dump => Ok(Self::Dump),
            Procedure::Umnt => xdr.value().map(Self::Umnt),
            Procedure::UmntAll => Ok(Self::UmntAll),
            Procedure::Export => Ok(Self::Export),
        }
    }

    /// Returns the procedure.
    #[must_use]
    pub const fn procedure(&self) -> Procedure {
        match self {
            Self::Null => Procedure::Null,
            Self::Mnt(_) => Procedure::Mnt,
            Self::Dump => Procedure::Dump,
            Self::Umnt(_) => Procedure::Umnt,
            Self::UmntAll => Procedure::UmntAll,
            Self::Export => Procedure::Export,
        }
    }
}

/// The arguments.
impl Encode for Call<'_> {
    fn encode(&self, xdr: &mut Encoder<'_>) {
        match self {
            Self::Mnt(path) | Self::Umnt(path) => {
                xdr.value(path);
            }
            Self::Null | Self::Dump | Self::UmntAll | Self::Export => {}
        }
    }
}
