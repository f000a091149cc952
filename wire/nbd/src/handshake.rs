//! The greeting and flags of both sides.

use bitflags::bitflags;

use crate::bytes::Reader;
use crate::{Malformed, Result};

const NBD_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// `IHAVEOPT`.
pub(crate) const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;

/// Number of zero bytes after the reply to EXPORT_NAME, unless both sides omit them
/// ([`HandshakeFlags::NO_ZEROES`]).
pub const EXPORT_ZEROES_BYTES: usize = 124;

bitflags! {
    /// A server's handshake flags.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct HandshakeFlags: u16 {
        /// The server replies to unknown options.
        const FIXED_NEWSTYLE = 1;
        /// The server can omit the zeroes after the reply to EXPORT_NAME.
        const NO_ZEROES = 2;
        const _ = !0;
    }

    /// A client's handshake flags.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ClientFlags: u32 {
        /// The client expects replies to unknown options.
        const FIXED_NEWSTYLE = 1;
        /// The server must omit the zeroes after the reply to EXPORT_NAME.
        const NO_ZEROES = 2;
        const _ = !0;
    }

    /// The properties of an export.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct TransmissionFlags: u16 {
        /// The other flags are valid.
        const HAS_FLAGS = 1;
        /// Changes are refused.
        const READ_ONLY = 1 << 1;
        /// Supports FLUSH.
        const SEND_FLUSH = 1 << 2;
        /// Supports [`CommandFlags::FUA`](crate::CommandFlags::FUA).
        const SEND_FUA = 1 << 3;
        /// The disk is a rotational one, for which the client may schedule requests.
        const ROTATIONAL = 1 << 4;
        /// Supports TRIM.
        const SEND_TRIM = 1 << 5;
        /// Supports WRITE_ZEROES.
        const SEND_WRITE_ZEROES = 1 << 6;
        /// Supports [`CommandFlags::DF`](crate::CommandFlags::DF).
        const SEND_DF = 1 << 7;
        /// A flush on one connection covers all connections.
        const CAN_MULTI_CONN = 1 << 8;
        /// Supports CACHE.
        const SEND_CACHE = 1 << 10;
        /// Supports [`CommandFlags::FAST_ZERO`](crate::CommandFlags::FAST_ZERO).
        const SEND_FAST_ZERO = 1 << 11;
        const _ = !0;
    }
}

/// A server's greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting(pub HandshakeFlags);

impl Greeting {
    /// Length, in bytes.
    pub const BYTES: usize = 18;

    /// Encodes the greeting.
    #[must_use]
    pub fn encode(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&NBD_MAGIC.to_be_bytes());
        bytes[8..16].copy_from_slice(&OPTION_MAGIC.to_be_bytes());
        bytes[16..].copy_from_slice(&self.0.bits().to_be_bytes());
        bytes
    }

    /// Decodes a greeting. Fails with [`Malformed::OldStyle`] unless the server supports the fixed newstyle
    /// handshake.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Result<Self> {
        let mut reader = Reader(bytes);
        reader.magic(NBD_MAGIC)?;
        reader.magic(OPTION_MAGIC).map_err(|_| Malformed::OldStyle)?;
        let flags = HandshakeFlags::from_bits_retain(reader.u16()?);
        if flags.contains(HandshakeFlags::FIXED_NEWSTYLE) {
            Ok(Self(flags))
        } else {
            Err(Malformed::OldStyle)
        }
    }
}
