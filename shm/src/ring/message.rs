use crate::ring::slot_stamp::SlotStamp;

/// Size of the uninterpreted part of a message, in bytes.
pub const BODY_BYTES: usize = 48;
/// Size of the body, in words of eight bytes.
const BODY_WORDS: usize = BODY_BYTES / 8;
/// Number of words of a slot behind the first.
pub(super) const TAIL_WORDS: usize = BODY_WORDS + 1;

/// The contents of a slot. A received one is a private, unchecked copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message {
    /// Request id; its low bits are the index of the request's buffer. An answer has the id of its request.
    pub id: u32,
    /// Number of bytes used of the buffer that belongs to the request id, in the sender's memory.
    pub frame_len: u32,
    /// Kind of the request or answer, as numbered by the link's protocol.
    pub kind: u32,
    /// Contents, whose format depends on the kind.
    pub body: [u8; BODY_BYTES],
}

impl Default for Message {
    fn default() -> Message {
        Message { id: 0, frame_len: 0, kind: 0, body: [0; BODY_BYTES] }
    }
}

impl Message {
    /// Returns the slot's first word: stamp and id, little-endian.
    #[inline(always)]
    pub(super) fn head(&self, stamp: SlotStamp) -> u64 {
        (u64::from(stamp.0) | u64::from(self.id) << 32).to_le()
    }

    /// Returns the words of the slot behind the first.
    #[inline(always)]
    pub(super) fn tail(&self) -> [u64; TAIL_WORDS] {
        let mut words = [0; TAIL_WORDS];
        words[0] = (u64::from(self.frame_len) | u64::from(self.kind) << 32).to_le();
        for (word, bytes) in words[1..].iter_mut().zip(self.body.as_chunks::<8>().0) {
            // Bytes keep their positions: no byte order is involved.
            *word = u64::from_ne_bytes(*bytes);
        }
        words
    }

    /// Returns the message of a slot whose words are `head` and `tail`.
    #[inline(always)]
    pub(super) fn from_words(head: u64, tail: [u64; TAIL_WORDS]) -> Message {
        let mut body = [0; BODY_BYTES];
        for (bytes, word) in body.as_chunks_mut::<8>().0.iter_mut().zip(&tail[1..]) {
            *bytes = word.to_ne_bytes();
        }
        let sizes = u64::from_le(tail[0]);
        Message {
            id: (u64::from_le(head) >> 32) as u32,
            frame_len: sizes as u32,
            kind: (sizes >> 32) as u32,
            body,
        }
    }
}
