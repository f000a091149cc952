//! Arguments of procedures (RFC 1813 §3.3). Names and paths are unvalidated bytes of any length: validation
//! is up to the server.

use bitflags::bitflags;
use tombolo_wire_xdr::{Decode, Decoder, Encode, Encoder, Result, xdr_as, xdr_enum, xdr_struct, xdr_union};

use crate::{
    Cookie3, CookieVerifier, CreateVerifier, Data, FileHandle, FileType3, NfsTime3, Sattr3, SpecData3,
};

xdr_struct! {
    /// A name in a directory: LOOKUP, REMOVE, RMDIR (`diropargs3`).
    pub struct DirOpArgs<'a> {
        /// The directory that contains the name, or is to contain it.
        pub dir: FileHandle<'a>,
        /// The name of the entry, unvalidated.
        pub name: &'a [u8],
    }

    /// Arguments of SETATTR (§3.3.2).
    pub struct SetattrArgs<'a> {
        /// The node whose attributes are set.
        pub object: FileHandle<'a>,
        /// Attributes to set.
        pub attributes: Sattr3,
        /// Precondition: the node still has this ctime (`sattrguard3`); `None` for none.
        pub guard: Option<NfsTime3>,
    }
}

bitflags! {
    /// Access rights (§3.3.4). Undefined bits are retained; servers ignore them.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct AccessBits: u32 {
        /// Read a file or list a directory.
        const READ = 0x01;
        /// Look a name up.
        const LOOKUP = 0x02;
        /// Change existing data or entries.
        const MODIFY = 0x04;
        /// Write new data or create entries.
        const EXTEND = 0x08;
        /// Remove an entry.
        const DELETE = 0x10;
        /// Execute a file.
        const EXECUTE = 0x20;
    }
}

xdr_as! { AccessBits: Self::from_bits_retain, Self::bits; }

xdr_struct! {
    /// Arguments of ACCESS (§3.3.4).
    pub struct AccessArgs<'a> {
        /// The node to which access is requested.
        pub object: FileHandle<'a>,
        /// Rights that the client wants to know about.
        pub access: AccessBits,
    }

    /// Arguments of READ (§3.3.6).
    pub struct ReadArgs<'a> {
        /// The file to read.
        pub file: FileHandle<'a>,
        /// Offset of the first byte to read.
        pub offset: u64,
        /// Number of bytes to read; the server may return fewer.
        pub count: u32,
    }
}

xdr_enum! {
    /// Required stability of written data when the call is answered (§3.3.7, `stable_how`).
    #[derive(PartialOrd, Ord)]
    pub enum StableHow {
        /// Nothing; COMMIT makes the data stable later.
        Unstable = 0,
        /// The data, and the metadata needed to find them.
        DataSync = 1,
        /// Data and attributes.
        FileSync = 2,
    }
}

xdr_struct! {
    /// Arguments of WRITE (§3.3.7), up to the data.
    pub struct WriteArgs<'a> {
        /// The file to write.
        pub file: FileHandle<'a>,
        /// Offset of the first byte to write.
        pub offset: u64,
        /// Number of bytes to write. May differ from the length of the data that a peer sends.
        pub count: u32,
        /// Required stability.
        pub stable: StableHow,
        /// Position and length of the data in the message.
        pub data: Data,
    }
}

xdr_union! {
    /// CREATE's behaviour if the name exists (§3.3.8, `createhow3`).
    pub enum CreateHow: "createmode3" {
        /// Succeeds with the existing file, of which the server may set these attributes, such as the size.
        Unchecked(attributes: Sattr3) = 0,
        /// Fails with EXIST; otherwise the new file has these attributes.
        Guarded(attributes: Sattr3) = 1,
        /// Fails, unless the file was created with this verifier.
        Exclusive(verifier: CreateVerifier) = 2,
    }
}

xdr_struct! {
    /// Arguments of CREATE (§3.3.8).
    pub struct CreateArgs<'a> {
        /// Directory and name of the new file.
        pub location: DirOpArgs<'a>,
        /// Behaviour if the name exists, and attributes of the new file.
        pub how: CreateHow,
    }

    /// Arguments of MKDIR (§3.3.9).
    pub struct MkdirArgs<'a> {
        /// Directory and name of the new directory.
        pub location: DirOpArgs<'a>,
        /// Attributes of the new directory.
        pub attributes: Sattr3,
    }

    /// Arguments of SYMLINK (§3.3.10).
    pub struct SymlinkArgs<'a> {
        /// Directory and name of the new link.
        pub location: DirOpArgs<'a>,
        /// Attributes of the new link.
        pub attributes: Sattr3,
        /// Target of the link: unvalidated bytes.
        pub target: &'a [u8],
    }
}

