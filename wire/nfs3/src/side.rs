//! The side program: an extension that our servers offer next to NFS on the same connection
//! (`docs/protocols/side.md`). Other servers answer PROC_UNAVAIL.

use tombolo_wire_xdr::{Decoder, Encode, Encoder, List, Result, xdr_enum, xdr_struct};

use crate::args::{AccessBits, StableHow};
use crate::listing::ReaddirplusReply;
use crate::results::{ReadReply, WriteReply};
use crate::{Cookie3, CookieVerifier, Data, Fattr3, FileHandle, PostOpAttr, Reply, WccAttr};

/// RPC program number, in the user-defined range (RFC 5531 §8.1).
pub const PROGRAM: u32 = 0x2054_424C;
/// Version.
pub const VERSION: u32 = 1;

xdr_enum! {
    /// A procedure. RPC answers PROC_UNAVAIL to any other number.
    pub enum Procedure {
        /// No operation: tests for the program.
        Null = 0,
        /// List a directory and its subdirectories.
        List = 1,
        /// Get a file's version and the digests of a range.
        Digests = 2,
        /// Read locally cached data of a version of another server's file.
        Lend = 3,
        /// Get, keep or return a lease of the tree.
        Lease = 4,
        /// Read ranges of a file, compressed.
        Pack = 5,
        /// Write data to a file, compressed.
        Unpack = 6,
    }
}

/// A procedure with its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each case is the procedure of its name")]
pub enum Call<'a> {
    Null,
    List(ListArgs<'a>),
    Digests(DigestsArgs<'a>),
    Lend(LendArgs<'a>),
    Lease(LeaseArgs<'a>),
    Pack(PackArgs<'a>),
    Unpack(UnpackArgs<'a>),
}

impl<'a> Call<'a> {
    /// Decodes the arguments of `procedure`.
    ///
    /// # Errors
    /// The arguments are invalid, to be answered GARBAGE_ARGS.
    pub fn decode(procedure: Procedure, xdr: &mut Decoder<'a>) -> Result<Self> {
        match procedure {
            Procedure::Null => Ok(Self::Null),
            Procedure::List => xdr.value().map(Self::List),
            Procedure::Digests => xdr.value().map(Self::Digests),
            Procedure::Lend => xdr.value().map(Self::Lend),
            Procedure::Lease => xdr.value().map(Self::Lease),
            Procedure::Pack => xdr.value().map(Self::Pack),
            Procedure::Unpack => xdr.value().map(Self::Unpack),
        }
    }

    /// Returns the procedure.
    #[must_use]
    pub const fn procedure(&self) -> Procedure {
        match self {
            Self::Null => Procedure::Null,
            Self::List(_) => Procedure::List,
            Self::Digests(_) => Procedure::Digests,
            Self::Lend(_) => Procedure::Lend,
            Self::Lease(_) => Procedure::Lease,
            Self::Pack(_) => Procedure::Pack,
            Self::Unpack(_) => Procedure::Unpack,
        }
    }
}

impl Encode for Call<'_> {
    fn encode(&self, xdr: &mut Encoder<'_>) {
        match self {
            Self::Null => {}
            Self::List(args) => drop(xdr.value(args)),
            Self::Digests(args) => drop(xdr.value(args)),
            Self::Lend(args) => drop(xdr.value(args)),
            Self::Lease(args) => drop(xdr.value(args)),
            Self::Pack(args) => drop(xdr.value(args)),
            Self::Unpack(args) => drop(xdr.value(args)),
        }
    }
}

xdr_struct! {
    /// LIST.
    pub struct ListArgs<'a> {
        /// The directory.
        pub dir: FileHandle<'a>,
        /// Position in the directory's listing; 0: the beginning.
        pub cookie: Cookie3,
        /// Verifier of the cookie, as in READDIRPLUS.
        pub verifier: CookieVerifier,
        /// Maximum size of the whole answer, in bytes.
        pub bytes_max: u32,
        /// `true` to list subdirectories as well.
        pub with_subtree: bool,
        /// Rights to be checked for each directory, as by ACCESS.
        pub access: AccessBits,
    }
}

xdr_struct! {
    /// A directory, or the part of it that the call selected.
    pub struct ListedDir<'a> {
        /// Handle of the directory.
        pub dir: FileHandle<'a>,
        /// Granted subset of the requested rights.
        pub access: AccessBits,
        /// Results of READDIRPLUS.
        pub page: ReaddirplusReply<'a>,
    }
}

/// Results of LIST: the requested directory, and, if it is listed to its end, subdirectories of it, each
/// whole. Only the first can be a failure.
pub type ListReply<'a> = List<'a, ListedDir<'a>>;

/// Unit of digests, in bytes, from the beginning of the file; the last one may be shorter.
pub const CHUNK_BYTES: u64 = 64 << 10;

/// Length of a digest (BLAKE3), in bytes.
pub const DIGEST_BYTES: usize = 32;

/// Maximum range of a DIGESTS call, in bytes.
pub const DIGESTED_BYTES_MAX: u32 = 1 << 20;

xdr_struct! {
    /// DIGESTS.
    pub struct DigestsArgs<'a> {
        /// The file.
        pub file: FileHandle<'a>,
        /// Offset of the first chunk: a multiple of [`CHUNK_BYTES`].
        pub offset: u64,
        /// Length of the range, in bytes.
        pub count: u32,
    }
}

xdr_struct! {
    /// Results of a successful DIGESTS.
    pub struct DigestsOk<'a> {
        /// Attributes while the digests were computed: the file did not change meanwhile.
        pub attributes: Fattr3,
        /// Concatenated digests of all chunks that intersect the range, up to the end of the file.
        pub digests: &'a [u8],
    }
}

