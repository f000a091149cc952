//! The first words of both sides.

use bitflags::bitflags;

use crate::bytes::Reader;
use crate::{Malformed, Result};

const NBD_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// `IHAVEOPT`.
pub(crate) const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;

/// After the answer to EXPORT_NAME, unless both sides do without ([`HandshakeFlags::NO_ZEROES`]).
pub const EXPORT_ZEROES_BYTES: usize = 124;

bitflags! {
    /// What a server says of its handshake.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct HandshakeFlags: u16 {
        /// It answers options that it does not know.
        const FIXED_NEWSTYLE = 1;
        /// It can leave out the zeroes after the answer to EXPORT_NAME.
        const NO_ZEROES = 2;
        const _ = !0;
    }

    /// What a client says of its handshake.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ClientFlags: u32 {
        /// It knows that the server answers options that it does not know.
        const FIXED_NEWSTYLE = 1;
        /// The zeroes are to be left out.
        const NO_ZEROES = 2;
        const _ = !0;
    }

    /// What an export can do.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct TransmissionFlags: u16 {
        /// The others mean something.
        const HAS_FLAGS = 1;
        /// Changes are refused.
        const READ_ONLY = 1 << 1;
        /// FLUSH.
        const SEND_FLUSH = 1 << 2;
        /// [`CommandFlags::FUA`](crate::CommandFlags::FUA).
        const SEND_FUA = 1 << 3;
        /// It is slow where it has to move.
        const ROTATIONAL = 1 << 4;
        /// TRIM.
        const SEND_TRIM = 1 << 5;
        /// WRITE_ZEROES.
        const SEND_WRITE_ZEROES = 1 << 6;
        /// [`CommandFlags::DF`](crate::CommandFlags::DF).
        const SEND_DF = 1 << 7;
        /// What one connection flushes is flushed for all.
        const CAN_MULTI_CONN = 1 << 8;
        /// CACHE.
        const SEND_CACHE = 1 << 10;
        /// [`CommandFlags::FAST_ZERO`](crate::CommandFlags::FAST_ZERO).
        const SEND_FAST_ZERO = 1 << 11;
        const _ = !0;
    }
}

/// A server's first words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting(pub HandshakeFlags);

impl Greeting {
    /// How long it is.
    pub const BYTES: usize = 18;

    /// As it is sent.
    #[must_use]
    pub fn encode(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&NBD_MAGIC.to_be_bytes());
        bytes[8..16].copy_from_slice(&OPTION_MAGIC.to_be_bytes());
        bytes[16..].copy_from_slice(&self.0.bits().to_be_bytes());
        bytes
    }

    /// A server that can be asked for an export, and answers.
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
