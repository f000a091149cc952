//! MOUNT version 3 (RFC 1813 appendix I): the handle of an export's root, by its path.

mod list;
mod mnt;

pub use list::{ExportEntry, MountEntry};
pub use mnt::{
    DirPath, FLAVORS_MAX, Flavors, MntOk, MntReply, MountName, NAME_BYTES_MAX, PATH_BYTES_MAX, Status,
};

use tombolo_wire_xdr::{Decoder, Encode, Encoder, List, Result, xdr_enum};

/// MOUNT among the RPC programs.
pub const PROGRAM: u32 = 100_005;
/// The version of MOUNT that goes with NFS 3.
pub const VERSION: u32 = 3;

/// What DUMP answers (appendix I §5.2.2).
pub type DumpReply<'a> = List<'a, MountEntry<'a>>;
/// What EXPORT answers (appendix I §5.2.5).
pub type ExportReply<'a> = List<'a, ExportEntry<'a>>;

xdr_enum! {
    /// What a call asks for. NULL, UMNT and UMNTALL answer nothing.
    pub enum Procedure {
        /// Nothing.
        Null = 0,
        /// The root of an export.
        Mnt = 1,
        /// The list of mounts.
        Dump = 2,
        /// An export is not in use any more.
        Umnt = 3,
        /// None is.
        UmntAll = 4,
        /// Which exports there are.
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
    /// Reads the arguments of `procedure`.
    ///
    /// # Errors
    /// These are not the procedure's arguments: RPC's answer is GARBAGE_ARGS.
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

    /// Which procedure.
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
