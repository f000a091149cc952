//! Requests of the transmission phase.

use bitflags::bitflags;

use crate::bytes::Reader;
use crate::{Malformed, PAYLOAD_BYTES_MAX, ReplyStyle, Result};

const COMPACT_MAGIC: u32 = 0x2560_9513;
const EXTENDED_MAGIC: u32 = 0x21e4_1c71;

/// The command of a request, possibly unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command(pub u16);

#[expect(missing_docs)]
impl Command {
    pub const READ: Self = Self(0);
    pub const WRITE: Self = Self(1);
    pub const DISC: Self = Self(2);
    pub const FLUSH: Self = Self(3);
    pub const TRIM: Self = Self(4);
    pub const CACHE: Self = Self(5);
    pub const WRITE_ZEROES: Self = Self(6);
    pub const BLOCK_STATUS: Self = Self(7);
}

bitflags! {
    /// Flags of a request.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct CommandFlags: u16 {
        /// Make the effect of the request durable before the reply.
        const FUA = 1;
        /// WRITE_ZEROES: keep the space allocated.
        const NO_HOLE = 1 << 1;
        /// READ: reply in one chunk.
        const DF = 1 << 2;
        /// BLOCK_STATUS: return the first extent only.
        const REQ_ONE = 1 << 3;
        /// WRITE_ZEROES: fail unless faster than a write.
        const FAST_ZERO = 1 << 4;
        /// The length is that of the payload that follows; extended headers only.
        const PAYLOAD_LEN = 1 << 5;
        const _ = !0;
    }
}

/// The negotiated format of request headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HeaderStyle {
    /// 32-bit lengths.
    #[default]
    Compact,
    /// 64-bit lengths.
    Extended,
}

impl HeaderStyle {
    /// Returns the length of a request without its data, in bytes.
    #[must_use]
    pub const fn request_bytes(self) -> usize {
        match self {
            Self::Compact => 28,
            Self::Extended => 32,
        }
    }
}

/// A request. The data of a WRITE follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Flags, including unknown ones; see [`has_known_flags`](Self::has_known_flags).
    pub flags: CommandFlags,
    /// Command, possibly unknown: requests are decoded whatever their command.
    pub command: Command,
    /// Cookie, repeated in the reply.
    pub cookie: u64,
    /// Offset on the disk, in bytes.
    pub offset: u64,
    /// Number of bytes of the disk, or of the payload with [`CommandFlags::PAYLOAD_LEN`].
    pub len_bytes: u64,
}

impl Request {
    /// Decodes the next request of a stream; `bytes` must have the length of its style. Errors are fatal,
    /// because the position of the next request is unknown.
    pub fn decode(style: HeaderStyle, bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader(bytes);
        let magic = if style == HeaderStyle::Compact { COMPACT_MAGIC } else { EXTENDED_MAGIC };
        if reader.u32()? != magic {
            return Err(Malformed::Magic);
        }
        let (flags, command) = (CommandFlags::from_bits_retain(reader.u16()?), Command(reader.u16()?));
        let (cookie, offset) = (reader.u64()?, reader.u64()?);
        let len_bytes = match style {
            HeaderStyle::Compact => u64::from(reader.u32()?),
            HeaderStyle::Extended => reader.u64()?,
        };
        let request = Self { flags, command, cookie, offset, len_bytes };
        if request.payload_bytes(style) > u64::from(PAYLOAD_BYTES_MAX) {
            return Err(Malformed::Length(len_bytes));
        }
        Ok(request)
    }

    /// Returns `true` if each flag is valid for the command, given the negotiated format of replies. FUA is
    /// valid for all commands (NBD's proto.md, "Command flags").
    #[must_use]
    pub fn has_known_flags(&self, style: ReplyStyle) -> bool {
        let own = match self.command {
            Command::READ if style != ReplyStyle::Simple => CommandFlags::DF,
            Command::WRITE if style == ReplyStyle::Extended => CommandFlags::PAYLOAD_LEN,
            Command::WRITE_ZEROES => CommandFlags::NO_HOLE | CommandFlags::FAST_ZERO,
            Command::BLOCK_STATUS => CommandFlags::REQ_ONE,
            _ => CommandFlags::empty(),
        };
        (CommandFlags::FUA | own).contains(self.flags)
    }

    /// Returns the number of data bytes that follow. They follow a WRITE even where extended headers lack the
    /// flag: QEMU's client never sets it (8.2 to 10.0 at least), and its server accepts that too.
    #[must_use]
    pub fn payload_bytes(&self, style: HeaderStyle) -> u64 {
        let is_flagged = style == HeaderStyle::Extended && self.flags.contains(CommandFlags::PAYLOAD_LEN);
        if is_flagged || self.command == Command::WRITE { self.len_bytes } else { 0 }
    }

    /// Appends the request.
    pub fn encode(&self, style: HeaderStyle, out: &mut Vec<u8>) {
        let magic = if style == HeaderStyle::Compact { COMPACT_MAGIC } else { EXTENDED_MAGIC };
        out.extend(magic.to_be_bytes());
        out.extend(self.flags.bits().to_be_bytes());
        out.extend(self.command.0.to_be_bytes());
        out.extend(self.cookie.to_be_bytes());
        out.extend(self.offset.to_be_bytes());
        match style {
            HeaderStyle::Compact => {
                out.extend(u32::try_from(self.len_bytes).unwrap_or(u32::MAX).to_be_bytes())
            }
            HeaderStyle::Extended => out.extend(self.len_bytes.to_be_bytes()),
        }
    }
}
