//! What a server answered.

use super::frame::Frame;
use super::spans::Spans;

/// What the server answered. Private copies: nothing in it can change any more, but for what lies in the spans.
#[derive(Debug)]
pub struct Reply {
    /// How it went, or what it is.
    pub kind: u32,
    /// Results of fixed length.
    pub body: [u8; 48],
    /// Results of variable length.
    pub frame: Frame,
    /// The bulk memory of the call. Once it is dropped another call may use it.
    pub spans: Spans,
}

/// As it came out of the ring.
#[derive(Debug)]
pub(super) struct RawReply {
    pub(super) kind: u32,
    pub(super) body: [u8; 48],
    pub(super) frame: Frame,
}

impl RawReply {
    pub(super) fn with(self, spans: Spans) -> Reply {
        Reply { kind: self.kind, body: self.body, frame: self.frame, spans }
    }
}
