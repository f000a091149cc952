//! A call on its way to the server.

use tombolo_mem::Source;
use tombolo_shm::address::GlobalAddress;
use tombolo_shm::area::{Area, Span};

use super::message::{CallMessage, FRAME_MAX, Part, SHORT_DATA_BYTES};
use super::route::Live;
use tombolo_host_links::client::{Call, FrameWriter, Spans};

/// A call, and how much memory its reply needs.
pub(crate) struct Outgoing<'a> {
    /// Header and arguments.
    pub(crate) head: &'a [u8],
    /// File data behind them; the padding is added.
    pub(crate) data: Option<&'a Source>,
    /// So much of the reply may follow its frame.
    pub(crate) buffer_bytes: usize,
}

/// What came of sending.
pub(crate) enum Attempt {
    /// It is out. Of its spans that one is where the reply goes.
    Sent {
        /// To be awaited.
        call: Call,
        /// The place's number among the spans, if there is one.
        reply_buffer: Option<usize>,
        /// There are spans.
        has_memory: bool,
    },
    /// There is no bulk memory for it now.
    BufferTooSmall,
    /// It would not fit in all of it.
    TooLong,
}

impl Live {
    /// Sends a call, if the link has a slot and memory. All that it refers to is copied when this returns.
    pub(crate) fn send(&self, outgoing: &Outgoing<'_>) -> Attempt {
        let Outgoing { head, data, buffer_bytes } = *outgoing;
        let line = &self.line;
        let data_bytes = data.map_or(0, Source::len);
        let padded_bytes = data_bytes.next_multiple_of(4);
        let in_frame = head.len() + padded_bytes <= FRAME_MAX && data_bytes <= SHORT_DATA_BYTES;
        let (frame, rest) = head.split_at(head.len().min(FRAME_MAX));
        let out_bytes = if in_frame { 0 } else { rest.len() + padded_bytes };
        if !fits(line.out_area(), out_bytes) {
            return Attempt::TooLong;
        }
        // The server says so if it needs more.
        let buffer_bytes = buffer_bytes.min(capacity(line.in_area()));
        let Some((out, reply_buffer)) = self.take(out_bytes, buffer_bytes) else {
            return Attempt::BufferTooSmall;
        };
        let mut asked = CallMessage::default();
        let mut spans = Spans::none();
        if let Some(span) = out {
            // A span of the line's own area is memory of it.
            let Ok(mut sink) = line.out_sink(&span) else { return Attempt::TooLong };
            sink.write_at(0, rest);
            sink.advance(rest.len());
            if let Some(data) = data {
                data.copy_to_sink(&sink);
                sink.zero(data_bytes, padded_bytes - data_bytes);
            }
            asked.data = Some(part(line.out_address(&span), out_bytes));
            spans.push(span);
        }
        let number = reply_buffer.map(|span| {
            asked.reply_buffer = Some(part(line.in_address(&span), buffer_bytes));
            spans.push(span);
            spans.len() - 1
        });
        let (kind, body) = asked.encode();
        let has_memory = asked != CallMessage::default();
        let call = line.call_with(kind, body, spans, |writer| {
            writer.put(frame);
            if let Some(data) = data.filter(|_| in_frame) {
                put_data(writer, data, padded_bytes);
            }
        });
        Attempt::Sent { call, reply_buffer: number, has_memory }
    }

    /// A span of either side, where it is needed, or neither. A first span that was given back for want of
    /// the second must wake no waiter, for a failed attempt has looked while no pair was half taken: else the
    /// waiters would wake each other, or themselves, for ever.
    fn take(&self, out_bytes: usize, buffer_bytes: usize) -> Option<(Option<Span>, Option<Span>)> {
        let take = || {
            let out = take(self.line.out_area(), out_bytes)?;
            Some((out, take(self.line.in_area(), buffer_bytes)?))
        };
        // One span alone is taken or not.
        let taken = if out_bytes == 0 || buffer_bytes == 0 { take() } else { None };
        taken.or_else(|| self.room.with_whole_pairs(take))
    }
}

fn put_data(writer: &mut FrameWriter<'_>, data: &Source, padded_bytes: usize) {
    let mut bytes = [0; SHORT_DATA_BYTES];
    data.read_at(0, &mut bytes);
    writer.put(bytes.get(..padded_bytes).unwrap_or(&bytes));
}

fn fits(area: &Area, len_bytes: usize) -> bool {
    len_bytes <= capacity(area) && u32::try_from(len_bytes).is_ok()
}

fn capacity(area: &Area) -> usize {
    usize::try_from(area.capacity_bytes()).unwrap_or(usize::MAX)
}

/// No span for no bytes; none if memory is short.
fn take(area: &Area, len_bytes: usize) -> Option<Option<Span>> {
    if len_bytes == 0 { Some(None) } else { area.take(len_bytes as u64).map(Some) }
}

fn part(address: GlobalAddress, len_bytes: usize) -> Part {
    Part { address, len_bytes: u32::try_from(len_bytes).unwrap_or(u32::MAX) }
}
