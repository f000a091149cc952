//! NBD, the network block device (specification: `doc/proto.md` of the NBD project): both sides of the
//! handshake (fixed newstyle) and of transmission, with simple, structured and extended replies.
//!
//! A codec without I/O, for servers and clients. For a message whose length the peer chooses, the head is
//! decoded first and gives the number of bytes that follow; excessive lengths are refused before anything is
//! received. Nothing is allocated in proportion to an announced length.
//!
//! - A server sends a [`Greeting`], reads [`ClientFlags`], then options: an [`OptionHead`], and
//!   [`ClientOption::decode`] of the data behind it; it replies with [`OptionReply`]s.
//! - Then [`Request`]s follow, compact or extended. A server answers with [`ReplyWriter`]; a client decodes
//!   the answers with [`ReplyHead`].
//! - [`status`] maps [`tombolo_core::Error`] to NBD's errors, and back.
//!
//! Non-goals: the contents of an export, TLS, sockets.
//!
//! Reading order: `handshake`, `option`, `option_reply`, `request`, `reply`, `status`.
#![forbid(unsafe_code)]

mod bytes;
mod handshake;
mod option;
mod option_reply;
mod reply;
mod request;
pub mod status;

pub use handshake::{ClientFlags, EXPORT_ZEROES_BYTES, Greeting, HandshakeFlags, TransmissionFlags};
pub use option::{ClientOption, InfoKind, OptionCode, OptionHead, Strings, encode_option};
pub use option_reply::{BlockSizes, Info, OptionReply, OptionReplyHead, Refusal};
pub use reply::{
    ChunkKind, ReplyHead, ReplyStyle, ReplyWriter, decode_block_status, decode_error, decode_hole,
};
pub use request::{Command, CommandFlags, HeaderStyle, Request};

use thiserror::Error as ThisError;

/// Maximum length of a name, in bytes.
pub const NAME_BYTES_MAX: usize = 4096;

/// Maximum length of the data of an option or of its reply, in bytes: a name, and a few queries or texts.
pub const OPTION_BYTES_MAX: usize = 16 << 10;

/// Maximum length of the data of a request or of its reply, in bytes.
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;

/// The only supported metadata context.
pub const BASE_ALLOCATION: &str = "base:allocation";

/// Port registered with IANA.
pub const PORT: u16 = 10809;

/// A violation of the protocol by the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ThisError)]
pub enum Malformed {
    /// Truncated message.
    #[error("truncated message")]
    Short,
    /// Wrong magic number.
    #[error("not an NBD message")]
    Magic,
    /// An invalid length.
    #[error("invalid length of {0} bytes")]
    Length(u64),
    /// A name that is not UTF-8.
    #[error("name is not UTF-8")]
    Name,
    /// An invalid value.
    #[error("invalid value")]
    Value,
    /// A server that does not support the fixed newstyle handshake.
    #[error("the server does not support the fixed newstyle handshake")]
    OldStyle,
}

type Result<T> = std::result::Result<T, Malformed>;
