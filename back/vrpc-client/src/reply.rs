//! Received replies.

use tombolo_core::{Error, Result};
use tombolo_host_links::client::Reply as Raw;
use tombolo_mem::Source;
use tombolo_wire_vrpc::{DecodeError, Kind, Outcome, Reply, Returned};

use crate::link::Link;

/// A reply, with the kind of its request.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) kind: Kind,
    pub(crate) reply: Raw,
}

impl Answered {
    pub(crate) fn decode(&self) -> std::result::Result<Outcome<'_>, DecodeError> {
        Reply::decode(self.kind, self.reply.kind, &self.reply.body, &self.reply.frame)
    }

    /// Returns the reply of a successful request. A malformed one ends the link.
    pub(crate) fn success(&self, link: &Link) -> Result<Reply<'_>> {
        match self.decode() {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(status)) => Err(status.into()),
            Err(error) => Err(link.malformed(error)),
        }
    }

    /// Returns the part of a successful reply that `pick` extracts. If that returns `None`, the reply is of
    /// another kind, which ends the link.
    pub(crate) fn extract<'a, T>(
        &'a self,
        link: &Link,
        pick: impl FnOnce(Reply<'a>) -> Option<T>,
    ) -> Result<T> {
        pick(self.success(link)?).ok_or_else(|| link.protocol_violation("a reply of another kind"))
    }

    /// Returns the received bytes from the place that the request named: the frame, or its span of the
    /// server's memory.
    pub(crate) fn bytes(&self, link: &Link, returned: &Returned<'_>, limit_bytes: usize) -> Result<Vec<u8>> {
        match self.placed(link, returned, limit_bytes)? {
            Some(source) => {
                let bytes = source.to_vec(limit_bytes);
                check_link_alive(link, &source)?;
                Ok(bytes)
            }
            None => match returned {
                Returned::Inline(bytes) => Ok(bytes.to_vec()),
                _ => Ok(Vec::new()),
            },
        }
    }

    /// Returns the bytes in the server's memory; `None` if they are in the frame. An error if they are in the
    /// wrong place or too many.
    pub(crate) fn placed(
        &self,
        link: &Link,
        returned: &Returned<'_>,
        limit_bytes: usize,
    ) -> Result<Option<Source>> {
        if returned.len_bytes() as usize > limit_bytes {
            return Err(link.protocol_violation("more data than requested"));
        }
        match (returned, self.reply.spans.at(0)) {
            (Returned::Placed { len_bytes }, Some(span)) => {
                let mut source = link.line.in_source(span).map_err(Error::io)?;
                source.truncate(*len_bytes as usize);
                Ok(Some(source))
            }
            (Returned::Inline(_), None) => Ok(None),
            _ => Err(link.protocol_violation("data in a place that was not requested")),
        }
    }
}

/// Fails if the memory read has lost its backing, in which case zeroes were read.
pub(crate) fn check_unpoisoned(source: &Source) -> Result<()> {
    if source.is_poisoned() { Err(Error::Disconnected) } else { Ok(()) }
}

/// Fails if the data just read from the server's memory may be other data: once the link is lost, the server
/// may reuse the memory for the next one.
pub(crate) fn check_link_alive(link: &Link, source: &Source) -> Result<()> {
    if link.line.is_lost() { Err(Error::Disconnected) } else { check_unpoisoned(source) }
}
