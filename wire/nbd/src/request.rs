//! Requests, as they follow each other during transmission.

use bitflags::bitflags;

use crate::bytes::Reader;
use crate::{Malformed, PAYLOAD_BYTES_MAX, ReplyStyle, Result};

const COMPACT_MAGIC: u32 = 0x2560_9513;
const EXTENDED_MAGIC: u32 = 0x21e4_1c71;

/// What is to be done; there may be commands that nothing here knows.
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
    /// How it is to be done.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct CommandFlags: u16 {
        /// Durable before it is answered.
        const FUA = 1;
        /// WRITE_ZEROES: the room is kept.
        const NO_HOLE = 1 << 1;
        /// READ: in one chunk.
        const DF = 1 << 2;
        /// BLOCK_STATUS: the first extent alone.
        const REQ_ONE = 1 << 3;
        /// WRITE_ZEROES: not at all if it is no quicker than a write.
        const FAST_ZERO = 1 << 4;
        /// With extended headers: the length is that of the data that follow.
        const PAYLOAD_LEN = 1 << 5;
        const _ = !0;
    }
}

/// How long the headers of requests are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HeaderStyle {
    /// A length of 32 bits.
    #[default]
    Compact,
    /// A length of 64 bits.
    Extended,
}

impl HeaderStyle {
    /// How long a request is without its data.
    #[must_use]
    pub const fn request_bytes(self) -> usize {
        match self {
            Self::Compact => 28,
            Self::Extended => 32,
        }
    }
}

/// A request. A WRITE's data follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// How.
    pub flags: CommandFlags,
    /// What.
    pub command: Command,
    /// What its answer is to bear.
    pub cookie: u64,
    /// Where it begins, in bytes.
    pub offset: u64,
    /// How long, in bytes.
    pub len_bytes: u64,
}

impl Request {
    /// The next of a stream, once as many bytes are there as its style has. What is wrong cannot be skipped:
    /// where the next one would begin is not known.
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

    /// Whether each of its flags is one of its command, with what was agreed. FUA is for all commands (NBD's
    /// proto.md, "Command flags").
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

    /// How many bytes of data follow. Of a WRITE they do, also where extended headers lack the flag that says
    /// so: QEMU's client never sets it (8.2 to 10.0 at least), and its server takes that too.
    #[must_use]
    pub fn payload_bytes(&self, style: HeaderStyle) -> u64 {
        let is_said = style == HeaderStyle::Extended && self.flags.contains(CommandFlags::PAYLOAD_LEN);
        if is_said || self.command == Command::WRITE { self.len_bytes } else { 0 }
    }

    /// Adds it to what is sent.
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