/// Results of DIGESTS.
pub type DigestsReply<'a> = Reply<DigestsOk<'a>, PostOpAttr>;

xdr_struct! {
    /// LEND.
    pub struct LendArgs<'a> {
        /// Root of an export that is a cache.
        pub export: FileHandle<'a>,
        /// Type of the handle by which the cache identifies the file at its origin.
        pub kind: u32,
        /// Handle of the file at the origin.
        pub file: FileHandle<'a>,
        /// Version of the file.
        pub version: WccAttr,
        /// Offset of the data.
        pub offset: u64,
        /// Length of the data, in bytes: all or nothing.
        pub count: u32,
    }
}

/// Results of LEND: those of READ, without attributes. NOENT if the data are not available.
pub type LendReply = ReadReply;

xdr_enum! {
    /// An operation on a lease.
    pub enum LeaseOperation {
        /// Request a lease.
        Grant = 0,
        /// Keep the given lease: answered on recall, or after a fraction of the term.
        Keep = 1,
        /// Return the given lease.
        GiveBack = 2,
    }
}

xdr_struct! {
    /// LEASE.
    pub struct LeaseArgs<'a> {
        /// A file or directory of the tree.
        pub file: FileHandle<'a>,
        /// Operation.
        pub act: LeaseOperation,
        /// Epoch of the lease.
        pub epoch: u64,
    }
}

xdr_enum! {
    /// The state of a lease.
    pub enum LeaseState {
        /// The lease is held.
        Held = 0,
        /// The lease is held, and must be returned.
        Recalled = 1,
        /// The lease is not held.
        NotHeld = 2,
    }
}

xdr_struct! {
    /// Results of a successful LEASE.
    pub struct LeaseOk {
        /// State.
        pub state: LeaseState,
        /// Epoch of the lease.
        pub epoch: u64,
        /// Term from the time of the request; or delay before the next request.
        pub time_ms: u32,
    }
}

/// Results of LEASE. NOTSUPP: no leases of this tree are granted.
pub type LeaseReply = Reply<LeaseOk, ()>;

/// Maximum total length of a call's ranges, in bytes.
pub const COMPRESSED_BYTES_MAX: u32 = 1 << 20;

/// Maximum number of a call's ranges.
pub const COMPRESSED_RANGES_MAX: usize = 256;

xdr_struct! {
    /// A range of a file.
    pub struct FilePart {
        /// Offset.
        pub offset: u64,
        /// Length, in bytes.
        pub count: u32,
    }
}

xdr_struct! {
    /// PACK.
    pub struct PackArgs<'a> {
        /// The file.
        pub file: FileHandle<'a>,
        /// Requested ranges, none of them past the end of the file.
        pub parts: List<'a, FilePart>,
    }
}

xdr_struct! {
    /// Results of a successful PACK.
    pub struct PackOk<'a> {
        /// Attributes while the file was read: it did not change meanwhile.
        pub attributes: Fattr3,
        /// All ranges, concatenated, as one Zstandard frame (RFC 8878).
        pub frame: &'a [u8],
    }
}

/// Results of PACK. INVAL: a range is past the end of the file.
pub type PackReply<'a> = Reply<PackOk<'a>, PostOpAttr>;

xdr_struct! {
    /// UNPACK: a WRITE (RFC 1813 §3.3.7) with compressed data.
    pub struct UnpackArgs<'a> {
        /// The file.
        pub file: FileHandle<'a>,
        /// Offset of the data.
        pub offset: u64,
        /// Uncompressed length: at most [`COMPRESSED_BYTES_MAX`].
        pub count: u32,
        /// Required stability.
        pub stable: StableHow,
        /// All data, as one Zstandard frame (RFC 8878).
        pub frame: Data,
    }
}

/// Results of UNPACK: those of WRITE. INVAL: the frame has another length, or is too long.
pub type UnpackReply = WriteReply;
