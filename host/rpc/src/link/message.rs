//! Bodies of the requests and answers that carry ONC RPC over links (docs/formats/rpc-link.md).

use thiserror::Error;
use tombolo_shm::address::GlobalAddress;
use tombolo_shm::link::FRAME_BYTES;

/// Maximum length of a message's frame, in bytes: the size of the buffer that belongs to a request's id.
pub(super) const FRAME_MAX: usize = FRAME_BYTES as usize;

/// Maximum length of file data that are sent in the frame although bulk memory is available: copying so few
/// bytes a second time costs less than the receiver's access to bulk memory.
pub(super) const SHORT_DATA_BYTES: usize = 512;

/// Request kind of a call.
const CALL: u32 = 1;
/// Kind of the answer to a call.
const ANSWER: u32 = CALL | 1 << 31;

/// Statuses of an answer, one for each variant of [`ReplyMessage`].
const REPLY: u32 = 0;
const BUFFER_TOO_SMALL: u32 = 1;
const SILENCE: u32 = 2;

/// A piece of bulk memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Start address.
    pub address: GlobalAddress,
    /// Length, at least one byte.
    pub len_bytes: u32,
}

/// A request, without its frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallMessage {
    /// Remainder of the call behind the frame.
    pub data: Option<Part>,
    /// Destination of the reply's remainder behind its frame.
    pub reply_buffer: Option<Part>,
}

/// An answer, without its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyMessage {
    /// The reply is the frame followed by the beginning of the reply buffer.
    Reply {
        /// Number of bytes in the reply buffer.
        placed_bytes: u32,
    },
    /// The reply does not fit in the reply buffer.
    BufferTooSmall {
        /// Sufficient size of a reply buffer.
        needed_bytes: u32,
    },
    /// The call gets no reply.
    Silence,
}

/// Reason why a body is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MessageError {
    /// Unknown kind of request or answer.
    #[error("kind {kind:#x} is not an ONC RPC message")]
    Kind {
        /// The kind.
        kind: u32,
    },
    /// Unknown status of an answer.
    #[error("unknown answer status {status}")]
    Status {
        /// The status.
        status: u32,
    },
    /// Bytes that must be zero are not: reserved ones, or the address of an absent part.
    #[error("reserved bytes are not zero")]
    NotZero,
}

impl CallMessage {
    /// Encodes the request as kind and body.
    #[must_use]
    pub fn encode(&self) -> (u32, [u8; 48]) {
        let mut body = [0; 48];
        put(&mut body, 0, self.data);
        put(&mut body, 16, self.reply_buffer);
        (CALL, body)
    }

    /// Decodes a request.
    ///
    /// # Errors
    /// The body does not conform to docs/formats/rpc-link.md.
    pub fn decode(kind: u32, body: &[u8; 48]) -> Result<Self, MessageError> {
        if kind != CALL {
            return Err(MessageError::Kind { kind });
        }
        all_zero(body, 32)?;
        Ok(Self { data: part(body, 0)?, reply_buffer: part(body, 16)? })
    }
}

impl ReplyMessage {
    /// Encodes the answer as kind and body.
    #[must_use]
    pub fn encode(&self) -> (u32, [u8; 48]) {
        let (status, bytes) = match *self {
            Self::Reply { placed_bytes } => (REPLY, placed_bytes),
            Self::BufferTooSmall { needed_bytes } => (BUFFER_TOO_SMALL, needed_bytes),
            Self::Silence => (SILENCE, 0),
        };
        let mut body = [0; 48];
        body[..4].copy_from_slice(&status.to_le_bytes());
        body[4..8].copy_from_slice(&bytes.to_le_bytes());
        (ANSWER, body)
    }

    /// Decodes an answer.
    ///
    /// # Errors
    /// The body does not conform to docs/formats/rpc-link.md.
    pub fn decode(kind: u32, body: &[u8; 48]) -> Result<Self, MessageError> {
        if kind != ANSWER {
            return Err(MessageError::Kind { kind });
        }
        all_zero(body, 8)?;
        match (word(body, 0), word(body, 4)) {
            (REPLY, placed_bytes) => Ok(Self::Reply { placed_bytes }),
            (BUFFER_TOO_SMALL, needed_bytes) => Ok(Self::BufferTooSmall { needed_bytes }),
            (SILENCE, 0) => Ok(Self::Silence),
            (SILENCE, _) => Err(MessageError::NotZero),
            (status, _) => Err(MessageError::Status { status }),
        }
    }
}

