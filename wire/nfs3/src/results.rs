//! What procedures answer (RFC 1813 §3.3): a [`Reply`] each. NULL answers nothing.

use bitflags::bitflags;
use tombolo_wire_xdr::{Decode, Decoder, Encode, Encoder, Result, xdr_struct};

use crate::args::{AccessBits, StableHow};
use crate::{Data, Fattr3, FileHandle, NfsTime3, PostOpAttr, Reply, WccData, WriteVerifier};

pub use crate::listing::{ReaddirReply, ReaddirplusReply};

/// GETATTR (§3.3.1).
pub type GetattrReply = Reply<Fattr3, ()>;
/// SETATTR (§3.3.2): the node.
pub type SetattrReply = Reply<WccData, WccData>;
/// LOOKUP (§3.3.3). On failure: the directory.
pub type LookupReply<'a> = Reply<LookupOk<'a>, PostOpAttr>;
/// ACCESS (§3.3.4). On failure: the node.
pub type AccessReply = Reply<AccessOk, PostOpAttr>;
/// READLINK (§3.3.5). On failure: the link.
pub type ReadlinkReply<'a> = Reply<ReadlinkOk<'a>, PostOpAttr>;
/// READ (§3.3.6). On failure: the file.
pub type ReadReply = Reply<ReadOk, PostOpAttr>;
/// WRITE (§3.3.7). On failure: the file.
pub type WriteReply = Reply<WriteOk, WccData>;
/// CREATE, MKDIR, SYMLINK, MKNOD (§3.3.8 to 11). On failure: the directory.
pub type CreateReply<'a> = Reply<CreateOk<'a>, WccData>;
/// REMOVE, RMDIR (§3.3.12, 13): the directory.
pub type RemoveReply = Reply<WccData, WccData>;
/// RENAME (§3.3.14).
pub type RenameReply = Reply<RenameWcc, RenameWcc>;
/// LINK (§3.3.15).
pub type LinkReply = Reply<LinkWcc, LinkWcc>;
/// FSSTAT (§3.3.18). On failure: the node.
pub type FsstatReply = Reply<FsstatOk, PostOpAttr>;
/// FSINFO (§3.3.19). On failure: the node.
pub type FsinfoReply = Reply<FsinfoOk, PostOpAttr>;
/// PATHCONF (§3.3.20). On failure: the node.
pub type PathconfReply = Reply<PathconfOk, PostOpAttr>;
/// COMMIT (§3.3.21). On failure: the file.
pub type CommitReply = Reply<CommitOk, WccData>;

xdr_struct! {
    /// A node that was found.
    pub struct LookupOk<'a> {
        /// The node.
        pub object: FileHandle<'a>,
        /// Its attributes.
        pub attributes: PostOpAttr,
        /// The directory's.
        pub dir_attributes: PostOpAttr,
    }
}

xdr_struct! {
    /// What may be done.
    pub struct AccessOk {
        /// The node's attributes.
        pub attributes: PostOpAttr,
        /// Of what was asked, what is allowed.
        pub access: AccessBits,
    }
}

xdr_struct! {
    /// Where a link points.
    pub struct ReadlinkOk<'a> {
        /// The link's attributes.
        pub attributes: PostOpAttr,
        /// Its target.
        pub target: &'a [u8],
    }
}

xdr_struct! {
    /// What was read, up to where the data begins.
    pub struct ReadOk {
        /// The file's attributes.
        pub attributes: PostOpAttr,
        /// Number of bytes read. A peer may announce another one than it sends.
        pub count: u32,
        /// Whether the file ends with them.
        pub eof: bool,
        /// The bytes.
        pub data: Data,
    }
}

impl ReadOk {
    /// `count` bytes, which follow what is encoded.
    #[inline]
    #[must_use]
    pub const fn to_send(attributes: PostOpAttr, count: u32, eof: bool) -> Self {
        Self { attributes, count, eof, data: Data::to_send(count) }
    }
}

xdr_struct! {
    /// What was written.
    pub struct WriteOk {
        /// The file.
        pub file_wcc: WccData,
        /// Number of bytes.
        pub count: u32,
        /// How stable they are.
        pub committed: StableHow,
        /// Changes when unstable data may have been lost.
        pub verifier: WriteVerifier,
    }
}

