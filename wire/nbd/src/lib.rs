//! NBD, the network block device (its specification is `doc/proto.md` of the NBD project): both sides of the
//! handshake (fixed newstyle) and of transmission, with simple, structured and extended replies.
//!
//! A codec without I/O, for servers and clients: bytes in, typed messages out. Where a message has a length
//! that the peer names, its head is decoded first and says how many bytes follow; what is longer than any
//! such message may be is refused before anything is received. Nothing here allocates in proportion to what a
//! peer announces.
//!
//! - A server sends a [`Greeting`], reads [`ClientFlags`], then options: an [`OptionHead`], and
//!   [`ClientOption::decode`] of what follows it; it answers with [`OptionReply`]s.
//! - A [`Request`] follows another from then on, compact or extended; [`ReplyHead`] and [`ReplyWriter`] are
//!   what answers them.
//! - [`status`] maps the waist's errors to NBD's, and back.
//!
//! Not here: what an export is, TLS, sockets.
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

/// The longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 4096;

/// The longest data of an option or of an answer to one, in bytes: a name, and a few queries or words beside
/// it.
pub const OPTION_BYTES_MAX: usize = 16 << 10;

/// The longest data of a request or of its answer, in bytes.
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;

/// The one metadata context that there is here.
pub const BASE_ALLOCATION: &str = "base:allocation";

/// The port that NBD has (IANA).
pub const PORT: u16 = 10809;

/// What the peer has sent breaks the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ThisError)]
pub enum Malformed {
    /// It ends too early.
    #[error("a message that ends too early")]
    Short,
    /// Not the number that marks such a message.
    #[error("not a message of NBD")]
    Magic,
    /// A length that nothing of its kind has.
    #[error("a length of {0} bytes, which nothing of its kind has")]
    Length(u64),
    /// A name that is no UTF-8.
    #[error("a name that is not UTF-8")]
    Name,
    /// A value that this place cannot have.
    #[error("a value that this place cannot have")]
    Value,
    /// A server of the old kind, which cannot be asked for an export.
    #[error("a server that speaks the old style of NBD, or not the fixed new one")]
    OldStyle,
}

type Result<T> = std::result::Result<T, Malformed>;
