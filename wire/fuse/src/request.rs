//! Typed requests. [`Request::decode`] in `decode.rs` creates them; their names and values are borrowed from
//! the decoded bytes.
#![allow(missing_docs, reason = "fields whose names say it all")]

use crate::ids::{FileHandle, LockOwner, NodeId, Unique};
use crate::layout::attr::{SetattrIn, SetattrValid};
use crate::layout::header::{INVALID_ID, InHeader};
use crate::layout::open::{OpenInFlags, ReleaseFlags};
use crate::layout::rw::WriteFlags;
use crate::opcode::Opcode;
use tombolo_core::fs::{Name, XattrName};

/// The caller, and the request's identifiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub opcode: Opcode,
    /// Identifier, to be repeated in the reply exactly as received, including the mark of a resent request
    /// ([`UNIQUE_RESEND`](crate::layout::header::UNIQUE_RESEND)).
    pub unique: Unique,
    pub node: NodeId,
    /// User id of the caller; `None` if hidden by an id-mapped mount.
    pub uid: Option<u32>,
    /// Group id of the caller; `None` if hidden by an id-mapped mount.
    pub gid: Option<u32>,
    /// Thread id of the caller; 0 if not visible.
    pub pid: u32,
}

impl Header {
    pub(crate) fn new(opcode: Opcode, raw: &InHeader) -> Header {
        let visible = |id| (id != INVALID_ID).then_some(id);
        Header {
            opcode,
            unique: Unique(raw.unique),
            node: NodeId(raw.nodeid),
            uid: visible(raw.uid),
            gid: visible(raw.gid),
            pid: raw.pid,
        }
    }
}

/// Options of an OPEN or OPENDIR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// `O_*` flags: see [`crate::flags`].
    pub flags: u32,
    /// Requests of the kernel in addition to the caller's flags.
    pub open_flags: OpenInFlags,
}

/// Options of a CREATE or TMPFILE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Create {
    /// `O_*` flags.
    pub flags: u32,
    pub mode: u32,
    pub umask: u32,
    /// Requests of the kernel in addition to the caller's flags.
    pub open_flags: OpenInFlags,
}

/// A range to read; also for READDIR and READDIRPLUS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    pub handle: FileHandle,
    /// Byte offset; in a directory the cookie to continue after.
    pub offset: u64,
    /// Maximum length of the data, in bytes.
    pub size_bytes: u32,
    /// `O_*` flags of the open file.
    pub flags: u32,
}

/// A range to write; the data follow the private bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    pub handle: FileHandle,
    pub offset: u64,
    pub size_bytes: u32,
    pub write_flags: WriteFlags,
    /// `O_*` flags of the open file.
    pub flags: u32,
}

/// The end of an open file or directory: its last descriptor was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    pub handle: FileHandle,
    /// `O_*` flags of the open file.
    pub flags: u32,
    pub release_flags: ReleaseFlags,
    /// Owner of the locks to release.
    pub lock_owner: LockOwner,
}

/// Arguments of SETATTR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setattr {
    /// Fields of `fields` that are to be set.
    pub valid: SetattrValid,
    /// The open file, if the caller has one.
    pub handle: Option<FileHandle>,
    pub fields: SetattrIn,
}

/// The kind of a lock request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// A shared lock.
    Read,
    /// An exclusive lock.
    Write,
    /// Release.
    Unlock,
}

/// A lock request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    pub handle: FileHandle,
    pub owner: LockOwner,
    pub kind: LockKind,
    /// First byte.
    pub start: u64,
    /// Last byte; [`crate::layout::lock::OFFSET_MAX`] for the end of the file.
    pub last: u64,
    /// Process id of the requesting process; 0 if not visible to the server.
    pub pid: u32,
    /// `true` for a flock(2) lock, `false` for a POSIX one.
    pub is_flock: bool,
}

/// A copy between two open files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyFileRange {
    /// The open source.
    pub from: FileHandle,
    /// Offset in the source.
    pub from_offset: u64,
    pub to_node: NodeId,
    /// The open target.
    pub to: FileHandle,
    /// Offset in the target.
    pub to_offset: u64,
    /// Maximum number of bytes to copy.
    pub len_bytes: u64,
    /// Flags of copy_file_range(2).
    pub flags: u64,
}

/// A decoded request with its arguments. `LookupSelf` is a LOOKUP of `.`, which finds a node that the kernel
/// has forgotten; `LookupParent` is one of `..`. `Unsupported` is a POLL, BMAP, SETUPMAPPING, REMOVEMAPPING
/// or NOTIFY_REPLY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each field is what its operation's row in docs/protocols/fuse.md says")]
pub enum Request<'a> {
    Lookup { name: Name<'a> },
    LookupSelf,
    LookupParent,
    Forget { count: u64 },
    BatchForget(Forgets<'a>),
    Getattr { handle: Option<FileHandle> },
    Statx { handle: Option<FileHandle>, mask: u32 },
    Setattr(Setattr),
    Readlink,
    Symlink { name: Name<'a>, target: &'a [u8] },
    Mknod { name: Name<'a>, mode: u32, rdev: u32, umask: u32 },
    Mkdir { name: Name<'a>, mode: u32, umask: u32 },
    Unlink { name: Name<'a> },
    Rmdir { name: Name<'a> },
    Rename { name: Name<'a>, new_parent: NodeId, new_name: Name<'a>, flags: u32 },
    Link { node: NodeId, new_name: Name<'a> },
    Open(Open),
    Opendir(Open),
    Create { name: Name<'a>, how: Create },
    Tmpfile { how: Create },
    Read(Read),
    Readdir(Read),
    Readdirplus(Read),
    Write(Write),
    Release(Release),
    Releasedir(Release),
    Flush { handle: FileHandle, lock_owner: LockOwner },
    Fsync { handle: FileHandle, data_only: bool },
    Fsyncdir { handle: FileHandle, data_only: bool },
    Statfs,
    Syncfs,
    Access { mask: u32 },
    Setxattr { name: XattrName<'a>, value: &'a [u8], flags: u32, kill_set_gid: bool },
    Getxattr { name: XattrName<'a>, size_bytes: u32 },
    Listxattr { size_bytes: u32 },
    Removexattr { name: XattrName<'a> },
    Getlk(Lock),
    Setlk(Lock),
    Setlkw(Lock),
    Fallocate { handle: FileHandle, offset: u64, len_bytes: u64, mode: u32 },
    Lseek { handle: FileHandle, offset: u64, whence: u32 },
    CopyFileRange(CopyFileRange),
    CopyFileRange64(CopyFileRange),
    Ioctl { command: u32 },
    Init(crate::init::Offer),
    Interrupt { unique: Unique },
    Destroy,
    Unsupported,
}

/// The nodes of a BATCH_FORGET.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forgets<'a>(pub(crate) &'a [u8]);

impl Forgets<'_> {
    /// Returns each node with the number of its look-ups to release.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (NodeId, u64)> {
        use crate::layout::dir::ForgetOne;
        use zerocopy::FromBytes;
        self.0.chunks_exact(size_of::<ForgetOne>()).map(|bytes| {
            let one = ForgetOne::read_from_bytes(bytes).unwrap_or_default();
            (NodeId(one.nodeid), one.nlookup)
        })
    }
}
