//! What a reply says, from its bytes.

use super::call::{DataLocation, FindData, ReceiveBuffer, Reply};
use super::error::{Failure, Garbage};
use super::state::Known;
use std::ops::Range;
use tombolo_mem::{Sink, Source};
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
    let Known { receive_buffer, spare } = lookup(xid)?;
    let outcome = read(xid, body, &Source::new(), receive_buffer.as_ref(), spare);
    let copied_bytes = outcome.as_ref().map_or(0, |reply| reply.data_bytes);
    Some(Incoming { xid, outcome, copied_bytes })
}

/// Reads the reply to a call: its first bytes, and behind them what the peer may still change. Its data are
/// copied to where they belong, once.
pub(super) fn read(
    xid: u32,
    body: &[u8],
    behind: &Source,
    receive_buffer: Option<&ReceiveBuffer>,
    mut results: Vec<u8>,
) -> Result<Reply, Failure> {
    let judged = judge(body, body.len() + behind.len(), receive_buffer);
    if matches!(judged, Judged::More) && !behind.is_empty() {
        // A server may divide its reply as it likes.
        let mut all = body.to_vec();
        append(&mut all, behind, 0);
        return read(xid, &all, &Source::new(), receive_buffer, results);
    }
    if xid_of(body) != Some(xid) {
        return Err(Failure::Garbage(Garbage::OtherCall));
    }
    match judged {
        Judged::More => Ok(Reply::default()),
        Judged::Failed(failure) => Err(failure),
        Judged::Plain { results_at } => {
            results.extend_from_slice(body.get(results_at..).unwrap_or_default());
            append(&mut results, behind, results_at.saturating_sub(body.len()));
            Ok(Reply { results, ..Reply::default() })
        }
        Judged::Data { results_at, range } => {
            let data = results_at + range.start..results_at + range.end;
            results.extend_from_slice(body.get(results_at..data.start).unwrap_or_default());
            let data_bytes = receive_buffer.map_or(0, |buffer| copy_data(body, behind, data, &buffer.sink));
            Ok(Reply { results, data_bytes, data_announced: range })
        }
    }
}

/// Adds what is in `source` from `from` on.
fn append(to: &mut Vec<u8>, source: &Source, from: usize) {
    let before = to.len();
    to.resize(before + source.len().saturating_sub(from), 0);
    let copied = to.get_mut(before..).map_or(0, |room| source.read_at(from, room));
    to.truncate(before + copied);
}

/// Copies the data of a reply: what of them is in its first bytes, and what follows those.
fn copy_data(body: &[u8], behind: &Source, data: Range<usize>, sink: &Sink) -> usize {
    let there = body.get(data.start.min(body.len())..data.end.min(body.len())).unwrap_or_default();
    let copied = sink.write_at(0, there);
    if behind.is_empty() || copied >= data.len() {
        return copied;
    }
    let (mut from, mut to) = (behind.clone(), sink.clone());
    from.advance(data.start.saturating_sub(body.len()));
    from.truncate(data.len() - copied);
    to.advance(copied);
    copied + from.copy_to_sink(&to)
}
