//! The procedures (RFC 1813 §3), and calls of them with their typed arguments.

use tombolo_wire_xdr::{Decoder, Result, xdr_program};

use crate::FileHandle;
use crate::args::{
    AccessArgs, CommitArgs, CreateArgs, DirOpArgs, LinkArgs, MkdirArgs, MknodArgs, ReadArgs, ReaddirArgs,
    ReaddirplusArgs, RenameArgs, SetattrArgs, SymlinkArgs, WriteArgs,
};

/// RPC program number of NFS.
pub const PROGRAM: u32 = 100_003;
/// Implemented version of NFS.
pub const VERSION: u32 = 3;

// The data of a WRITE are not encoded: the caller appends them, with their padding.
xdr_program! {
    fn arguments;
    /// No operation.
    Null = 0,
    /// Get attributes.
    Getattr(object: FileHandle<'a>) = 1,
    /// Set attributes.
    Setattr(args: SetattrArgs<'a>) = 2,
    /// Look a name up.
    Lookup(args: DirOpArgs<'a>) = 3,
    /// Check access rights.
    Access(args: AccessArgs<'a>) = 4,
    /// Read the target of a symbolic link.
    Readlink(object: FileHandle<'a>) = 5,
    /// Read from a file.
    Read(args: ReadArgs<'a>) = 6,
    /// Write to a file.
    Write(args: WriteArgs<'a>) = 7,
    /// Create a file.
    Create(args: CreateArgs<'a>) = 8,
    /// Create a directory.
    Mkdir(args: MkdirArgs<'a>) = 9,
    /// Create a symbolic link.
    Symlink(args: SymlinkArgs<'a>) = 10,
    /// Create a special node.
    Mknod(args: MknodArgs<'a>) = 11,
    /// Remove a name of a file.
    Remove(args: DirOpArgs<'a>) = 12,
    /// Remove a directory.
    Rmdir(args: DirOpArgs<'a>) = 13,
    /// Rename a directory entry.
    Rename(args: RenameArgs<'a>) = 14,
    /// Create another name of a node.
    Link(args: LinkArgs<'a>) = 15,
    /// List a directory.
    Readdir(args: ReaddirArgs<'a>) = 16,
    /// List a directory with attributes and handles.
    Readdirplus(args: ReaddirplusArgs<'a>) = 17,
    /// Get the usage of a file system.
    Fsstat(object: FileHandle<'a>) = 18,
    /// Get the properties of a server.
    Fsinfo(object: FileHandle<'a>) = 19,
    /// Get POSIX limits.
    Pathconf(object: FileHandle<'a>) = 20,
    /// Make written data stable.
    Commit(args: CommitArgs<'a>) = 21,
}

impl<'a> Call<'a> {
    /// Decodes the arguments of `procedure` in a message of `message_bytes`. For a WRITE the decoder may
    /// contain only the part before the data.
    ///
    /// Bytes behind the arguments are ignored.
    ///
    /// # Errors
    /// The arguments are invalid, to be answered GARBAGE_ARGS; also if the data of a WRITE extend beyond the
    /// message.
    #[inline]
    pub fn decode(procedure: Procedure, xdr: &mut Decoder<'a>, message_bytes: usize) -> Result<Self> {
        let call = Self::arguments(procedure, xdr);
        if let Ok(Self::Write(args)) = &call {
            args.data.range(message_bytes)?;
        }
        call
    }
}
