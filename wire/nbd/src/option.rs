//! What a client asks for before transmission.

use crate::bytes::{Reader, length, name, put_name};
use crate::handshake::OPTION_MAGIC;
use crate::{Malformed, OPTION_BYTES_MAX, Result};

/// Names an option; there may be some that nothing here knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionCode(pub u32);

#[expect(missing_docs)]
impl OptionCode {
    pub const EXPORT_NAME: Self = Self(1);
    pub const ABORT: Self = Self(2);
    pub const LIST: Self = Self(3);
    pub const STARTTLS: Self = Self(5);
    pub const INFO: Self = Self(6);
    pub const GO: Self = Self(7);
    pub const STRUCTURED_REPLY: Self = Self(8);
    pub const LIST_META_CONTEXT: Self = Self(9);
    pub const SET_META_CONTEXT: Self = Self(10);
    pub const EXTENDED_HEADERS: Self = Self(11);
}

/// What comes before an option's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionHead {
    /// Which.
    pub code: OptionCode,
    /// How many bytes follow; at most [`OPTION_BYTES_MAX`].
    pub data_bytes: usize,
}

impl OptionHead {
    /// How long it is.
    pub const BYTES: usize = 16;

    /// Out of a stream.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Result<Self> {
        let mut reader = Reader(bytes);
        reader.magic(OPTION_MAGIC)?;
        let (code, data_bytes) = (OptionCode(reader.u32()?), reader.u32()? as usize);
        if data_bytes > OPTION_BYTES_MAX {
            return Err(Malformed::Length(data_bytes as u64));
        }
        Ok(Self { code, data_bytes })
    }
}

/// What a client may want to know of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InfoKind(pub u16);

#[expect(missing_docs)]
impl InfoKind {
    pub const EXPORT: Self = Self(0);
    pub const NAME: Self = Self(1);
    pub const DESCRIPTION: Self = Self(2);
    pub const BLOCK_SIZE: Self = Self(3);
}

/// An option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientOption<'a> {
    /// Transmission begins with this export, or the connection ends.
    ExportName(&'a str),
    /// The connection ends.
    Abort,
    /// Which exports are there?
    List,
    /// TLS begins.
    StartTls,
    /// What is this export like? And if `go`, transmission begins with it.
    Info {
        /// Which.
        export: &'a str,
        /// Whether to begin.
        go: bool,
        /// Whether the client heeds block sizes.
        heeds_block_sizes: bool,
    },
    /// Replies shall be structured.
    StructuredReply,
    /// Which of these metadata contexts are there, and if `set`, use them.
    MetaContext {
        /// Of which export.
        export: &'a str,
        /// Whether to use them.
        set: bool,
        /// Which; in `LIST`, none means all.
        queries: Strings<'a>,
    },
    /// Requests and replies shall have extended headers.
    ExtendedHeaders,
    /// One that nothing here knows.
    Unknown,
}

/// Some strings, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strings<'a>(&'a [u8]);

impl<'a> Iterator for Strings<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let mut reader = Reader(self.0);
        let next = reader.name().ok();
        self.0 = reader.0;
        next
    }
}

impl<'a> ClientOption<'a> {
    /// Of what followed the head.
    pub fn decode(code: OptionCode, data: &'a [u8]) -> Result<Self> {
        let mut reader = Reader(data);
        let option = match code {
            OptionCode::EXPORT_NAME => return name(data).map(Self::ExportName),
            // Whatever a client says of its reasons.
            OptionCode::ABORT => return Ok(Self::Abort),
            OptionCode::LIST => Self::List,
            OptionCode::STARTTLS => Self::StartTls,
            OptionCode::STRUCTURED_REPLY => Self::StructuredReply,
            OptionCode::EXTENDED_HEADERS => Self::ExtendedHeaders,
            OptionCode::INFO | OptionCode::GO => {
                let (export, count) = (reader.name()?, reader.u16()?);
                let mut heeds_block_sizes = false;
                for _ in 0..count {
                    heeds_block_sizes |= InfoKind(reader.u16()?) == InfoKind::BLOCK_SIZE;
                }
                Self::Info { export, go: code == OptionCode::GO, heeds_block_sizes }
            }
            OptionCode::LIST_META_CONTEXT | OptionCode::SET_META_CONTEXT => {
                let (export, count) = (reader.name()?, reader.u32()?);
                let queries = Strings(reader.0);
                for _ in 0..count {
                    reader.name()?;
                }
                Self::MetaContext { export, set: code == OptionCode::SET_META_CONTEXT, queries }
            }
            _ => return Ok(Self::Unknown),
        };
        reader.end().map(|()| option)
    }
}

/// Adds an option with its data, as a client sends it: those of `option` that a client of ours asks for.
pub fn encode_option(out: &mut Vec<u8>, code: OptionCode, export: &str) {
    let mut data = Vec::new();
    match code {
        OptionCode::GO | OptionCode::INFO => {
            put_name(&mut data, export);
            data.extend(1_u16.to_be_bytes());
            data.extend(InfoKind::BLOCK_SIZE.0.to_be_bytes());
        }
        OptionCode::SET_META_CONTEXT | OptionCode::LIST_META_CONTEXT => {
            put_name(&mut data, export);
            data.extend(1_u32.to_be_bytes());
            put_name(&mut data, crate::BASE_ALLOCATION);
        }
        OptionCode::EXPORT_NAME => data.extend(export.as_bytes()),
        _ => {}
    }
    out.extend(OPTION_MAGIC.to_be_bytes());
    out.extend(code.0.to_be_bytes());
    out.extend(length(data.len()));
    out.extend(data);
}
