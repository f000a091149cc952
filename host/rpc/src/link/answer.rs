//! An answer, checked.

use std::sync::Arc;

use tombolo_mem::Source;

use super::message::ReplyMessage;
use super::route::Live;
use tombolo_host_links::client::Reply;
use tombolo_host_links::{End, ProtocolError};

/// A reply where it came: first a private copy of its frame, then what lies in the place. The server may
/// change the latter at any moment, so it is copied once and then looked at.
pub(crate) struct Body {
    pub(crate) reply: Reply,
    /// What follows its frame.
    pub(crate) placed: Source,
}

/// Why an answer is no reply.
pub(crate) enum ReplyError {
    /// A place of so many bytes would do.
    BufferTooSmall(usize),
    /// Nothing is said to that call.
    Silence,
    /// It breaks the rules.
    ProtocolError(ProtocolError),
}

impl Live {
    /// Looks at an answer; `place` is the number of the span that was named for the reply. Where the answer
    /// breaks the rules the link is cut.
    pub(crate) fn take_reply(&self, reply: Reply, reply_buffer: Option<usize>) -> Result<Body, ReplyError> {
        let heard = self.check(reply, reply_buffer);
        if let Err(ReplyError::ProtocolError(error)) = &heard {
            self.cut(error.clone());
        }
        heard
    }

    /// The server is not to be believed.
    pub(crate) fn cut(&self, error: ProtocolError) {
        self.line.cut(End::ProtocolError(error));
    }

    fn check(&self, reply: Reply, reply_buffer: Option<usize>) -> Result<Body, ReplyError> {
        let malformed = |why: String| ReplyError::ProtocolError(ProtocolError::Malformed(Arc::from(why)));
        let said =
            ReplyMessage::decode(reply.kind, &reply.body).map_err(|error| malformed(error.to_string()))?;
        let placed_bytes = match said {
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
            let room = placed.len();
            return Err(malformed(format!("{placed_bytes} bytes of a reply in a reply_buffer of {room}")));
        }
        placed.truncate(placed_bytes);
        Ok(Body { reply, placed })
    }
}
