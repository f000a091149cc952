//! Results of procedures (RFC 1813 §3.3): a [`Reply`] each. NULL has none.

use bitflags::bitflags;
use tombolo_wire_xdr::{xdr_as, xdr_struct};

use crate::args::{AccessBits, StableHow};
use crate::{Data, Fattr3, FileHandle, NfsTime3, PostOpAttr, Reply, WccData, WriteVerifier};

pub use crate::listing::{ReaddirReply, ReaddirplusReply};

/// Results of GETATTR (§3.3.1). On failure: the status alone.
pub type GetattrReply = Reply<Fattr3, ()>;
/// Results of SETATTR (§3.3.2). On success and failure: the node's attributes before and after.
pub type SetattrReply = Reply<WccData, WccData>;
/// Results of LOOKUP (§3.3.3). On failure: the directory's attributes.
pub type LookupReply<'a> = Reply<LookupOk<'a>, PostOpAttr>;
/// Results of ACCESS (§3.3.4). On failure: the node's attributes.
pub type AccessReply = Reply<AccessOk, PostOpAttr>;
/// Results of READLINK (§3.3.5). On failure: the link's attributes.
pub type ReadlinkReply<'a> = Reply<ReadlinkOk<'a>, PostOpAttr>;
/// Results of READ (§3.3.6). On failure: the file's attributes.
pub type ReadReply = Reply<ReadOk, PostOpAttr>;
/// Results of WRITE (§3.3.7). On failure: the file's attributes before and after.
pub type WriteReply = Reply<WriteOk, WccData>;
/// Results of CREATE, MKDIR, SYMLINK, MKNOD (§3.3.8 to 11). On failure: the directory's attributes before
/// and after.
pub type CreateReply<'a> = Reply<CreateOk<'a>, WccData>;
/// Results of REMOVE, RMDIR (§3.3.12, 13). On success and failure: the directory's attributes before and
/// after.
pub type RemoveReply = Reply<WccData, WccData>;
/// Results of RENAME (§3.3.14). On success and failure: the attributes of both directories before and after.
pub type RenameReply = Reply<RenameWcc, RenameWcc>;
/// Results of LINK (§3.3.15). On success and failure: the node's attributes, and the directory's before and
/// after.
pub type LinkReply = Reply<LinkWcc, LinkWcc>;
/// Results of FSSTAT (§3.3.18). On failure: the node's attributes.
pub type FsstatReply = Reply<FsstatOk, PostOpAttr>;
/// Results of FSINFO (§3.3.19). On failure: the node's attributes.
pub type FsinfoReply = Reply<FsinfoOk, PostOpAttr>;
/// Results of PATHCONF (§3.3.20). On failure: the node's attributes.
pub type PathconfReply = Reply<PathconfOk, PostOpAttr>;
/// Results of COMMIT (§3.3.21). On failure: the file's attributes before and after.
pub type CommitReply = Reply<CommitOk, WccData>;

xdr_struct! {
    /// Results of a successful LOOKUP.
    pub struct LookupOk<'a> {
        /// Handle of the node that was found.
        pub object: FileHandle<'a>,
        /// Attributes of the node, if available.
        pub attributes: PostOpAttr,
        /// The directory's attributes.
        pub dir_attributes: PostOpAttr,
    }

    /// Results of a successful ACCESS.
    pub struct AccessOk {
        /// The node's attributes.
        pub attributes: PostOpAttr,
        /// Granted subset of the requested rights.
        pub access: AccessBits,
    }

    /// Results of a successful READLINK.
    pub struct ReadlinkOk<'a> {
        /// The link's attributes.
        pub attributes: PostOpAttr,
        /// Target of the link: unvalidated bytes.
        pub target: &'a [u8],
    }

    /// Results of a successful READ, up to the data.
    pub struct ReadOk {
        /// The file's attributes.
        pub attributes: PostOpAttr,
        /// Number of bytes read. May differ from the length of the data that a peer sends.
        pub count: u32,
        /// `true` if the file ends with these bytes.
        pub eof: bool,
        /// Position and length of the data in the message.
        pub data: Data,
    }
}

impl ReadOk {
    /// Returns results with `count` bytes of data, which follow the encoded part.
    #[inline]
    #[must_use]
    pub const fn to_send(attributes: PostOpAttr, count: u32, eof: bool) -> Self {
        Self { attributes, count, eof, data: Data::to_send(count) }
    }
}

