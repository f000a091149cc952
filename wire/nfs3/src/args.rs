//! What procedures take (RFC 1813 §3.3). Names and paths are bytes as they came, of any length and content:
//! which are good is the server's business.

use bitflags::bitflags;
use tombolo_wire_xdr::{Decode, Decoder, Encode, Encoder, Error, Result, xdr_enum, xdr_struct};

use crate::{
    Cookie3, CookieVerifier, CreateVerifier, Data, FileHandle, FileType3, NfsTime3, Sattr3, SpecData3,
};

xdr_struct! {
    /// A name in a directory: LOOKUP, REMOVE, RMDIR (`diropargs3`).
    pub struct DirOpArgs<'a> {
        /// The directory.
        pub dir: FileHandle<'a>,
        /// The name.
        pub name: &'a [u8],
    }
}

xdr_struct! {
    /// SETATTR (§3.3.2).
    pub struct SetattrArgs<'a> {
        /// The node.
        pub object: FileHandle<'a>,
        /// What to set.
        pub attributes: Sattr3,
        /// Do it only if this is the node's ctime (`sattrguard3`).
        pub guard: Option<NfsTime3>,
    }
}

bitflags! {
    /// What a user may do (§3.3.4). Bits that the protocol does not name are kept; servers ignore them.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct AccessBits: u32 {
        /// Read a file or list a directory.
        const READ = 0x01;
        /// Look a name up.
        const LOOKUP = 0x02;
        /// Change existing data or entries.
        const MODIFY = 0x04;
        /// Write new data or make entries.
        const EXTEND = 0x08;
        /// Take an entry away.
        const DELETE = 0x10;
        /// Execute a file.
        const EXECUTE = 0x20;
    }
}

impl<'a> Decode<'a> for AccessBits {
    #[inline]
    fn decode(xdr: &mut Decoder<'a>) -> Result<Self> {
        xdr.u32().map(Self::from_bits_retain)
    }
}

impl Encode for AccessBits {
    #[inline]
    fn encode(&self, xdr: &mut Encoder<'_>) {
        xdr.u32(self.bits());
    }
}

xdr_struct! {
    /// ACCESS (§3.3.4).
    pub struct AccessArgs<'a> {
        /// The node.
        pub object: FileHandle<'a>,
        /// What is asked about.
        pub access: AccessBits,
    }
}

xdr_struct! {
    /// READ (§3.3.6).
    pub struct ReadArgs<'a> {
        /// The file.
        pub file: FileHandle<'a>,
        /// Byte offset.
        pub offset: u64,
        /// Number of bytes.
        pub count: u32,
    }
}

xdr_enum! {
    /// How stable written data must be before it is answered (§3.3.7, `stable_how`).
    #[derive(PartialOrd, Ord)]
    pub enum StableHow {
        /// Not at all.
        Unstable = 0,
        /// The data, and what is needed to find it.
        DataSync = 1,
        /// Data and attributes.
        FileSync = 2,
    }
}

xdr_struct! {
    /// WRITE (§3.3.7), up to where the data begins.
    pub struct WriteArgs<'a> {
        /// The file.
        pub file: FileHandle<'a>,
        /// Byte offset.
        pub offset: u64,
        /// Number of bytes to write. A peer may announce another one than it sends.
        pub count: u32,
        /// How stable.
        pub stable: StableHow,
        /// The bytes.
        pub data: Data,
    }
}

/// What CREATE does about a name that exists (§3.3.8, `createhow3`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateHow {
    /// Takes the file there is, and sets these attributes.
    Unchecked(Sattr3),
    /// Fails.
    Guarded(Sattr3),
    /// Fails, unless the file was made with this verifier.
    Exclusive(CreateVerifier),
}

