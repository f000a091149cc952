use crate::ring::slot_stamp::SlotStamp;

/// Bytes of a message that the ring gives no meaning to.
pub const BODY_BYTES: usize = 48;
/// Words of eight bytes that the body takes.
const BODY_WORDS: usize = BODY_BYTES / 8;
/// Words that a slot has behind the first.
pub(super) const TAIL_WORDS: usize = BODY_WORDS + 1;

/// What a slot carries. One that was read is a private copy, and nothing in it has been checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message {
    /// Which request it is, or answers.
    pub id: u32,
    /// How many bytes of the buffer that belongs to the id are used.
    pub frame_len: u32,
    /// What it asks for, or how it went.
    pub kind: u32,
    /// Whatever the kind says.
    pub body: [u8; BODY_BYTES],
}

impl Default for Message {
    fn default() -> Message {
        Message { id: 0, frame_len: 0, kind: 0, body: [0; BODY_BYTES] }
    }
}

impl Message {
    /// The slot's first word: stamp and id, little-endian.
    #[inline(always)]
    pub(super) fn head(&self, stamp: SlotStamp) -> u64 {
        (u64::from(stamp.0) | u64::from(self.id) << 32).to_le()
    }

    /// The words behind it.
    #[inline(always)]
    pub(super) fn tail(&self) -> [u64; TAIL_WORDS] {
        let mut words = [0; TAIL_WORDS];
        words[0] = (u64::from(self.frame_len) | u64::from(self.kind) << 32).to_le();
        for (word, bytes) in words[1..].iter_mut().zip(self.body.as_chunks::<8>().0) {
            // Bytes keep their places: no order is involved.
            *word = u64::from_ne_bytes(*bytes);
        }
        words
    }

    /// The message of a slot with those words.
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
