//! Options of the handshake.

use crate::bytes::{Reader, length, name, put_name};
use crate::handshake::OPTION_MAGIC;
use crate::{Malformed, OPTION_BYTES_MAX, Result};

/// The code of an option, possibly unknown.
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

/// The header before an option's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionHead {
    /// Code of the option.
    pub code: OptionCode,
    /// Number of bytes that follow; at most [`OPTION_BYTES_MAX`].
    pub data_bytes: usize,
}

impl OptionHead {
    /// Length, in bytes.
    pub const BYTES: usize = 16;

    /// Decodes a header. Fails with [`Malformed::Length`] for excessive data.
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

/// A kind of information about an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InfoKind(pub u16);

#[expect(missing_docs)]
impl InfoKind {
    pub const EXPORT: Self = Self(0);
    pub const NAME: Self = Self(1);
    pub const DESCRIPTION: Self = Self(2);
    pub const BLOCK_SIZE: Self = Self(3);
}

/// An option with its data, as sent by a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientOption<'a> {
    /// Start transmission with this export, or close the connection.
    ExportName(&'a str),
    /// Close the connection.
    Abort,
    /// List the exports.
    List,
    /// Start TLS.
    StartTls,
    /// Describe an export; if `go`, start transmission with it.
    Info {
        /// Name of the export; empty for the default one.
        export: &'a str,
        /// `true` if transmission is to start.
        go: bool,
        /// `true` if the client requested the block sizes, and thus promises to respect them.
        respects_block_sizes: bool,
    },
    /// Use structured replies, in chunks, during transmission.
    StructuredReply,
    /// List the matching metadata contexts; if `set`, select them.
    MetaContext {
        /// Name of the export; empty for the default one.
        export: &'a str,
        /// `true` to select the contexts, `false` to list them.
        set: bool,
        /// Queries for contexts. An empty list of queries lists all contexts, but selects none.
        queries: Strings<'a>,
    },
    /// Use extended headers in requests and replies.
    ExtendedHeaders,
    /// An unknown option.
    Unknown,
}

/// A sequence of strings in a message, each preceded by its length. Ends at the first invalid one; those of
/// a decoded option are all valid.
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
    /// Decodes the data behind the header. A code that is not defined results in [`Unknown`](Self::Unknown),
    /// whatever the data.
    pub fn decode(code: OptionCode, data: &'a [u8]) -> Result<Self> {
        let mut reader = Reader(data);
        let option = match code {
            OptionCode::EXPORT_NAME => return name(data).map(Self::ExportName),
            // The client's reasons are ignored.
            OptionCode::ABORT => return Ok(Self::Abort),
            OptionCode::LIST => Self::List,
            OptionCode::STARTTLS => Self::StartTls,
            OptionCode::STRUCTURED_REPLY => Self::StructuredReply,
            OptionCode::EXTENDED_HEADERS => Self::ExtendedHeaders,
            OptionCode::INFO | OptionCode::GO => {
                let (export, count) = (reader.name()?, reader.u16()?);
                let mut respects_block_sizes = false;
                for _ in 0..count {
                    respects_block_sizes |= InfoKind(reader.u16()?) == InfoKind::BLOCK_SIZE;
                }
                Self::Info { export, go: code == OptionCode::GO, respects_block_sizes }
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

/// Appends an option with its data, for those options that our client uses.
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
