//! A server's replies to options.

use crate::bytes::{Reader, length, name, put_name};
use crate::{InfoKind, Malformed, OPTION_BYTES_MAX, OptionCode, Result, TransmissionFlags};

const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const ACK: u32 = 1;
const SERVER: u32 = 2;
const INFO: u32 = 3;
const META_CONTEXT: u32 = 4;
const ERROR: u32 = 1 << 31;

/// The reason why an option is refused, possibly unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal(pub u32);

#[expect(missing_docs)]
impl Refusal {
    pub const UNSUPPORTED: Self = Self(ERROR | 1);
    pub const POLICY: Self = Self(ERROR | 2);
    pub const INVALID: Self = Self(ERROR | 3);
    pub const PLATFORM: Self = Self(ERROR | 4);
    pub const TLS_REQUIRED: Self = Self(ERROR | 5);
    pub const UNKNOWN: Self = Self(ERROR | 6);
    pub const SHUTDOWN: Self = Self(ERROR | 7);
    pub const BLOCK_SIZE_REQUIRED: Self = Self(ERROR | 8);
    pub const TOO_BIG: Self = Self(ERROR | 9);
    pub const EXTENDED_HEADERS_REQUIRED: Self = Self(ERROR | 10);
}

/// The block sizes of an export, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSizes {
    /// Alignment of offsets and lengths.
    pub minimum: u32,
    /// Preferred length of requests.
    pub preferred: u32,
    /// Maximum length of the data of a request or its reply.
    pub payload_max: u32,
}

/// An item of information about an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Info<'a> {
    /// Length and properties of the export; a server always sends this item.
    Export {
        /// Length of the export, in bytes.
        size_bytes: u64,
        /// Properties of the export.
        flags: TransmissionFlags,
    },
    /// Canonical name of the export.
    Name(&'a str),
    /// Description of the export, for people.
    Description(&'a str),
    /// Block sizes of the export.
    BlockSize(BlockSizes),
    /// An unknown item, which a client ignores.
    Unknown,
}

/// A reply to an option; some options have several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionReply<'a> {
    /// Success: the last reply.
    Ack,
    /// The name of an export, in reply to LIST.
    Server(&'a str),
    /// An item of information, in reply to INFO and GO.
    Info(Info<'a>),
    /// A metadata context that is available, or was selected.
    MetaContext {
        /// Id of a selected context in later replies to BLOCK_STATUS.
        id: u32,
        /// Name of the context, such as [`BASE_ALLOCATION`](crate::BASE_ALLOCATION).
        name: &'a str,
    },
    /// Refusal: the last reply. With a text for people.
    Refused(Refusal, &'a str),
}

/// The header before a reply's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionReplyHead {
    /// Code of the option.
    pub code: OptionCode,
    kind: u32,
    /// Number of bytes that follow; at most [`OPTION_BYTES_MAX`].
    pub data_bytes: usize,
}

impl OptionReplyHead {
    /// Length, in bytes.
    pub const BYTES: usize = 20;

    /// Decodes a header. Fails with [`Malformed::Length`] for excessive data.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Result<Self> {
        let mut reader = Reader(bytes);
        reader.magic(REPLY_MAGIC)?;
        let (code, kind) = (OptionCode(reader.u32()?), reader.u32()?);
        let data_bytes = reader.u32()? as usize;
        if data_bytes > OPTION_BYTES_MAX {
            return Err(Malformed::Length(data_bytes as u64));
        }
        Ok(Self { code, kind, data_bytes })
    }
}

impl<'a> OptionReply<'a> {
    /// Appends the reply to the option `code`.
    pub fn encode(&self, out: &mut Vec<u8>, code: OptionCode) {
        let mut data = Vec::new();
        let kind = match *self {
            Self::Ack => ACK,
            Self::Server(name) => {
                put_name(&mut data, name);
                SERVER
            }
            Self::Info(info) => {
                info.encode(&mut data);
                INFO
            }
            Self::MetaContext { id, name } => {
                data.extend(id.to_be_bytes());
                data.extend(name.as_bytes());
                META_CONTEXT
            }
            Self::Refused(refusal, word) => {
                data.extend(word.as_bytes());
                refusal.0
            }
        };
        out.extend(REPLY_MAGIC.to_be_bytes());
        out.extend(code.0.to_be_bytes());
        out.extend(kind.to_be_bytes());
        out.extend(length(data.len()));
        out.extend(data);
    }

    /// Decodes the data behind the header.
    pub fn decode(head: &OptionReplyHead, data: &'a [u8]) -> Result<Self> {
        let mut reader = Reader(data);
        let reply = match head.kind {
            ACK => Self::Ack,
            // The bytes behind the name are a text for people.
            SERVER => return reader.name().map(Self::Server),
            INFO => return Info::decode(reader).map(Self::Info),
            META_CONTEXT => {
                let id = reader.u32()?;
                return Ok(Self::MetaContext { id, name: name(reader.0)? });
            }
            // A text in another encoding is no reason to disconnect.
            kind if kind & ERROR != 0 => {
                return Ok(Self::Refused(Refusal(kind), name(data).unwrap_or_default()));
            }
            _ => return Err(Malformed::Value),
        };
        reader.end().map(|()| reply)
    }
}

impl<'a> Info<'a> {
    fn encode(self, data: &mut Vec<u8>) {
        let mut put = |kind: InfoKind, parts: &[&[u8]]| {
            data.extend(kind.0.to_be_bytes());
            parts.iter().for_each(|part| data.extend(*part));
        };
        match self {
            Self::Export { size_bytes, flags } => {
                put(InfoKind::EXPORT, &[&size_bytes.to_be_bytes(), &flags.bits().to_be_bytes()]);
            }
            Self::Name(name) => put(InfoKind::NAME, &[name.as_bytes()]),
            Self::Description(text) => put(InfoKind::DESCRIPTION, &[text.as_bytes()]),
            Self::BlockSize(sizes) => {
                let numbers = [sizes.minimum, sizes.preferred, sizes.payload_max].map(u32::to_be_bytes);
                put(InfoKind::BLOCK_SIZE, &[numbers.as_flattened()]);
            }
            Self::Unknown => {}
        }
    }

    fn decode(mut reader: Reader<'a>) -> Result<Self> {
        let info = match InfoKind(reader.u16()?) {
            InfoKind::EXPORT => {
                let size_bytes = reader.u64()?;
                Self::Export { size_bytes, flags: TransmissionFlags::from_bits_retain(reader.u16()?) }
            }
            InfoKind::NAME => return name(reader.0).map(Self::Name),
            InfoKind::DESCRIPTION => return name(reader.0).map(Self::Description),
            InfoKind::BLOCK_SIZE => {
                let (minimum, preferred, payload_max) = (reader.u32()?, reader.u32()?, reader.u32()?);
                Self::BlockSize(BlockSizes { minimum, preferred, payload_max })
            }
            _ => return Ok(Self::Unknown),
        };
        reader.end().map(|()| info)
    }
}
