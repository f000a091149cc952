//! The side program: an extension that our servers offer next to NFS on the same connection
//! (`docs/protocols/side.md`). Other servers answer PROG_UNAVAIL.

use tombolo_wire_xdr::{List, xdr_enum, xdr_program, xdr_struct};

use crate::args::{AccessBits, StableHow};
use crate::listing::ReaddirplusReply;
use crate::results::{ReadReply, WriteReply};
use crate::{Cookie3, CookieVerifier, Data, Fattr3, FileHandle, PostOpAttr, Reply, WccAttr};

/// RPC program number, in the user-defined range (RFC 5531 §8.1).
pub const PROGRAM: u32 = 0x2054_424C;
/// Version of the side program.
pub const VERSION: u32 = 1;

xdr_program! {
    /// Decodes the arguments of `procedure`.
    ///
    /// # Errors
    /// The arguments are invalid, to be answered GARBAGE_ARGS.
    pub fn decode;
    /// No operation: tests for the program.
    Null = 0,
    /// List a directory and its subdirectories.
    List(args: ListArgs<'a>) = 1,
    /// Get a file's version and the digests of a range.
    Digests(args: DigestsArgs<'a>) = 2,
    /// Read locally cached data of a version of another server's file.
    Lend(args: LendArgs<'a>) = 3,
    /// Get, keep or return a lease of the tree.
    Lease(args: LeaseArgs<'a>) = 4,
    /// Read ranges of a file, compressed.
    Pack(args: PackArgs<'a>) = 5,
    /// Write data to a file, compressed.
    Unpack(args: UnpackArgs<'a>) = 6,
}

xdr_struct! {
    /// Arguments of LIST.
    pub struct ListArgs<'a> {
        /// The directory to list.
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

    /// A directory, or the part of it that the call selected.
    pub struct ListedDir<'a> {
        /// Handle of the listed directory.
        pub dir: FileHandle<'a>,
        /// Granted subset of the requested rights.
        pub access: AccessBits,
        /// Results of READDIRPLUS for the listed directory.
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
    /// Arguments of DIGESTS.
    pub struct DigestsArgs<'a> {
        /// The file whose digests are requested.
        pub file: FileHandle<'a>,
        /// Offset of the first chunk: a multiple of [`CHUNK_BYTES`].
        pub offset: u64,
        /// Length of the range, in bytes.
        pub count: u32,
    }

    /// Results of a successful DIGESTS.
    pub struct DigestsOk<'a> {
        /// Attributes while the digests were computed: the file did not change meanwhile.
        pub attributes: Fattr3,
        /// Concatenated digests of all chunks that intersect the range, up to the end of the file.
        pub digests: &'a [u8],
    }
}

/// Results of DIGESTS. On failure: the file's attributes.
pub type DigestsReply<'a> = Reply<DigestsOk<'a>, PostOpAttr>;

xdr_struct! {
    /// Arguments of LEND.
    pub struct LendArgs<'a> {
        /// Root of an export that is a cache.
        pub export: FileHandle<'a>,
        /// Type of the handle by which the cache identifies the file at its origin.
        pub kind: u32,
        /// Handle of the file at the origin.
        pub file: FileHandle<'a>,
        /// Version of the file whose data are requested.
        pub version: WccAttr,
        /// Offset of the data in the file.
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
        /// Keep the given lease: the call is answered on recall, or after a fraction of the term.
        Keep = 1,
        /// Return the given lease.
        GiveBack = 2,
    }
}

xdr_struct! {
    /// Arguments of LEASE.
    pub struct LeaseArgs<'a> {
        /// A file or directory of the tree to be leased.
        pub file: FileHandle<'a>,
        /// Operation on the client's lease of the tree.
        pub act: LeaseOperation,
        /// Epoch of the lease to keep or return; ignored by GRANT.
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
        /// State of the client's lease after the operation.
        pub state: LeaseState,
        /// Epoch of the lease; 0 if it is not held.
        pub epoch: u64,
        /// If held: term, from the time of the request. If not held: delay before the next request. If
        /// recalled: 0.
        pub time_ms: u32,
    }
}

/// Results of LEASE. NOTSUPP: no leases of this tree are granted.
pub type LeaseReply = Reply<LeaseOk, ()>;

/// Maximum uncompressed length of the data of one PACK or UNPACK, in bytes.
pub const COMPRESSED_BYTES_MAX: u32 = 1 << 20;

/// Maximum number of ranges of one PACK.
pub const COMPRESSED_RANGES_MAX: usize = 256;

xdr_struct! {
    /// A range of a file.
    pub struct FilePart {
        /// Offset in the file, in bytes.
        pub offset: u64,
        /// Length, in bytes.
        pub count: u32,
    }

    /// Arguments of PACK.
    pub struct PackArgs<'a> {
        /// The file to read.
        pub file: FileHandle<'a>,
        /// Requested ranges, none of them past the end of the file.
        pub parts: List<'a, FilePart>,
    }

    /// Results of a successful PACK.
    pub struct PackOk<'a> {
        /// Attributes while the file was read: it did not change meanwhile.
        pub attributes: Fattr3,
        /// All ranges, concatenated, as one Zstandard frame (RFC 8878).
        pub frame: &'a [u8],
    }
}

/// Results of PACK. INVAL: a range is past the end of the file, or the ranges are empty or exceed a limit.
pub type PackReply<'a> = Reply<PackOk<'a>, PostOpAttr>;

xdr_struct! {
    /// Arguments of UNPACK, which is a WRITE (RFC 1813 §3.3.7) with compressed data.
    pub struct UnpackArgs<'a> {
        /// The file to write.
        pub file: FileHandle<'a>,
        /// Offset of the data in the file, in bytes.
        pub offset: u64,
        /// Uncompressed length: at most [`COMPRESSED_BYTES_MAX`].
        pub count: u32,
        /// Required stability of the data when the call is answered.
        pub stable: StableHow,
        /// All data, as one Zstandard frame (RFC 8878).
        pub frame: Data,
    }
}

/// Results of UNPACK: those of WRITE. INVAL: the frame does not contain exactly `count` bytes, or `count` is
/// 0 or too large.
pub type UnpackReply = WriteReply;