/// A node to be created by MKNOD (§3.3.11, `mknoddata3`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MknodKind {
    /// A character device.
    CharDevice(Sattr3, SpecData3),
    /// A block device.
    BlockDevice(Sattr3, SpecData3),
    /// A socket.
    Socket(Sattr3),
    /// A named pipe.
    Fifo(Sattr3),
    /// A type that MKNOD does not create: to be answered BADTYPE.
    Other(FileType3),
}

impl<'a> Decode<'a> for MknodKind {
    fn decode(xdr: &mut Decoder<'a>) -> Result<Self> {
        match xdr.value()? {
            FileType3::CharDevice => Ok(Self::CharDevice(xdr.value()?, xdr.value()?)),
            FileType3::BlockDevice => Ok(Self::BlockDevice(xdr.value()?, xdr.value()?)),
            FileType3::Socket => xdr.value().map(Self::Socket),
            FileType3::Fifo => xdr.value().map(Self::Fifo),
            other @ (FileType3::Regular | FileType3::Directory | FileType3::Symlink) => {
                Ok(Self::Other(other))
            }
        }
    }
}

impl Encode for MknodKind {
    fn encode(&self, xdr: &mut Encoder<'_>) {
        match self {
            Self::CharDevice(attributes, device) => {
                xdr.value(&FileType3::CharDevice).value(attributes).value(device)
            }
            Self::BlockDevice(attributes, device) => {
                xdr.value(&FileType3::BlockDevice).value(attributes).value(device)
            }
            Self::Socket(attributes) => xdr.value(&FileType3::Socket).value(attributes),
            Self::Fifo(attributes) => xdr.value(&FileType3::Fifo).value(attributes),
            Self::Other(file_type) => xdr.value(file_type),
        };
    }
}

xdr_struct! {
    /// Arguments of MKNOD (§3.3.11).
    pub struct MknodArgs<'a> {
        /// Directory and name of the new node.
        pub location: DirOpArgs<'a>,
        /// Type of the new node, with its attributes.
        pub what: MknodKind,
    }

    /// Arguments of RENAME (§3.3.14).
    pub struct RenameArgs<'a> {
        /// The old name.
        pub from: DirOpArgs<'a>,
        /// The new name.
        pub to: DirOpArgs<'a>,
    }

    /// Arguments of LINK (§3.3.15).
    pub struct LinkArgs<'a> {
        /// The node that gets another name.
        pub file: FileHandle<'a>,
        /// New name of the file.
        pub link: DirOpArgs<'a>,
    }

    /// Arguments of READDIR (§3.3.16).
    pub struct ReaddirArgs<'a> {
        /// The directory to list.
        pub dir: FileHandle<'a>,
        /// Position to continue after; 0: the start.
        pub cookie: Cookie3,
        /// Verifier of the listing that the cookie belongs to.
        pub verifier: CookieVerifier,
        /// Maximum size of `READDIR3resok`, in bytes, with all XDR overhead.
        pub count: u32,
    }

    /// Arguments of READDIRPLUS (§3.3.17).
    pub struct ReaddirplusArgs<'a> {
        /// The directory to list.
        pub dir: FileHandle<'a>,
        /// Position to continue after; 0: the start.
        pub cookie: Cookie3,
        /// Verifier of the listing that the cookie belongs to.
        pub verifier: CookieVerifier,
        /// Maximum size of the entries without attributes and handles, in bytes.
        pub dircount: u32,
        /// Maximum size of `READDIRPLUS3resok`, in bytes, with all XDR overhead.
        pub maxcount: u32,
    }

    /// Arguments of COMMIT (§3.3.21).
    pub struct CommitArgs<'a> {
        /// The file whose data are to be made stable.
        pub file: FileHandle<'a>,
        /// Offset of the first byte to be made stable.
        pub offset: u64,
        /// Number of bytes; 0: up to the end.
        pub count: u32,
    }
}
