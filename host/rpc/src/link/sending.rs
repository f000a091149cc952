//! Sending of calls to the server.

use tombolo_core::lock;
use tombolo_mem::Source;
use tombolo_shm::address::GlobalAddress;
use tombolo_shm::area::{Area, Span};

use super::message::{CallMessage, FRAME_MAX, Part, SHORT_DATA_BYTES};
use super::route::Live;
use tombolo_host_links::client::{Call, FrameWriter, Spans};

/// A call, and the memory that its reply needs.
pub(crate) struct Outgoing<'a> {
    /// Header and arguments.
    pub(crate) head: &'a [u8],
    /// File data sent after the encoded bytes, without padding.
    pub(crate) data: Option<&'a Source>,
    /// Size of the reply buffer for the part beyond the frame.
    pub(crate) buffer_bytes: usize,
}

/// Result of sending.
pub(crate) enum Attempt {
    Sent {
        call: Call,
        /// Index of the reply buffer among the spans, if there is one.
        reply_buffer: Option<usize>,
        /// `true` if the call uses bulk memory.
        has_memory: bool,
    },
    /// Bulk memory is exhausted at present.
    MemoryExhausted,
    /// The call exceeds all of the link's bulk memory.
    TooLong,
}

impl Live {
    /// Sends a call if bulk memory suffices; while all ids of the link are in use, the call is queued. Its
    /// data are copied before this function returns.
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
        // A server that needs a larger buffer reports that.
        let buffer_bytes = buffer_bytes.min(capacity(line.in_area()));
        let Some((out, reply_buffer)) = self.take(out_bytes, buffer_bytes) else {
            return Attempt::MemoryExhausted;
        };
        let mut message = CallMessage::default();
        let mut spans = Spans::none();
        if let Some(span) = out {
            // A span of the link's own area always has memory.
            let Ok(mut sink) = line.out_sink(&span) else { return Attempt::TooLong };
            sink.write_at(0, rest);
            sink.advance(rest.len());
            if let Some(data) = data {
                data.copy_to_sink(&sink);
                sink.zero(data_bytes, padded_bytes - data_bytes);
            }
            message.data = Some(part(line.out_address(&span), out_bytes));
            spans.push(span);
        }
        let number = reply_buffer.map(|span| {
            message.reply_buffer = Some(part(line.in_address(&span), buffer_bytes));
            spans.push(span);
            spans.len() - 1
        });
        let (kind, body) = message.encode();
        let has_memory = message != CallMessage::default();
        let call = line.call_with(kind, body, spans, |writer| {
            writer.put(frame);
            if let Some(data) = data.filter(|_| in_frame) {
                put_data(writer, data, padded_bytes);
            }
        });
        Attempt::Sent { call, reply_buffer: number, has_memory }
    }

    /// Takes `out_bytes` of the client's bulk memory and `buffer_bytes` of the server's, or neither. If only
    /// one of the two spans is available, it is given back without waking the waiters for memory. The waiters
    /// have checked under the lock `pair`, while no span was taken only to be given back, so they have missed
    /// nothing. If they were woken, waiters that need two spans would wake each other forever.
    fn take(&self, out_bytes: usize, buffer_bytes: usize) -> Option<(Option<Span>, Option<Span>)> {
        let take = || {
            let out = take(self.line.out_area(), out_bytes)?;
            Some((out, take(self.line.in_area(), buffer_bytes)?))
        };
        // A single span is first taken without the lock. If it is missing, another thread may have taken it
        // only to give it back, so the attempt is repeated under the lock.
        let taken = if out_bytes == 0 || buffer_bytes == 0 { take() } else { None };
        taken.or_else(|| {
            let _pair = lock(&self.pair);
            take()
        })
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

/// Takes a span of `len_bytes`; for zero bytes returns success without a span. Returns `None` if memory is
/// short.
fn take(area: &Area, len_bytes: usize) -> Option<Option<Span>> {
    if len_bytes == 0 { Some(None) } else { area.take(len_bytes as u64).map(Some) }
}

fn part(address: GlobalAddress, len_bytes: usize) -> Part {
    Part { address, len_bytes: u32::try_from(len_bytes).unwrap_or(u32::MAX) }
}
