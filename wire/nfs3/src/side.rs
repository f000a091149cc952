//! The side program: what our servers answer beside NFS on the same connection (`docs/protocols/side.md`). A
//! stranger's server answers PROG_UNAVAIL.

use tombolo_wire_xdr::{Decoder, Encode, Encoder, List, Result, xdr_enum, xdr_struct};

use crate::args::{AccessBits, StableHow};
use crate::listing::ReaddirplusReply;
use crate::results::{ReadReply, WriteReply};
use crate::{Cookie3, CookieVerifier, Data, Fattr3, FileHandle, PostOpAttr, Reply, WccAttr};

/// Its number, of the range that users define (RFC 5531 §8.1).
pub const PROGRAM: u32 = 0x2054_424C;
/// Its version.
pub const VERSION: u32 = 1;

xdr_enum! {
    /// What a call asks for. RPC answers PROC_UNAVAIL to any other number.
    pub enum Procedure {
        /// Nothing: whether there is such a program.
        Null = 0,
        /// A directory's entries, and those of the directories below it.
        List = 1,
        /// A file's version and the digests of a part of it.
        Digests = 2,
        /// Data of a version of a file of another server, which is cached here.
        Lend = 3,
        /// A lease of the tree: to have one, to keep it until it is recalled, to give it back.
        Lease = 4,
        /// Parts of a file, compressed.
        Pack = 5,
        /// Data that a file gets, compressed.
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
    /// Reads the arguments of `procedure`.
    ///
    /// # Errors
    /// These are not the procedure's arguments: RPC's answer is GARBAGE_ARGS.
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

    /// Which procedure.
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
        /// Where its listing goes on; 0 is its beginning.
        pub cookie: Cookie3,
        /// Goes with the cookie, as in READDIRPLUS.
        pub verifier: CookieVerifier,
        /// What the answer may take, in bytes: all of it.
        pub bytes_max: u32,
        /// Whether the directories below are to follow.
        pub with_subtree: bool,
        /// What is asked about each directory, as by ACCESS.
        pub access: AccessBits,
    }
}

xdr_struct! {
    /// A directory, or a part of it that begins where the call says.
    pub struct ListedDir<'a> {
        /// Which.
        pub dir: FileHandle<'a>,
        /// What the caller may do there, of what was asked.
        pub access: AccessBits,
        /// What READDIRPLUS would answer.
        pub page: ReaddirplusReply<'a>,
    }
}

/// What LIST answers: the directory that was asked for, and, where that is listed to its end, directories
/// below it, each whole. Only the first can be a failure.
pub type ListReply<'a> = List<'a, ListedDir<'a>>;

/// Of so many bytes of a file there is a digest, beginning with the first; the last is of what is left.
pub const CHUNK_BYTES: u64 = 64 << 10;

/// A digest is so long (BLAKE3).
pub const DIGEST_BYTES: usize = 32;

/// One call asks for the digests of so many bytes at most.
pub const DIGESTED_BYTES_MAX: u32 = 1 << 20;

xdr_struct! {
    /// DIGESTS.
    pub struct DigestsArgs<'a> {
        /// The file.
        pub file: FileHandle<'a>,
        /// Where the first chunk begins: a multiple of [`CHUNK_BYTES`].
        pub offset: u64,
        /// Of how many bytes digests are wanted.
        pub count: u32,
    }
}

xdr_struct! {
    /// What a file is now, and what is in it.
    pub struct DigestsOk<'a> {
        /// Its attributes while the digests were made: nothing has changed it then.
        pub attributes: Fattr3,
        /// The digest of each chunk that any of the range lies in, up to the end of the file, one after the
        /// other.
        pub digests: &'a [u8],
    }
}

/// What DIGESTS answers.
pub type DigestsReply<'a> = Reply<DigestsOk<'a>, PostOpAttr>;

xdr_struct! {
    /// LEND.
    pub struct LendArgs<'a> {
        /// The root of an export that is a cache.
        pub export: FileHandle<'a>,
        /// What the server that is cached calls the file: how the cache knows its handles, and the handle.
        pub kind: u32,
        /// As above.
        pub file: FileHandle<'a>,
        /// Which version of it.
        pub version: WccAttr,
        /// Where the data begin.
        pub offset: u64,
        /// How much is wanted, in bytes: all of it, or nothing.
        pub count: u32,
    }
}

/// What LEND answers: as READ, without attributes. NOENT where the data cannot be had.
pub type LendReply = ReadReply;

xdr_enum! {
    /// What is asked about a lease.
    pub enum LeaseAct {
        /// To have one.
        Grant = 0,
        /// To keep the one that is named: answered when it is recalled, or after a while.
        Keep = 1,
        /// The one that is named is given back.
        GiveBack = 2,
    }
}

xdr_struct! {
    /// LEASE.
    pub struct LeaseArgs<'a> {
        /// A file or directory of the tree.
        pub file: FileHandle<'a>,
        /// What is asked.
        pub act: LeaseAct,
        /// The number of the lease.
        pub epoch: u64,
    }
}

xdr_enum! {
    /// How a lease stands.
    pub enum LeaseState {
        /// It is held.
        Held = 0,
        /// It is held, and to be given back.
        Recalled = 1,
        /// It is not held.
        NotHeld = 2,
    }
}

xdr_struct! {
    /// What LEASE answers where it succeeds.
    pub struct LeaseOk {
        /// How it stands.
        pub state: LeaseState,
        /// The number of the lease that is held.
        pub epoch: u64,
        /// How long it is held from when it was asked about; or after what time it may be asked for again.
        pub time_ms: u32,
    }
}

/// What LEASE answers. NOTSUPP: no leases of this tree are granted.
pub type LeaseReply = Reply<LeaseOk, ()>;

/// One call asks for so many bytes at most, of all parts together.
pub const PACKED_BYTES_MAX: u32 = 1 << 20;

/// And for so many parts.
pub const PACKED_PARTS_MAX: usize = 256;

xdr_struct! {
    /// A part of a file.
    pub struct FilePart {
        /// Where it begins.
        pub offset: u64,
        /// Its length, in bytes.
        pub count: u32,
    }
}

xdr_struct! {
    /// PACK.
    pub struct PackArgs<'a> {
        /// The file.
        pub file: FileHandle<'a>,
        /// What is wanted of it, none of it past the end of the file.
        pub parts: List<'a, FilePart>,
    }
}

xdr_struct! {
    /// What is in a file.
    pub struct PackOk<'a> {
        /// Its attributes while it was read: nothing has changed it then.
        pub attributes: Fattr3,
        /// All parts, one after the other, as one frame of Zstandard (RFC 8878).
        pub frame: &'a [u8],
    }
}

/// What PACK answers. INVAL: there is not as much in the file.
pub type PackReply<'a> = Reply<PackOk<'a>, PostOpAttr>;

xdr_struct! {
    /// UNPACK: a WRITE (RFC 1813 §3.3.7) whose data travel compressed.
    pub struct UnpackArgs<'a> {
        /// The file.
        pub file: FileHandle<'a>,
        /// Where in the file the data go.
        pub offset: u64,
        /// How many bytes they are: at most [`PACKED_BYTES_MAX`].
        pub count: u32,
        /// How stable they are to be.
        pub stable: StableHow,
        /// All of them, as one frame of Zstandard (RFC 8878).
        pub frame: Data,
    }
}

/// What UNPACK answers: as WRITE. INVAL: the frame does not hold as many bytes, or they are too many.
pub type UnpackReply = WriteReply;
