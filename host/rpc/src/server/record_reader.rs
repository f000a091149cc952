//! Reassembly of records from a TCP stream, mostly without copying them.
//!
//! Each event thread has one small buffer, the [`ReceiveArea`], shared by its connections in turn, so an idle
//! connection needs none. Bytes left over at the end of a turn move to a buffer of the connection. A long
//! record (file data) of one fragment gets a buffer of its size once its record mark is received and memory
//! suffices, and its remainder is received straight into that buffer. Fragments of a record are copied
//! together in one buffer.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use tombolo_host_runtime::buffer_pool::{BUFFER_MAX_BYTES, BufferPool, Buffers, Lease};
use tombolo_mem::{Sink, Source};
use tombolo_sys::{Errno, tcp};
use tombolo_wire_rpc::{Mark, RecordError, RecordScan, Records};

/// Size of the area: enough for many small calls.
const AREA_BYTES: usize = 16 << 10;

/// Minimum free space at the end of the area; with less, the buffer is replaced.
const FREE_MIN_BYTES: usize = 4 << 10;

/// Maximum length of a record that shares the area; a longer one gets its own buffer.
const SHORT_MAX_BYTES: usize = 8 << 10;

/// Maximum number of bytes received beyond a long record: enough for the next record mark, which determines
/// the buffer needed.
const AHEAD_BYTES: usize = 512;

/// A buffer, and the range of received bytes not yet consumed.
struct Span {
    lease: Lease,
    start: usize,
    end: usize,
}

impl Span {
    fn len(&self) -> usize {
        self.end - self.start
    }

    fn free_bytes(&self) -> usize {
        self.lease.len() - self.end
    }

    /// Appends bytes. Callers ensure that all of them fit; the excess would be lost.
    fn append(&mut self, bytes: &Source) {
        let sink = self.lease.sink(self.end..self.end + bytes.len());
        self.end += bytes.copy_to_sink(&sink);
    }

    fn bytes(&self, from: usize, to: usize) -> Source {
        self.lease.source(self.start + from..self.start + to)
    }

    /// Returns the first bytes, up to the length of a record mark, and their number.
    fn front(&self) -> ([u8; Mark::BYTES], usize) {
        let mut front = [0; Mark::BYTES];
        let len = self.bytes(0, self.len().min(Mark::BYTES)).read_at(0, &mut front);
        (front, len)
    }
}

/// The buffer for records not known to be long.
pub(super) struct ReceiveArea {
    pool: Arc<BufferPool>,
    span: Span,
}

impl ReceiveArea {
    /// Returns an area, or `None` if the pool has no buffers of that size, which does not occur.
    pub(super) fn new(pool: Arc<BufferPool>) -> Option<Self> {
        let span = Span { lease: pool.take(AREA_BYTES)?, start: 0, end: 0 };
        Some(Self { pool, span })
    }

    pub(super) fn discard(&self, stream: BorrowedFd<'_>) -> Result<usize, Errno> {
        tcp::receive(stream, &[&self.span.lease.sink(0..AREA_BYTES)])
    }

    /// Makes space for receiving. Bytes still referenced by calls stay valid: if the buffer must be replaced,
    /// the old one is charged to this client.
    fn clear(&mut self, buffers: &Buffers) {
        if self.span.len() == 0 && self.span.lease.is_sole() {
            (self.span.start, self.span.end) = (0, 0);
        } else if self.span.free_bytes() < FREE_MIN_BYTES {
            self.exchange(buffers);
        }
    }

    /// Replaces the buffer, and copies the unconsumed bytes.
    fn exchange(&mut self, buffers: &Buffers) {
        let Some(lease) = self.pool.take(AREA_BYTES) else { return };
        let rest = self.span.bytes(0, self.span.len());
        let left = std::mem::replace(&mut self.span, Span { lease, start: 0, end: 0 });
        self.span.append(&rest);
        drop(rest);
        left.lease.charge(buffers.account());
    }
}