xdr_struct! {
    /// Results of a successful WRITE.
    pub struct WriteOk {
        /// Attributes of the file before and after the write.
        pub file_wcc: WccData,
        /// Number of bytes written, which may be less than requested.
        pub count: u32,
        /// Achieved stability.
        pub committed: StableHow,
        /// Changes when unstable data may have been lost.
        pub verifier: WriteVerifier,
    }

    /// Results of a successful CREATE, MKDIR, SYMLINK or MKNOD.
    pub struct CreateOk<'a> {
        /// Handle of the new node (`post_op_fh3`); if `None`, the client must look the name up.
        pub object: Option<FileHandle<'a>>,
        /// Attributes of the new node, if available.
        pub attributes: PostOpAttr,
        /// Attributes of the directory before and after.
        pub dir_wcc: WccData,
    }

    /// Changes of a RENAME's directories.
    pub struct RenameWcc {
        /// Attributes of the old name's directory before and after.
        pub from_dir: WccData,
        /// Attributes of the new name's directory before and after.
        pub to_dir: WccData,
    }

    /// Changes of a LINK.
    pub struct LinkWcc {
        /// Attributes of the node that got a name.
        pub attributes: PostOpAttr,
        /// Attributes of the directory before and after.
        pub dir_wcc: WccData,
    }

    /// Results of a successful FSSTAT.
    pub struct FsstatOk {
        /// The node's attributes.
        pub attributes: PostOpAttr,
        /// Size of the file system, in bytes.
        pub total_bytes: u64,
        /// Free bytes.
        pub free_bytes: u64,
        /// Free bytes available to the user.
        pub available_bytes: u64,
        /// Maximum number of nodes in the file system.
        pub total_files: u64,
        /// Free nodes.
        pub free_files: u64,
        /// Free nodes available to the user.
        pub available_files: u64,
        /// Number of seconds for which the file system is not expected to change; 0 if it may change at any
        /// time.
        pub invarsec: u32,
    }
}

bitflags! {
    /// Properties of a file system (§3.3.19).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Properties: u32 {
        /// Hard links are supported (`FSF3_LINK`).
        const LINK = 0x01;
        /// Symbolic links are supported (`FSF3_SYMLINK`).
        const SYMLINK = 0x02;
        /// PATHCONF is the same for every node (`FSF3_HOMOGENEOUS`).
        const HOMOGENEOUS = 0x08;
        /// Times can be set (`FSF3_CANSETTIME`).
        const CAN_SET_TIME = 0x10;
    }
}

xdr_as! { Properties: Self::from_bits_retain, Self::bits; }

xdr_struct! {
    /// Results of a successful FSINFO. Sizes are in bytes.
    pub struct FsinfoOk {
        /// The node's attributes.
        pub attributes: PostOpAttr,
        /// Maximum length of a READ.
        pub read_max: u32,
        /// Preferred length of a READ.
        pub read_preferred: u32,
        /// Preferred multiple of a READ's size.
        pub read_multiple: u32,
        /// Maximum length of a WRITE.
        pub write_max: u32,
        /// Preferred length of a WRITE.
        pub write_preferred: u32,
        /// Preferred multiple of a WRITE's size.
        pub write_multiple: u32,
        /// Preferred `count` of a READDIR.
        pub readdir_preferred: u32,
        /// Maximum size of a file.
        pub file_size_max: u64,
        /// Granularity of the server's time stamps.
        pub time_delta: NfsTime3,
        /// Properties of the file system.
        pub properties: Properties,
    }

    /// Results of a successful PATHCONF.
    pub struct PathconfOk {
        /// The node's attributes.
        pub attributes: PostOpAttr,
        /// Maximum number of names of a node.
        pub link_max: u32,
        /// Maximum length of a name, in bytes.
        pub name_max: u32,
        /// `true` if longer names are refused rather than truncated.
        pub no_trunc: bool,
        /// `true` if only privileged users can change an owner.
        pub chown_restricted: bool,
        /// `true` if names are case-insensitive.
        pub case_insensitive: bool,
        /// `true` if the case of names is preserved.
        pub case_preserving: bool,
    }

    /// Results of a successful COMMIT.
    pub struct CommitOk {
        /// Attributes of the file before and after.
        pub file_wcc: WccData,
        /// Changes when unstable data may have been lost.
        pub verifier: WriteVerifier,
    }
}