impl<'a> Decode<'a> for CreateHow {
    fn decode(xdr: &mut Decoder<'a>) -> Result<Self> {
        match xdr.u32()? {
            0 => xdr.value().map(Self::Unchecked),
            1 => xdr.value().map(Self::Guarded),
            2 => xdr.value().map(Self::Exclusive),
            value => Err(Error::BadEnum { name: "createmode3", value }),
        }
    }
}

impl Encode for CreateHow {
    fn encode(&self, xdr: &mut Encoder<'_>) {
        match self {
            Self::Unchecked(attributes) => xdr.u32(0).value(attributes),
            Self::Guarded(attributes) => xdr.u32(1).value(attributes),
            Self::Exclusive(verifier) => xdr.u32(2).value(verifier),
        };
    }
}

xdr_struct! {
    /// CREATE (§3.3.8).
    pub struct CreateArgs<'a> {
        /// Where.
        pub location: DirOpArgs<'a>,
        /// How.
        pub how: CreateHow,
    }
}

xdr_struct! {
    /// MKDIR (§3.3.9).
    pub struct MkdirArgs<'a> {
        /// Where.
        pub location: DirOpArgs<'a>,
        /// Attributes of the new directory.
        pub attributes: Sattr3,
    }
}

xdr_struct! {
    /// SYMLINK (§3.3.10).
    pub struct SymlinkArgs<'a> {
        /// Where.
        pub location: DirOpArgs<'a>,
        /// Attributes of the new link.
        pub attributes: Sattr3,
        /// Where it points.
        pub target: &'a [u8],
    }
}

/// What MKNOD makes (§3.3.11, `mknoddata3`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MknodWhat {
    /// A character device.
    CharDevice(Sattr3, SpecData3),
    /// A block device.
    BlockDevice(Sattr3, SpecData3),
    /// A socket.
    Socket(Sattr3),
    /// A named pipe.
    Fifo(Sattr3),
    /// A type that MKNOD does not make: to be answered BADTYPE.
    Other(FileType3),
}

impl<'a> Decode<'a> for MknodWhat {
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

impl Encode for MknodWhat {
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
    /// MKNOD (§3.3.11).
    pub struct MknodArgs<'a> {
        /// Where.
        pub location: DirOpArgs<'a>,
        /// What.
        pub what: MknodWhat,
    }
}

xdr_struct! {
    /// RENAME (§3.3.14).
    pub struct RenameArgs<'a> {
        /// The old name.
        pub from: DirOpArgs<'a>,
        /// The new one.
        pub to: DirOpArgs<'a>,
    }
}

xdr_struct! {
    /// LINK (§3.3.15).
    pub struct LinkArgs<'a> {
        /// The node.
        pub file: FileHandle<'a>,
        /// Its new name.
        pub link: DirOpArgs<'a>,
    }
}

xdr_struct! {
    /// READDIR (§3.3.16).
    pub struct ReaddirArgs<'a> {
        /// The directory.
        pub dir: FileHandle<'a>,
        /// Where to go on.
        pub cookie: Cookie3,
        /// What the listing that the cookie comes from had.
        pub verifier: CookieVerifier,
        /// The most that `READDIR3resok` may take, in bytes, all of XDR included.
        pub count: u32,
    }
}

xdr_struct! {
    /// READDIRPLUS (§3.3.17).
    pub struct ReaddirplusArgs<'a> {
        /// The directory.
        pub dir: FileHandle<'a>,
        /// Where to go on.
        pub cookie: Cookie3,
        /// What the listing that the cookie comes from had.
        pub verifier: CookieVerifier,
        /// The most that the entries may take, in bytes, without attributes and handles.
        pub dircount: u32,
        /// The most that `READDIRPLUS3resok` may take, in bytes, all of XDR included.
        pub maxcount: u32,
    }
}

xdr_struct! {
    /// COMMIT (§3.3.21).
    pub struct CommitArgs<'a> {
        /// The file.
        pub file: FileHandle<'a>,
        /// Byte offset.
        pub offset: u64,
        /// Number of bytes; 0 for all up to the end.
        pub count: u32,
    }
}
