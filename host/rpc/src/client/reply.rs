//! Decoding of replies, for `reply_reader` (sockets) and `link_call` (links).

use super::call::{DataLocation, FindData, ReceiveBuffer, Reply};
use super::error::{Failure, InvalidReply};
use super::state::ReplyContext;
use std::ops::Range;
use tombolo_mem::{Sink, Source};
use tombolo_wire_rpc::{Accepted, ReplyBody, ReplyHeader};
use tombolo_wire_xdr::{Decoder, Error};

/// A decoded reply.
pub(super) struct Incoming {
    pub(super) xid: u32,
    pub(super) outcome: Result<Reply, Failure>,
    /// Number of bytes of file data that were copied to their destination.
    pub(super) copied_bytes: usize,
}

impl Incoming {
    pub(super) fn is_garbage(&self) -> bool {
        matches!(self.outcome, Err(Failure::InvalidReply(_)))
    }
}

/// Result of examining the beginning of a reply.
pub(super) enum Verdict {
    /// More bytes are needed.
    More,
    /// Results without file data.
    Plain { results_at: usize },
    /// Results with file data at `range`.
    Data { results_at: usize, range: Range<usize> },
    /// The reply reports a failure.
    Failed(Failure),
}

/// Returns the transaction id at the front of a message (RFC 5531 §9).
pub(super) fn xid_of(body: &[u8]) -> Option<u32> {
    body.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

/// Interprets a reply of `body_bytes`, of which `body` is the part received.
pub(super) fn judge(body: &[u8], body_bytes: usize, receive_buffer: Option<&ReceiveBuffer>) -> Verdict {
    let is_whole = body.len() >= body_bytes;
    let mut xdr = Decoder::new(body);
    match xdr.value::<ReplyHeader<'_>>() {
        Err(Error::Short { .. }) if !is_whole => return Verdict::More,
        Err(error) => return Verdict::Failed(Failure::InvalidReply(InvalidReply::Header(error))),
        Ok(ReplyHeader { body: ReplyBody::Denied(why), .. }) => {
            return Verdict::Failed(Failure::Refused(why));
        }
        Ok(ReplyHeader { body: ReplyBody::Accepted { status: Accepted::Success, .. }, .. }) => {}
        Ok(ReplyHeader { body: ReplyBody::Accepted { status, .. }, .. }) => {
            return Verdict::Failed(Failure::NotServed(status));
        }
    }
    let results_at = xdr.position();
    let results_bytes = body_bytes.saturating_sub(results_at);
    let Some(ReceiveBuffer { sink, find }) = receive_buffer else { return Verdict::Plain { results_at } };
    let find: &FindData = find;
    match find(xdr.rest(), results_bytes) {
        DataLocation::More if !is_whole => Verdict::More,
        DataLocation::More | DataLocation::None => Verdict::Plain { results_at },
        DataLocation::Data(range)
            if range.start <= range.end && range.end <= results_bytes && range.len() <= sink.len() =>
        {
            Verdict::Data { results_at, range }
        }
        DataLocation::Data(range) => Verdict::Failed(Failure::InvalidReply(InvalidReply::Data {
            start: range.start,
            len_bytes: range.end.saturating_sub(range.start),
            results_bytes,
            requested_bytes: sink.len(),
        })),
    }
}

/// Decodes a reply in contiguous memory. Returns `None` if it answers no outstanding call.
pub(super) fn whole(body: &[u8], lookup: &mut dyn FnMut(u32) -> Option<ReplyContext>) -> Option<Incoming> {
    let xid = xid_of(body)?;
    let ReplyContext { receive_buffer, spare } = lookup(xid)?;
    let outcome = read(xid, body, &Source::new(), receive_buffer.as_ref(), spare);
    let copied_bytes = outcome.as_ref().map_or(0, |reply| reply.data_bytes);
    Some(Incoming { xid, outcome, copied_bytes })
}

/// Decodes the reply to a call. `body` is its beginning, which the peer cannot change any more, `behind` the
/// remainder, which the peer may still change. Data are copied to their destination. `results` is an empty
/// buffer to reuse.
pub(super) fn read(
    xid: u32,
    body: &[u8],
    behind: &Source,
    receive_buffer: Option<&ReceiveBuffer>,
    mut results: Vec<u8>,
) -> Result<Reply, Failure> {
    let verdict = judge(body, body.len() + behind.len(), receive_buffer);
    if matches!(verdict, Verdict::More) && !behind.is_empty() {
        // The server may split its reply anywhere.
        let mut all = body.to_vec();
        append(&mut all, behind, 0);
        return read(xid, &all, &Source::new(), receive_buffer, results);
    }
    if xid_of(body) != Some(xid) {
        return Err(Failure::InvalidReply(InvalidReply::OtherCall));
    }
    match verdict {
        Verdict::More => Ok(Reply::default()),
        Verdict::Failed(failure) => Err(failure),
        Verdict::Plain { results_at } => {
            results.extend_from_slice(body.get(results_at..).unwrap_or_default());
            append(&mut results, behind, results_at.saturating_sub(body.len()));
            Ok(Reply { results, ..Reply::default() })
        }
        Verdict::Data { results_at, range } => {
            let data = results_at + range.start..results_at + range.end;
            results.extend_from_slice(body.get(results_at..data.start).unwrap_or_default());
            let data_bytes = receive_buffer.map_or(0, |buffer| copy_data(body, behind, data, &buffer.sink));
            Ok(Reply { results, data_bytes, data_announced: range })
        }
    }
}

/// Appends the bytes of `source` from `from` on.
fn append(to: &mut Vec<u8>, source: &Source, from: usize) {
    let before = to.len();
    to.resize(before + source.len().saturating_sub(from), 0);
    let copied = to.get_mut(before..).map_or(0, |room| source.read_at(from, room));
    to.truncate(before + copied);
}

/// Copies a reply's data from `body` and `behind` to the sink. Returns the number of bytes copied.
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