xdr_struct! {
    /// A node that was made.
    pub struct CreateOk<'a> {
        /// The node (`post_op_fh3`).
        pub object: Option<FileHandle<'a>>,
        /// Its attributes.
        pub attributes: PostOpAttr,
        /// The directory.
        pub dir_wcc: WccData,
    }
}

xdr_struct! {
    /// The directories of a RENAME.
    pub struct RenameWcc {
        /// Of the old name.
        pub from_dir: WccData,
        /// Of the new one.
        pub to_dir: WccData,
    }
}

xdr_struct! {
    /// The nodes of a LINK.
    pub struct LinkWcc {
        /// The node that got a name.
        pub attributes: PostOpAttr,
        /// The directory.
        pub dir_wcc: WccData,
    }
}

xdr_struct! {
    /// How full a file system is.
    pub struct FsstatOk {
        /// The node's attributes.
        pub attributes: PostOpAttr,
        /// Bytes in all.
        pub total_bytes: u64,
        /// Bytes that are free.
        pub free_bytes: u64,
        /// Bytes that are free for the user.
        pub available_bytes: u64,
        /// Nodes in all.
        pub total_files: u64,
        /// Nodes that are free.
        pub free_files: u64,
        /// Nodes that are free for the user.
        pub available_files: u64,
        /// For how many seconds this will stay so.
        pub invarsec: u32,
    }
}

bitflags! {
    /// What a file system can do (§3.3.19).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Properties: u32 {
        /// Hard links (`FSF3_LINK`).
        const LINK = 0x01;
        /// Symbolic links (`FSF3_SYMLINK`).
        const SYMLINK = 0x02;
        /// PATHCONF says the same of every node (`FSF3_HOMOGENEOUS`).
        const HOMOGENEOUS = 0x08;
        /// Times can be set (`FSF3_CANSETTIME`).
        const CAN_SET_TIME = 0x10;
    }
}

impl<'a> Decode<'a> for Properties {
    #[inline]
    fn decode(xdr: &mut Decoder<'a>) -> Result<Self> {
        xdr.u32().map(Self::from_bits_retain)
    }
}

impl Encode for Properties {
    #[inline]
    fn encode(&self, xdr: &mut Encoder<'_>) {
        xdr.u32(self.bits());
    }
}

xdr_struct! {
    /// What a server can do. Sizes are in bytes.
    pub struct FsinfoOk {
        /// The node's attributes.
        pub attributes: PostOpAttr,
        /// The largest READ.
        pub read_max: u32,
        /// The preferred READ.
        pub read_preferred: u32,
        /// What a READ's size should be a multiple of.
        pub read_multiple: u32,
        /// The largest WRITE.
        pub write_max: u32,
        /// The preferred WRITE.
        pub write_preferred: u32,
        /// What a WRITE's size should be a multiple of.
        pub write_multiple: u32,
        /// The preferred READDIR.
        pub readdir_preferred: u32,
        /// The largest file.
        pub file_size_max: u64,
        /// How finely times are kept.
        pub time_delta: NfsTime3,
        /// What the file system can do.
        pub properties: Properties,
    }
}

xdr_struct! {
    /// POSIX limits.
    pub struct PathconfOk {
        /// The node's attributes.
        pub attributes: PostOpAttr,
        /// The most names of a node.
        pub link_max: u32,
        /// The longest name, in bytes.
        pub name_max: u32,
        /// Whether a longer name is refused, rather than cut.
        pub no_trunc: bool,
        /// Whether only a privileged user can give files away.
        pub chown_restricted: bool,
        /// Whether names that differ in case only are the same.
        pub case_insensitive: bool,
        /// Whether the case of names is kept.
        pub case_preserving: bool,
    }
}

xdr_struct! {
    /// What was made stable.
    pub struct CommitOk {
        /// The file.
        pub file_wcc: WccData,
        /// Changes when unstable data may have been lost.
        pub verifier: WriteVerifier,
    }
}
