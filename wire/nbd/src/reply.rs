//! Replies: simple, or chunks with a structured or extended header.

use tombolo_core::block::{Allocation, Extent};

use crate::bytes::{Reader, length};
use crate::status::Status;
use crate::{Malformed, PAYLOAD_BYTES_MAX, Result};

const SIMPLE_MAGIC: u32 = 0x6744_6698;
const STRUCTURED_MAGIC: u32 = 0x668e_33ef;
const EXTENDED_MAGIC: u32 = 0x6e8a_278c;

/// Flag of the last chunk of a reply.
const DONE: u16 = 1;

/// Maximum length of a chunk's contents besides data: an offset, or a text for people.
const CHUNK_EXTRA_BYTES: u64 = 4096;

/// The kind of a chunk, possibly unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkKind(pub u16);

#[expect(missing_docs)]
impl ChunkKind {
    pub const NONE: Self = Self(0);
    pub const OFFSET_DATA: Self = Self(1);
    pub const OFFSET_HOLE: Self = Self(2);
    pub const BLOCK_STATUS: Self = Self(5);
    pub const BLOCK_STATUS_EXT: Self = Self(6);
    pub const ERROR: Self = Self(1 << 15 | 1);
    pub const ERROR_OFFSET: Self = Self(1 << 15 | 2);

    /// Returns `true` for an error chunk, of a known or unknown kind.
    #[must_use]
    pub fn is_error(self) -> bool {
        self.0 & 1 << 15 != 0
    }
}

/// The negotiated format of replies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplyStyle {
    /// One header, and data if any.
    #[default]
    Simple,
    /// Chunks, each with a header of 20 bytes.
    Structured,
    /// Chunks, each with a header of 32 bytes, and 64-bit lengths.
    Extended,
}

/// An encoder of the reply to one request.
#[derive(Clone, Copy, Debug)]
pub struct ReplyWriter {
    /// Negotiated format.
    pub style: ReplyStyle,
    /// Cookie of the request.
    pub cookie: u64,
    /// Offset of the request, a part of replies with data and of extended headers.
    pub offset: u64,
}

impl ReplyWriter {
    /// Appends the whole reply to a successful request that returns no data.
    pub fn done(&self, out: &mut Vec<u8>) {
        self.head(out, Status::Ok, ChunkKind::NONE, 0);
    }

    /// Appends the whole reply to a failed request. `word` is a text for people; it is omitted in simple
    /// replies, which have no text, and if it is longer than 65,535 bytes.
    pub fn error(&self, out: &mut Vec<u8>, status: Status, word: &str) {
        let len = u16::try_from(word.len()).unwrap_or(0);
        self.head(out, status, ChunkKind::ERROR, 6 + u64::from(len));
        if self.style != ReplyStyle::Simple {
            out.extend((status as u32).to_be_bytes());
            out.extend(len.to_be_bytes());
            out.extend(&word.as_bytes()[..usize::from(len)]);
        }
    }

    /// Appends the head of a reply with `len_bytes` of data, the full length of the request; the data must
    /// follow.
    pub fn data(&self, out: &mut Vec<u8>, len_bytes: u32) {
        self.head(out, Status::Ok, ChunkKind::OFFSET_DATA, 8 + u64::from(len_bytes));
        if self.style != ReplyStyle::Simple {
            out.extend(self.offset.to_be_bytes());
        }
    }

    /// Appends the whole reply to BLOCK_STATUS for one context, with extents from the request's beginning
    /// on. The style must not be [`ReplyStyle::Simple`], in which a reply has no extents.
    pub fn block_status(&self, out: &mut Vec<u8>, context: u32, extents: &[Extent]) {
        let count = extents.len() as u64;
        if self.style == ReplyStyle::Extended {
            self.head(out, Status::Ok, ChunkKind::BLOCK_STATUS_EXT, 8 + count * 16);
            out.extend(context.to_be_bytes());
            out.extend(length(extents.len()));
            for extent in extents {
                out.extend(extent.len_bytes.to_be_bytes());
                out.extend(u64::from(flags_of(extent.allocation)).to_be_bytes());
            }
            return;
        }
        self.head(out, Status::Ok, ChunkKind::BLOCK_STATUS, 4 + count * 8);
        out.extend(context.to_be_bytes());
        for extent in extents {
            out.extend(u32::try_from(extent.len_bytes).unwrap_or(u32::MAX).to_be_bytes());
            out.extend(flags_of(extent.allocation).to_be_bytes());
        }
    }

    fn head(&self, out: &mut Vec<u8>, status: Status, kind: ChunkKind, len_bytes: u64) {
        if self.style == ReplyStyle::Simple {
            out.extend(SIMPLE_MAGIC.to_be_bytes());
            out.extend((status as u32).to_be_bytes());
            out.extend(self.cookie.to_be_bytes());
            return;
        }
        let is_extended = self.style == ReplyStyle::Extended;
        out.extend(if is_extended { EXTENDED_MAGIC } else { STRUCTURED_MAGIC }.to_be_bytes());
        out.extend(DONE.to_be_bytes());
        out.extend(kind.0.to_be_bytes());
        out.extend(self.cookie.to_be_bytes());
        if is_extended {
            out.extend(self.offset.to_be_bytes());
            out.extend(len_bytes.to_be_bytes());
        } else {
            out.extend(u32::try_from(len_bytes).unwrap_or(u32::MAX).to_be_bytes());
        }
    }
}

