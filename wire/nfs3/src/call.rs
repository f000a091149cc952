//! Typed calls.

use tombolo_wire_xdr::{Decoder, Encode, Encoder, Result};

use crate::args::{
    AccessArgs, CommitArgs, CreateArgs, DirOpArgs, LinkArgs, MkdirArgs, MknodArgs, ReadArgs, ReaddirArgs,
    ReaddirplusArgs, RenameArgs, SetattrArgs, SymlinkArgs, WriteArgs,
};
use crate::{FileHandle, Procedure};

/// A procedure with its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each case is the procedure of its name")]
pub enum Call<'a> {
    Null,
    Getattr(FileHandle<'a>),
    Setattr(SetattrArgs<'a>),
    Lookup(DirOpArgs<'a>),
    Access(AccessArgs<'a>),
    Readlink(FileHandle<'a>),
    Read(ReadArgs<'a>),
    Write(WriteArgs<'a>),
    Create(CreateArgs<'a>),
    Mkdir(MkdirArgs<'a>),
    Symlink(SymlinkArgs<'a>),
    Mknod(MknodArgs<'a>),
    Remove(DirOpArgs<'a>),
    Rmdir(DirOpArgs<'a>),
    Rename(RenameArgs<'a>),
    Link(LinkArgs<'a>),
    Readdir(ReaddirArgs<'a>),
    Readdirplus(ReaddirplusArgs<'a>),
    Fsstat(FileHandle<'a>),
    Fsinfo(FileHandle<'a>),
    Pathconf(FileHandle<'a>),
    Commit(CommitArgs<'a>),
}

impl<'a> Call<'a> {
    /// Decodes the arguments of `procedure` in a message of `message_bytes`. The decoder may contain less of
    /// it, for a WRITE: everything before the data.
    ///
    /// Bytes behind the arguments are ignored, as in every server.
    ///
    /// # Errors
    /// The arguments are invalid, to be answered GARBAGE_ARGS; also if the data of a WRITE extend beyond the
    /// message.
    #[inline]
    pub fn decode(procedure: Procedure, xdr: &mut Decoder<'a>, message_bytes: usize) -> Result<Self> {
        match procedure {
            Procedure::Null => Ok(Self::Null),
            Procedure::Getattr => xdr.value().map(Self::Getattr),
            Procedure::Setattr => xdr.value().map(Self::Setattr),
            Procedure::Lookup => xdr.value().map(Self::Lookup),
            Procedure::Access => xdr.value().map(Self::Access),
            Procedure::Readlink => xdr.value().map(Self::Readlink),
            Procedure::Read => xdr.value().map(Self::Read),
            Procedure::Write => {
                let args: WriteArgs<'a> = xdr.value()?;
                args.data.range(message_bytes)?;
                Ok(Self::Write(args))
            }
            Procedure::Create => xdr.value().map(Self::Create),
            Procedure::Mkdir => xdr.value().map(Self::Mkdir),
            Procedure::Symlink => xdr.value().map(Self::Symlink),
            Procedure::Mknod => xdr.value().map(Self::Mknod),
            Procedure::Remove => xdr.value().map(Self::Remove),
            Procedure::Rmdir => xdr.value().map(Self::Rmdir),
            Procedure::Rename => xdr.value().map(Self::Rename),
            Procedure::Link => xdr.value().map(Self::Link),
            Procedure::Readdir => xdr.value().map(Self::Readdir),
            Procedure::Readdirplus => xdr.value().map(Self::Readdirplus),
            Procedure::Fsstat => xdr.value().map(Self::Fsstat),
            Procedure::Fsinfo => xdr.value().map(Self::Fsinfo),
            Procedure::Pathconf => xdr.value().map(Self::Pathconf),
            Procedure::Commit => xdr.value().map(Self::Commit),
        }
    }

    /// Returns the procedure.
    #[must_use]
    pub const fn procedure(&self) -> Procedure {
        match self {
            Self::Null => Procedure::Null,
            Self::Getattr(_) => Procedure::Getattr,
            Self::Setattr(_) => Procedure::Setattr,
            Self::Lookup(_) => Procedure::Lookup,
            Self::Access(_) => Procedure::Access,
            Self::Readlink(_) => Procedure::Readlink,
            Self::Read(_) => Procedure::Read,
            Self::Write(_) => Procedure::Write,
            Self::Create(_) => Procedure::Create,
            Self::Mkdir(_) => Procedure::Mkdir,
            Self::Symlink(_) => Procedure::Symlink,
            Self::Mknod(_) => Procedure::Mknod,
            Self::Remove(_) => Procedure::Remove,
            Self::Rmdir(_) => Procedure::Rmdir,
            Self::Rename(_) => Procedure::Rename,
            Self::Link(_) => Procedure::Link,
            Self::Readdir(_) => Procedure::Readdir,
            Self::Readdirplus(_) => Procedure::Readdirplus,
            Self::Fsstat(_) => Procedure::Fsstat,
            Self::Fsinfo(_) => Procedure::Fsinfo,
            Self::Pathconf(_) => Procedure::Pathconf,
            Self::Commit(_) => Procedure::Commit,
        }
    }
}

/// The arguments; of a WRITE everything up to the data, which follow with their padding.
impl Encode for Call<'_> {
    fn encode(&self, xdr: &mut Encoder<'_>) {
        match self {
            Self::Null => xdr,
            Self::Getattr(object)
            | Self::Readlink(object)
            | Self::Fsstat(object)
            | Self::Fsinfo(object)
            | Self::Pathconf(object) => xdr.value(object),
            Self::Setattr(args) => xdr.value(args),
            Self::Lookup(args) | Self::Remove(args) | Self::Rmdir(args) => xdr.value(args),
            Self::Access(args) => xdr.value(args),
            Self::Read(args) => xdr.value(args),
            Self::Write(args) => xdr.value(args),
            Self::Create(args) => xdr.value(args),
            Self::Mkdir(args) => xdr.value(args),
            Self::Symlink(args) => xdr.value(args),
            Self::Mknod(args) => xdr.value(args),
            Self::Rename(args) => xdr.value(args),
            Self::Link(args) => xdr.value(args),
            Self::Readdir(args) => xdr.value(args),
            Self::Readdirplus(args) => xdr.value(args),
            Self::Commit(args) => xdr.value(args),
        };
    }
}