fn put(body: &mut [u8; 48], at: usize, part: Option<Part>) {
    if let Some(Part { address, len_bytes }) = part {
        body[at..at + 8].copy_from_slice(&address.bits().to_le_bytes());
        body[at + 8..at + 12].copy_from_slice(&len_bytes.to_le_bytes());
    }
}

fn part(body: &[u8; 48], at: usize) -> Result<Option<Part>, MessageError> {
    let address = u64::from(word(body, at)) | u64::from(word(body, at + 4)) << 32;
    let (len_bytes, zero) = (word(body, at + 8), word(body, at + 12));
    match (len_bytes, address, zero) {
        (0, 0, 0) => Ok(None),
        (1.., _, 0) => Ok(Some(Part { address: GlobalAddress::from_bits(address), len_bytes })),
        _ => Err(MessageError::NotZero),
    }
}

/// Reads a word at `at`, which must lie within the body.
fn word(body: &[u8; 48], at: usize) -> u32 {
    body.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

fn all_zero(body: &[u8; 48], from: usize) -> Result<(), MessageError> {
    let rest = body.get(from..).unwrap_or_default();
    if rest.iter().all(|&byte| byte == 0) { Ok(()) } else { Err(MessageError::NotZero) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn a_part(bits: u64, len_bytes: u32) -> Part {
        Part { address: GlobalAddress::from_bits(bits), len_bytes }
    }

    #[test]
    fn bodies_are_as_the_document_says() {
        let call = CallMessage {
            data: Some(a_part(0x0000_0605_0403_0201, 0x0a09)),
            reply_buffer: Some(a_part(0x0001_0000_0000_0000, 1)),
        };
        let (kind, body) = call.encode();
        assert_eq!(kind, 1);
        assert_eq!(body[..16], [1, 2, 3, 4, 5, 6, 0, 0, 9, 10, 0, 0, 0, 0, 0, 0]);
        assert_eq!(body[16..32], [0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(CallMessage::decode(kind, &body), Ok(call));
        let (kind, body) = ReplyMessage::BufferTooSmall { needed_bytes: 0x0102 }.encode();
        assert_eq!((kind, &body[..9]), (0x8000_0001, &[1, 0, 0, 0, 2, 1, 0, 0, 0][..]));
        for message in [
            ReplyMessage::Reply { placed_bytes: 7 },
            ReplyMessage::Reply { placed_bytes: 0 },
            ReplyMessage::BufferTooSmall { needed_bytes: u32::MAX },
            ReplyMessage::Silence,
        ] {
            let (kind, body) = message.encode();
            assert_eq!(ReplyMessage::decode(kind, &body), Ok(message));
        }
    }

    #[test]
    fn there_is_one_way_to_say_each_thing() {
        let (kind, body) = CallMessage { data: Some(a_part(5, 1)), reply_buffer: None }.encode();
        // Lengths and addresses are arbitrary; everything else is fixed.
        for at in [12, 13, 14, 15, 28, 32, 40, 47] {
            let mut other = body;
            other[at] = 1;
            assert_eq!(CallMessage::decode(kind, &other), Err(MessageError::NotZero), "byte {at}");
        }
        let mut nowhere = body;
        nowhere[8] = 0;
        assert_eq!(CallMessage::decode(kind, &nowhere), Err(MessageError::NotZero), "an address of nothing");
        assert_eq!(CallMessage::decode(2, &body), Err(MessageError::Kind { kind: 2 }));
        let (kind, body) = ReplyMessage::Silence.encode();
        let mut other = body;
        other[0] = 3;
        assert_eq!(ReplyMessage::decode(kind, &other), Err(MessageError::Status { status: 3 }));
        other = body;
        other[4] = 3;
        assert_eq!(ReplyMessage::decode(kind, &other), Err(MessageError::NotZero));
        assert_eq!(ReplyMessage::decode(1, &body), Err(MessageError::Kind { kind: 1 }));
    }
}
