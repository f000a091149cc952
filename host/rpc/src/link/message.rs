//! The bodies of requests and answers.

use thiserror::Error;
use tombolo_shm::address::GlobalAddress;
use tombolo_shm::link::FRAME_BYTES;

/// What travels in the buffer of a request's id is no longer.
pub(super) const FRAME_MAX: usize = FRAME_BYTES as usize;

/// Data up to this length travel in the frame with what stands before them: who receives them copies them once more, which costs less
/// than looking in another place. What is longer is read where it lies.
pub(super) const SHORT_DATA_BYTES: usize = 512;

/// The kind of a request: a call.
const CALL: u32 = 1;
/// The kind of its answer.
const ANSWER: u32 = CALL | 1 << 31;

const REPLY: u32 = 0;
const NO_ROOM: u32 = 1;
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
pub struct Asked {
    /// What follows the frame; both together are the call.
    pub data: Option<Part>,
    /// Where the server puts what of its reply follows the frame.
    pub place: Option<Part>,
}

/// An answer, but for its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// The reply is the frame, and behind it so many bytes of the place.
    Reply {
        /// How many.
        placed_bytes: u32,
    },
    /// There is a reply, and no room for it.
    NoRoom {
        /// A place of so many bytes would do.
        needed_bytes: u32,
    },
    /// Nothing is said to that.
    Silence,
}

/// Why a body is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Senseless {
    /// Another kind of request or answer.
    #[error("kind {kind:#x} is none of ONC RPC's")]
    Kind {
        /// The kind.
        kind: u32,
    },
    /// A status that there is not.
    #[error("an answer of status {status}")]
    Status {
        /// The status.
        status: u32,
    },
    /// Something that must be zero is not.
    #[error("what is to be zero is not")]
    NotZero,
}

impl Asked {
    /// As it goes over the link: kind and body.
    #[must_use]
    pub fn encode(&self) -> (u32, [u8; 48]) {
        let mut body = [0; 48];
        put(&mut body, 0, self.data);
        put(&mut body, 16, self.place);
        (CALL, body)
    }

    /// As it came.
    ///
    /// # Errors
    /// It is not as the document says.
    pub fn decode(kind: u32, body: &[u8; 48]) -> Result<Self, Senseless> {
        if kind != CALL {
            return Err(Senseless::Kind { kind });
        }
        all_zero(body, 32)?;
        Ok(Self { data: part(body, 0)?, place: part(body, 16)? })
    }
}

impl Said {
    /// As it goes over the link: kind and body.
    #[must_use]
    pub fn encode(&self) -> (u32, [u8; 48]) {
        let (status, bytes) = match *self {
            Self::Reply { placed_bytes } => (REPLY, placed_bytes),
            Self::NoRoom { needed_bytes } => (NO_ROOM, needed_bytes),
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
    pub fn decode(kind: u32, body: &[u8; 48]) -> Result<Self, Senseless> {
        if kind != ANSWER {
            return Err(Senseless::Kind { kind });
        }
        all_zero(body, 8)?;
        match (word(body, 0), word(body, 4)) {
            (REPLY, placed_bytes) => Ok(Self::Reply { placed_bytes }),
            (NO_ROOM, needed_bytes) => Ok(Self::NoRoom { needed_bytes }),
            (SILENCE, 0) => Ok(Self::Silence),
            (SILENCE, _) => Err(Senseless::NotZero),
            (status, _) => Err(Senseless::Status { status }),
        }
    }
}

fn put(body: &mut [u8; 48], at: usize, part: Option<Part>) {
    if let Some(Part { address, len_bytes }) = part {
        body[at..at + 8].copy_from_slice(&address.bits().to_le_bytes());
        body[at + 8..at + 12].copy_from_slice(&len_bytes.to_le_bytes());
    }
}

fn part(body: &[u8; 48], at: usize) -> Result<Option<Part>, Senseless> {
    let address = u64::from(word(body, at)) | u64::from(word(body, at + 4)) << 32;
    let (len_bytes, zero) = (word(body, at + 8), word(body, at + 12));
    match (len_bytes, address, zero) {
        (0, 0, 0) => Ok(None),
        (1.., _, 0) => Ok(Some(Part { address: GlobalAddress::from_bits(address), len_bytes })),
        _ => Err(Senseless::NotZero),
    }
}

/// For places within the body only.
fn word(body: &[u8; 48], at: usize) -> u32 {
    body.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

fn all_zero(body: &[u8; 48], from: usize) -> Result<(), Senseless> {
    let rest = body.get(from..).unwrap_or_default();
    if rest.iter().all(|&byte| byte == 0) { Ok(()) } else { Err(Senseless::NotZero) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn a_part(bits: u64, len_bytes: u32) -> Part {
        Part { address: GlobalAddress::from_bits(bits), len_bytes }
    }

    #[test]
    fn bodies_are_as_the_document_says() {
        let asked = Asked {
            data: Some(a_part(0x0000_0605_0403_0201, 0x0a09)),
            place: Some(a_part(0x0001_0000_0000_0000, 1)),
        };
        let (kind, body) = asked.encode();
        assert_eq!(kind, 1);
        assert_eq!(body[..16], [1, 2, 3, 4, 5, 6, 0, 0, 9, 10, 0, 0, 0, 0, 0, 0]);
        assert_eq!(body[16..32], [0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Asked::decode(kind, &body), Ok(asked));
        let (kind, body) = Said::NoRoom { needed_bytes: 0x0102 }.encode();
        assert_eq!((kind, &body[..9]), (0x8000_0001, &[1, 0, 0, 0, 2, 1, 0, 0, 0][..]));
        for said in [
            Said::Reply { placed_bytes: 7 },
            Said::Reply { placed_bytes: 0 },
            Said::NoRoom { needed_bytes: u32::MAX },
            Said::Silence,
        ] {
            let (kind, body) = said.encode();
            assert_eq!(Said::decode(kind, &body), Ok(said));
        }
    }

    #[test]
    fn there_is_one_way_to_say_each_thing() {
        let (kind, body) = Asked { data: Some(a_part(5, 1)), place: None }.encode();
        // Lengths and addresses may be anything; everything else is fixed.
        for at in [12, 13, 14, 15, 28, 32, 40, 47] {
            let mut other = body;
            other[at] = 1;
            assert_eq!(Asked::decode(kind, &other), Err(Senseless::NotZero), "byte {at}");
        }
        let mut nowhere = body;
        nowhere[8] = 0;
        assert_eq!(Asked::decode(kind, &nowhere), Err(Senseless::NotZero), "an address of nothing");
        assert_eq!(Asked::decode(2, &body), Err(Senseless::Kind { kind: 2 }));
        let (kind, body) = Said::Silence.encode();
        let mut other = body;
        other[0] = 3;
        assert_eq!(Said::decode(kind, &other), Err(Senseless::Status { status: 3 }));
        other = body;
        other[4] = 3;
        assert_eq!(Said::decode(kind, &other), Err(Senseless::NotZero));
        assert_eq!(Said::decode(1, &body), Err(Senseless::Kind { kind: 1 }));
    }
}