/// Next step of a connection's receiving side.
pub(super) enum Step {
    /// Serve this record; the lease is its buffer.
    Serve(Source, Lease),
    Receive,
    /// Wait for memory for the record.
    NoMemory,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Received {
    pub(super) bytes: usize,
    /// `true` if the buffer was filled, so there may be more.
    pub(super) more: bool,
}

/// Receiving side of one connection.
pub(super) struct RecordReader {
    records: Records,
    partial: Partial,
    /// Fragments received so far of a multi-fragment record.
    assembled: Option<Span>,
    /// `true` if the last record was long and not fragmented: the next is likely to be long too.
    expects_long: bool,
}

/// Received data that a connection retains between turns.
enum Partial {
    Nothing,
    /// Bytes left over by the last turn, moved from the area to a buffer of the connection.
    Parked(Span),
    /// A long record being received, and its length including the mark.
    Long(Span, usize),
}

impl RecordReader {
    pub(super) fn new(record_max_bytes: usize) -> Self {
        let records = Records::new(record_max_bytes);
        Self { records, partial: Partial::Nothing, assembled: None, expects_long: false }
    }

    /// Returns `true` if received bytes are retained, mostly of an incomplete record.
    pub(super) fn is_within_record(&self) -> bool {
        !matches!(self.partial, Partial::Nothing) || self.assembled.is_some()
    }

    /// Returns `true` if all received bytes are consumed.
    pub(super) fn is_empty(&self, area: &ReceiveArea) -> bool {
        !self.is_within_record() && area.span.len() == 0
    }

    /// Returns `true` if a record is being received into memory reserved for all of it.
    pub(super) fn is_receiving_long(&self) -> bool {
        let is_long = |assembled: &Span| assembled.lease.len() >= BUFFER_MAX_BYTES;
        matches!(self.partial, Partial::Long(..)) || self.assembled.as_ref().is_some_and(is_long)
    }

    /// Begins a turn: restores parked bytes to the area.
    pub(super) fn begin_turn(&mut self, area: &mut ReceiveArea) {
        if let Partial::Parked(parked) = &self.partial {
            area.span.append(&parked.bytes(0, parked.len()));
            self.partial = Partial::Nothing;
        }
    }

    /// Ends a turn: parks unconsumed bytes and frees the area for the next connection.
    pub(super) fn end_turn(&mut self, area: &mut ReceiveArea, buffers: &Buffers) {
        let span = &mut area.span;
        if span.len() > 0
            && let Some(mut parked) = take_charged(&area.pool, buffers, span.len())
        {
            parked.append(&span.bytes(0, span.len()));
            self.partial = Partial::Parked(parked);
        }
        span.start = span.end;
        if !span.lease.is_sole() {
            area.exchange(buffers);
        }
        (area.span.start, area.span.end) = (0, 0);
    }

    /// Extracts the next record.
    pub(super) fn next(&mut self, area: &mut ReceiveArea, buffers: &Buffers) -> Result<Step, RecordError> {
        loop {
            if !self.reserve_fragment(area, buffers) {
                return Ok(Step::NoMemory);
            }
            let span = match &mut self.partial {
                Partial::Long(span, _) => span,
                _ => &mut area.span,
            };
            let (front, len) = span.front();
            match self.records.find(&front[..len], span.len())? {
                RecordScan::Nothing { missing_bytes } => {
                    let whole = span.len() + missing_bytes;
                    return Ok(self.prepare(whole, area, buffers));
                }
                RecordScan::Record { body } => {
                    let step = Step::Serve(span.bytes(body.start, body.end), span.lease.clone());
                    span.start += body.end;
                    self.expects_long = body.len() > SHORT_MAX_BYTES;
                    self.return_excess(area, buffers);
                    return Ok(step);
                }
                RecordScan::Piece { body, complete } => {
                    let piece = span.bytes(body.start, body.end);
                    span.start += body.end;
                    if let Some(step) = self.append_fragment(&piece, complete, area, buffers) {
                        return Ok(step);
                    }
                }
            }
        }
    }

