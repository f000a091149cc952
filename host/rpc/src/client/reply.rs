//! What a reply says, from its bytes.

use super::call::{DataLocation, FindData, ReceiveBuffer, Reply};
use super::error::{Failure, Garbage};
use super::state::Known;
use std::ops::Range;
use tombolo_wire_rpc::{Accepted, ReplyBody, ReplyHeader};
use tombolo_wire_xdr::{Decoder, Error};

/// A reply that came in whole.
pub(super) struct Incoming {
    pub(super) xid: u32,
    pub(super) outcome: Result<Reply, Failure>,
    /// Bytes of file data that were copied to their place.
    pub(super) copied_bytes: usize,
}

impl Incoming {
    /// Whether it makes no sense.
    pub(super) fn is_garbage(&self) -> bool {
        matches!(self.outcome, Err(Failure::Garbage(_)))
    }
}

/// What the first bytes of a reply say.
pub(super) enum Judged {
    /// Too little.
    More,
    /// All of it is results, from here on.
    Plain { results_at: usize },
    /// Results begin here, and data lie there in them.
    Data { results_at: usize, range: Range<usize> },
    /// It is no answer.
    Failed(Failure),
}

/// The transaction id at the front of a message (RFC 5531 §9).
pub(super) fn xid_of(body: &[u8]) -> Option<u32> {
    body.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

/// Looks at a reply of `body_bytes`, of which `body` has come.
pub(super) fn judge(body: &[u8], body_bytes: usize, receive_buffer: Option<&ReceiveBuffer>) -> Judged {
    let is_whole = body.len() >= body_bytes;
    let mut xdr = Decoder::new(body);
    match xdr.value::<ReplyHeader<'_>>() {
        Err(Error::Short { .. }) if !is_whole => return Judged::More,
        Err(error) => return Judged::Failed(Failure::Garbage(Garbage::Header(error))),
        Ok(ReplyHeader { body: ReplyBody::Denied(why), .. }) => return Judged::Failed(Failure::Refused(why)),
        Ok(ReplyHeader { body: ReplyBody::Accepted { status: Accepted::Success, .. }, .. }) => {}
        Ok(ReplyHeader { body: ReplyBody::Accepted { status, .. }, .. }) => {
            return Judged::Failed(Failure::NotServed(status));
        }
    }
    let results_at = xdr.position();
    let results_bytes = body_bytes.saturating_sub(results_at);
    let Some(ReceiveBuffer { sink, find }) = receive_buffer else { return Judged::Plain { results_at } };
    let find: &FindData = find;
    match find(xdr.rest(), results_bytes) {
        DataLocation::More if !is_whole => Judged::More,
        DataLocation::More | DataLocation::None => Judged::Plain { results_at },
        DataLocation::Data(range)
            if range.start <= range.end && range.end <= results_bytes && range.len() <= sink.len() =>
        {
            Judged::Data { results_at, range }
        }
        DataLocation::Data(range) => Judged::Failed(Failure::Garbage(Garbage::Data {
            start: range.start,
            len_bytes: range.end.saturating_sub(range.start),
            results_bytes,
            room_bytes: sink.len(),
        })),
    }
}

/// Reads a reply that is there in one piece; none if it answers nothing.
pub(super) fn whole(body: &[u8], lookup: &mut dyn FnMut(u32) -> Option<Known>) -> Option<Incoming> {
    let xid = xid_of(body)?;
    let Known { receive_buffer, spare: mut results } = lookup(xid)?;
    let mut copied_bytes = 0;
    let outcome = match judge(body, body.len(), receive_buffer.as_ref()) {
        Judged::More => Ok(Reply::default()),
        Judged::Failed(failure) => Err(failure),
        Judged::Plain { results_at } => {
            results.extend_from_slice(body.get(results_at..).unwrap_or_default());
            Ok(Reply { results, ..Reply::default() })
        }
        Judged::Data { results_at, range } => {
            let all = body.get(results_at..).unwrap_or_default();
            results.extend_from_slice(all.get(..range.start).unwrap_or_default());
            let data = all.get(range.clone()).unwrap_or_default();
            copied_bytes = receive_buffer.map_or(0, |receive_buffer| receive_buffer.sink.write_at(0, data));
            Ok(Reply { results, data_bytes: copied_bytes, data_announced: range })
        }
    };
    Some(Incoming { xid, outcome, copied_bytes })
}
