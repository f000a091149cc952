//! The bodies of requests and answers.

use thiserror::Error;
use tombolo_shm::address::GlobalAddress;
use tombolo_shm::link::FRAME_BYTES;

/// What travels in the buffer of a request's id is no longer.
pub(super) const FRAME_MAX: usize = FRAME_BYTES as usize;

/// Data up to this length travel in the frame with what stands before them: the receiver copies them once
/// more, which costs less than another memory access. What is longer is read where it lies.
pub(super) const SHORT_DATA_BYTES: usize = 512;

/// The kind of a request: a call.
const CALL: u32 = 1;
/// The kind of its answer.
const ANSWER: u32 = CALL | 1 << 31;

const REPLY: u32 = 0;
const BUFFER_TOO_SMALL: u32 = 1;
const SILENCE: u32 = 2;

/// A piece of bulk memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Where.
    pub address: GlobalAddress,
    /// How long: at least one byte.
    pub len_bytes: u32,
}

/// A request, but for its frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallMessage {
    /// What follows the frame; both together are the call.
    pub data: Option<Part>,
    /// Where the server puts what of its reply follows the frame.
    pub reply_buffer: Option<Part>,
}

/// An answer, but for its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyMessage {
    /// The reply is the frame, and behind it so many bytes of the place.
    Reply {
        /// How many.
        placed_bytes: u32,
    },
    /// There is a reply, and its buffer is too small.
    BufferTooSmall {
        /// A place of so many bytes would do.
        needed_bytes: u32,
    },
    /// Nothing is said to that.
    Silence,
}

/// Why a body is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MessageError {
    /// Another kind of request or answer.
    #[error("kind {kind:#x} is not an ONC RPC message")]
    Kind {
        /// The kind.
        kind: u32,
    },
    /// A status that there is not.
    #[error("unknown answer status {status}")]
    Status {
        /// The status.
        status: u32,
    },
    /// Something that must be zero is not.
    #[error("reserved bytes are not zero")]
    NotZero,
}

impl CallMessage {
    /// As it goes over the link: kind and body.
    #[must_use]
    pub fn encode(&self) -> (u32, [u8; 48]) {
        let mut body = [0; 48];
        put(&mut body, 0, self.data);
        put(&mut body, 16, self.reply_buffer);
        (CALL, body)
    }

    /// As it came.
    ///
    /// # Errors
    /// It is not as the document says.
    pub fn decode(kind: u32, body: &[u8; 48]) -> Result<Self, MessageError> {
        if kind != CALL {
            return Err(MessageError::Kind { kind });
        }
        all_zero(body, 32)?;
        Ok(Self { data: part(body, 0)?, reply_buffer: part(body, 16)? })
    }
}

impl ReplyMessage {
    /// As it goes over the link: kind and body.
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

    /// As it came.
    ///
    /// # Errors
    /// It is not as the document says.
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

/// For places within the body only.
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
        let asked = CallMessage {
            data: Some(a_part(0x0000_0605_0403_0201, 0x0a09)),
            reply_buffer: Some(a_part(0x0001_0000_0000_0000, 1)),
        };
        let (kind, body) = asked.encode();
        assert_eq!(kind, 1);
        assert_eq!(body[..16], [1, 2, 3, 4, 5, 6, 0, 0, 9, 10, 0, 0, 0, 0, 0, 0]);
        assert_eq!(body[16..32], [0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(CallMessage::decode(kind, &body), Ok(asked));
        let (kind, body) = ReplyMessage::BufferTooSmall { needed_bytes: 0x0102 }.encode();
        assert_eq!((kind, &body[..9]), (0x8000_0001, &[1, 0, 0, 0, 2, 1, 0, 0, 0][..]));
        for said in [
            ReplyMessage::Reply { placed_bytes: 7 },
            ReplyMessage::Reply { placed_bytes: 0 },
            ReplyMessage::BufferTooSmall { needed_bytes: u32::MAX },
            ReplyMessage::Silence,
        ] {
            let (kind, body) = said.encode();
            assert_eq!(ReplyMessage::decode(kind, &body), Ok(said));
        }
    }

    #[test]
    fn there_is_one_way_to_say_each_thing() {
        let (kind, body) = CallMessage { data: Some(a_part(5, 1)), reply_buffer: None }.encode();
        // Lengths and addresses may be anything; everything else is fixed.
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
