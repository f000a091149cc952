//! Validation of answers received over a link.

use std::sync::Arc;

use tombolo_mem::Source;

use super::message::ReplyMessage;
use super::route::Live;
use tombolo_host_links::client::Reply;
use tombolo_host_links::{EndReason, ProtocolError};

/// A received reply: a private copy of its frame, and the remainder in bulk memory. The server may change
/// bulk memory at any time, so the remainder must be copied once before it is examined.
pub(crate) struct Body {
    pub(crate) reply: Reply,
    /// Remainder of the reply behind the frame.
    pub(crate) placed: Source,
}

/// Reason why an answer carries no reply.
pub(crate) enum ReplyError {
    /// The reply buffer must have this many bytes.
    BufferTooSmall(usize),
    /// The server does not answer this call.
    Silence,
    /// The answer violates the protocol.
    ProtocolError(ProtocolError),
}

impl Live {
    /// Validates an answer. `reply_buffer` is the index of the span offered for the reply. A protocol
    /// violation cuts the link.
    pub(crate) fn take_reply(&self, reply: Reply, reply_buffer: Option<usize>) -> Result<Body, ReplyError> {
        let checked = self.check(reply, reply_buffer);
        if let Err(ReplyError::ProtocolError(error)) = &checked {
            self.cut(error.clone());
        }
        checked
    }

    /// Cuts the link after a protocol violation by the server.
    pub(crate) fn cut(&self, error: ProtocolError) {
        self.line.cut(EndReason::ProtocolError(error));
    }

    fn check(&self, reply: Reply, reply_buffer: Option<usize>) -> Result<Body, ReplyError> {
        let malformed = |why: String| ReplyError::ProtocolError(ProtocolError::Malformed(Arc::from(why)));
        let message =
            ReplyMessage::decode(reply.kind, &reply.body).map_err(|error| malformed(error.to_string()))?;
        let placed_bytes = match message {
            ReplyMessage::Reply { placed_bytes } => placed_bytes as usize,
            ReplyMessage::BufferTooSmall { needed_bytes } => {
                return Err(ReplyError::BufferTooSmall(needed_bytes as usize));
            }
            ReplyMessage::Silence => return Err(ReplyError::Silence),
        };
        let span = reply_buffer.and_then(|reply_buffer| reply.spans.at(reply_buffer));
        let mut placed = match span {
            Some(span) => {
                self.line.in_source(span).map_err(|error| ReplyError::ProtocolError(error.into()))?
            }
            None => Source::new(),
        };
        if placed_bytes > placed.len() {
            let capacity = placed.len();
            return Err(malformed(format!(
                "{placed_bytes} bytes of a reply in a reply_buffer of {capacity}"
            )));
        }
        placed.truncate(placed_bytes);
        Ok(Body { reply, placed })
    }
}