    /// Receives as much as fits, but at most [`AHEAD_BYTES`] beyond a long record, and as few at the
    /// beginning of a record that is expected to be long. Returns EAGAIN if nothing is available, and 0 bytes
    /// at the end of the stream.
    pub(super) fn receive(
        &mut self,
        area: &mut ReceiveArea,
        buffers: &Buffers,
        receive: impl FnOnce(&[&Sink]) -> Result<usize, Errno>,
    ) -> Result<Received, Errno> {
        let (span, most) = match &mut self.partial {
            // Bytes beyond the record are copied later, so receive few of them.
            Partial::Long(span, whole) => {
                let most = (*whole + AHEAD_BYTES).saturating_sub(span.end);
                (span, most)
            }
            _ => {
                area.clear(buffers);
                let first_of_long = self.expects_long && area.span.len() == 0;
                (&mut area.span, if first_of_long { AHEAD_BYTES } else { usize::MAX })
            }
        };
        let free = span.free_bytes().min(most);
        let sink: Sink = span.lease.sink(span.end..span.end + free);
        let bytes = receive(&[&sink])?;
        span.end += bytes;
        Ok(Received { bytes, more: bytes == free })
    }

    /// Provides memory for a record of `whole` bytes, including its mark, or for the mark alone.
    fn prepare(&mut self, whole: usize, area: &mut ReceiveArea, buffers: &Buffers) -> Step {
        match &self.partial {
            // The buffer was allocated for this record.
            Partial::Long(..) => Step::Receive,
            _ if whole <= SHORT_MAX_BYTES => {
                if area.span.lease.len() < area.span.start + whole {
                    area.exchange(buffers);
                }
                Step::Receive
            }
            _ => {
                let free = buffers.account().has_room().then(|| buffers.take(whole + AHEAD_BYTES)).flatten();
                let Some(lease) = free else { return Step::NoMemory };
                let mut long = Span { lease, start: 0, end: 0 };
                long.append(&area.span.bytes(0, area.span.len()));
                area.span.start = area.span.end;
                self.partial = Partial::Long(long, whole);
                Step::Receive
            }
        }
    }

    /// Moves bytes received beyond a long record to the area.
    fn return_excess(&mut self, area: &mut ReceiveArea, buffers: &Buffers) {
        if let Partial::Long(long, _) = &self.partial {
            let ahead = long.bytes(0, long.len());
            if area.span.free_bytes() < ahead.len() {
                area.exchange(buffers);
            }
            area.span.append(&ahead);
            drop(ahead);
            self.partial = Partial::Nothing;
        }
    }

    /// Ensures that all received bytes fit after the fragments collected so far. Returns `false` if memory is
    /// short.
    fn reserve_fragment(&mut self, area: &ReceiveArea, buffers: &Buffers) -> bool {
        let Some(assembled) = &mut self.assembled else { return true };
        let more = area.span.len();
        // No record is longer than the largest buffer.
        if assembled.free_bytes() >= more || assembled.lease.len() >= BUFFER_MAX_BYTES {
            return true;
        }
        // The buffer of a long record is grown once, to the maximum length of a record: long records that
        // grow step by step could deadlock on each other's memory.
        let is_long = assembled.len() + more > SHORT_MAX_BYTES;
        if is_long && !buffers.account().has_room() {
            return false;
        }
        let needed = if is_long { BUFFER_MAX_BYTES } else { assembled.len() + more };
        let Some(lease) = buffers.take(needed) else { return false };
        let mut larger = Span { lease, start: 0, end: 0 };
        larger.append(&assembled.bytes(0, assembled.len()));
        *assembled = larger;
        true
    }

    /// Appends a fragment to the fragments collected so far. Returns the record if it is complete.
    fn append_fragment(
        &mut self,
        piece: &Source,
        complete: bool,
        area: &ReceiveArea,
        buffers: &Buffers,
    ) -> Option<Step> {
        let mut assembled = match self.assembled.take() {
            Some(assembled) => assembled,
            None => take_charged(&area.pool, buffers, piece.len())?,
        };
        assembled.append(piece);
        if !complete {
            self.assembled = Some(assembled);
            return None;
        }
        self.expects_long = false;
        Some(Step::Serve(assembled.bytes(0, assembled.len()), assembled.lease))
    }
}

/// Takes a buffer and charges it to the client, even beyond its share: the buffer receives no more bytes
/// than the area contains.
fn take_charged(pool: &Arc<BufferPool>, buffers: &Buffers, len_bytes: usize) -> Option<Span> {
    let lease = pool.take(len_bytes)?;
    lease.charge(buffers.account());
    Some(Span { lease, start: 0, end: 0 })
}