/// Returns the flags of NBD's `base:allocation`: bit 0, a hole; bit 1, reads as zeroes.
fn flags_of(allocation: Allocation) -> u32 {
    match allocation {
        Allocation::Data => 0,
        Allocation::Zero => 2,
        Allocation::Hole => 3,
    }
}

fn allocation_of(flags: u64) -> Allocation {
    match (flags & 2 != 0, flags & 1 != 0) {
        // A hole with unspecified contents may read as anything.
        (false, _) => Allocation::Data,
        (true, false) => Allocation::Zero,
        (true, true) => Allocation::Hole,
    }
}

/// The head of a reply or of one of its chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyHead {
    /// The whole reply, except the data of a READ.
    Simple {
        /// Cookie of the request.
        cookie: u64,
        /// Outcome of the request.
        status: Status,
    },
    /// One chunk of the reply to a request; chunks of several replies may be interleaved.
    Chunk {
        /// Cookie of the request.
        cookie: u64,
        /// Kind of the chunk, which determines the format of its payload.
        kind: ChunkKind,
        /// `true` for the reply's last chunk.
        is_last: bool,
        /// Number of bytes that follow: at most [`PAYLOAD_BYTES_MAX`] and another 4 KiB, for contents besides
        /// data.
        payload_bytes: u32,
    },
}

impl ReplyHead {
    /// Decodes the next head of a stream and returns it with its length; `None` while it is incomplete.
    pub fn decode(style: ReplyStyle, bytes: &[u8]) -> Result<Option<(Self, usize)>> {
        let mut reader = Reader(bytes);
        let Ok(magic) = reader.u32() else { return Ok(None) };
        let decoded = match (magic, style) {
            (SIMPLE_MAGIC, ReplyStyle::Simple | ReplyStyle::Structured) => Self::simple(&mut reader),
            (STRUCTURED_MAGIC, ReplyStyle::Structured) => Self::chunk(&mut reader, false),
            (EXTENDED_MAGIC, ReplyStyle::Extended) => Self::chunk(&mut reader, true),
            _ => Err(Malformed::Magic),
        };
        match decoded {
            Ok(head) => Ok(Some((head, bytes.len() - reader.0.len()))),
            Err(Malformed::Short) => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    fn simple(reader: &mut Reader<'_>) -> Result<Self> {
        let status = Status::from_number(reader.u32()?);
        Ok(Self::Simple { cookie: reader.u64()?, status })
    }

    fn chunk(reader: &mut Reader<'_>, is_extended: bool) -> Result<Self> {
        let (flags, kind, cookie) = (reader.u16()?, ChunkKind(reader.u16()?), reader.u64()?);
        let len_bytes = if is_extended {
            reader.u64()?;
            reader.u64()?
        } else {
            u64::from(reader.u32()?)
        };
        let fits = |len: &u32| u64::from(*len) <= u64::from(PAYLOAD_BYTES_MAX) + CHUNK_EXTRA_BYTES;
        let payload_bytes = u32::try_from(len_bytes).ok().filter(fits).ok_or(Malformed::Length(len_bytes))?;
        Ok(Self::Chunk { cookie, kind, is_last: flags & DONE != 0, payload_bytes })
    }
}

/// Decodes the status in the payload of an error chunk.
pub fn decode_error(payload: &[u8]) -> Result<Status> {
    match Status::from_number(Reader(payload).u32()?) {
        Status::Ok => Err(Malformed::Value),
        status => Ok(status),
    }
}

/// Decodes the payload of an OFFSET_HOLE chunk: offset and length, in bytes.
pub fn decode_hole(payload: &[u8]) -> Result<(u64, u32)> {
    let mut reader = Reader(payload);
    let hole = (reader.u64()?, reader.u32()?);
    reader.end().map(|()| hole)
}

/// Decodes the payload of a BLOCK_STATUS chunk of either kind: context and extents.
pub fn decode_block_status(kind: ChunkKind, payload: &[u8]) -> Result<(u32, Vec<Extent>)> {
    let mut reader = Reader(payload);
    let context = reader.u32()?;
    let is_extended = kind == ChunkKind::BLOCK_STATUS_EXT;
    if is_extended {
        // Number of extents, redundant with the length.
        reader.u32()?;
    }
    let mut extents = Vec::new();
    while !reader.0.is_empty() {
        let (len_bytes, flags) = if is_extended {
            (reader.u64()?, reader.u64()?)
        } else {
            (u64::from(reader.u32()?), u64::from(reader.u32()?))
        };
        if len_bytes == 0 {
            return Err(Malformed::Value);
        }
        extents.push(Extent { len_bytes, allocation: allocation_of(flags) });
    }
    if extents.is_empty() { Err(Malformed::Short) } else { Ok((context, extents)) }
}
