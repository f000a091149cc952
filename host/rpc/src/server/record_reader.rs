//! Records out of a stream of bytes, in the memory that they were received into.
//!
//! An event thread has one small buffer, the [`ReceiveArea`], that it receives into for one connection after
//! the other; so an idle connection has none. What a turn leaves unfinished moves to a buffer of the
//! connection's own. A long record (file data) gets a buffer of its size as soon as its mark is seen, and the
//! rest of it is received straight into that.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use tombolo_host_runtime::buffer_pool::{BUFFER_MAX_BYTES, BufferPool, Buffers, Lease};
use tombolo_mem::{Sink, Source};
use tombolo_sys::{Errno, tcp};
use tombolo_wire_rpc::{Found, Mark, RecordError, Records};

/// The area's size: many small calls.
const AREA_BYTES: usize = 16 << 10;

/// With less space than this at its end, the area is exchanged for another.
const ROOM_MIN_BYTES: usize = 4 << 10;

/// A record longer than this gets a buffer of its own.
const SHORT_MAX_BYTES: usize = 8 << 10;

/// So much may be received of what follows a long record: its mark tells what buffer it needs.
const AHEAD_BYTES: usize = 512;

/// A buffer and the part of it that was received and not used up.
struct Span {
    lease: Lease,
    start: usize,
    end: usize,
}

impl Span {
    fn len(&self) -> usize {
        self.end - self.start
    }

    fn room(&self) -> usize {
        self.lease.len() - self.end
    }

    /// Copies bytes to the end; they must fit.
    fn append(&mut self, bytes: &Source) {
        let sink = self.lease.sink(self.end..self.end + bytes.len());
        self.end += bytes.copy_to_sink(&sink);
    }

    fn bytes(&self, from: usize, to: usize) -> Source {
        self.lease.source(self.start + from..self.start + to)
    }

    /// The first bytes, as many as a mark has, and how many there are.
    fn front(&self) -> ([u8; Mark::BYTES], usize) {
        let mut front = [0; Mark::BYTES];
        let len = self.bytes(0, self.len().min(Mark::BYTES)).read_at(0, &mut front);
        (front, len)
    }
}

/// Where an event thread receives what is not known to be long.
pub(super) struct ReceiveArea {
    pool: Arc<BufferPool>,
    span: Span,
}

impl ReceiveArea {
    /// None if the pool has no buffers of that size, which it has.
    pub(super) fn new(pool: Arc<BufferPool>) -> Option<Self> {
        let span = Span { lease: pool.take(AREA_BYTES)?, start: 0, end: 0 };
        Some(Self { pool, span })
    }

    /// Receives and drops bytes.
    pub(super) fn throw_away(&self, stream: BorrowedFd<'_>) -> Result<usize, Errno> {
        tcp::receive(stream, &[&self.span.lease.sink(0..AREA_BYTES)])
    }

    /// Makes space to receive into. What calls still hold stays as it is; then this client pays for it.
    fn clear(&mut self, buffers: &Buffers) {
        if self.span.len() == 0 && self.span.lease.is_sole() {
            (self.span.start, self.span.end) = (0, 0);
        } else if self.span.room() < ROOM_MIN_BYTES {
            self.exchange(buffers);
        }
    }

    /// Takes another buffer, and what was not used up along.
    fn exchange(&mut self, buffers: &Buffers) {
        let Some(lease) = self.pool.take(AREA_BYTES) else { return };
        let rest = self.span.bytes(0, self.span.len());
        let left = std::mem::replace(&mut self.span, Span { lease, start: 0, end: 0 });
        self.span.append(&rest);
        drop(rest);
        left.lease.charge(buffers.account());
    }
}

/// What there is to do next.
pub(super) enum Step {
    /// Serve this record; the lease is what it lies in.
    Serve(Source, Lease),
    /// Receive more.
    Receive,
    /// There is no memory for what comes; wait for some.
    NoRoom,
}

/// What came of receiving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Received {
    pub(super) bytes: usize,
    /// There was as much as could be taken, so there may be more.
    pub(super) more: bool,
}

/// The receiving side of one connection.
pub(super) struct RecordReader {
    records: Records,
    kept: Kept,
    /// A record that comes in several fragments, as far as it has come.
    glued: Option<Span>,
    /// The last record was long: the next may be as well.
    expects_long: bool,
}

/// What a connection has between two turns.
enum Kept {
    Nothing,
    /// What a turn left on the area.
    Parked(Span),
    /// A long record that is being received, and its length with its mark.
    Long(Span, usize),
}

impl RecordReader {
    pub(super) fn new(record_max_bytes: usize) -> Self {
        let records = Records::new(record_max_bytes);
        Self { records, kept: Kept::Nothing, glued: None, expects_long: false }
    }

    /// Whether a record has begun and is not complete.
    pub(super) fn is_within_record(&self) -> bool {
        !matches!(self.kept, Kept::Nothing) || self.glued.is_some()
    }

    /// Whether all that was received is used up.
    pub(super) fn is_empty(&self, area: &ReceiveArea) -> bool {
        !self.is_within_record() && area.span.len() == 0
    }

    /// Whether a record is being received into memory for all of it.
    pub(super) fn has_begun(&self) -> bool {
        let is_long = |glued: &Span| glued.lease.len() >= BUFFER_MAX_BYTES;
        matches!(self.kept, Kept::Long(..)) || self.glued.as_ref().is_some_and(is_long)
    }

    /// Begins a turn: puts what was parked on the area.
    pub(super) fn arrive(&mut self, area: &mut ReceiveArea) {
        if let Kept::Parked(parked) = &self.kept {
            area.span.append(&parked.bytes(0, parked.len()));
            self.kept = Kept::Nothing;
        }
    }

    /// Ends a turn: the area is free for the next connection.
    pub(super) fn leave(&mut self, area: &mut ReceiveArea, buffers: &Buffers) {
        let span = &mut area.span;
        if span.len() > 0
            && let Some(mut parked) = taken(&area.pool, buffers, span.len())
        {
            parked.append(&span.bytes(0, span.len()));
            self.kept = Kept::Parked(parked);
        }
        span.start = span.end;
        if !span.lease.is_sole() {
            area.exchange(buffers);
        }
        (area.span.start, area.span.end) = (0, 0);
    }

    /// Finds the next record.
    pub(super) fn next(&mut self, area: &mut ReceiveArea, buffers: &Buffers) -> Result<Step, RecordError> {
        loop {
            if !self.can_glue(area, buffers) {
                return Ok(Step::NoRoom);
            }
            let span = match &mut self.kept {
                Kept::Long(span, _) => span,
                _ => &mut area.span,
            };
            let (front, len) = span.front();
            match self.records.find(&front[..len], span.len())? {
                Found::Nothing { missing_bytes } => {
                    let whole = span.len() + missing_bytes;
                    return Ok(self.prepare(whole, area, buffers));
                }
                Found::Record { body } => {
                    let step = Step::Serve(span.bytes(body.start, body.end), span.lease.clone());
                    span.start += body.end;
                    self.expects_long = body.len() > SHORT_MAX_BYTES;
                    self.put_down(area, buffers);
                    return Ok(step);
                }
                Found::Piece { body, complete } => {
                    let piece = span.bytes(body.start, body.end);
                    span.start += body.end;
                    if let Some(step) = self.glue(&piece, complete, area, buffers) {
                        return Ok(step);
                    }
                }
            }
        }
    }

    /// Receives what is there, as far as it fits. EAGAIN when nothing is there; no bytes are the end of the
    /// stream.
    pub(super) fn receive(
        &mut self,
        area: &mut ReceiveArea,
        buffers: &Buffers,
        receive: impl FnOnce(&[&Sink]) -> Result<usize, Errno>,
    ) -> Result<Received, Errno> {
        let (span, most) = match &mut self.kept {
            // No more of what follows than must be, for all of that is moved.
            Kept::Long(span, whole) => {
                let most = (*whole + AHEAD_BYTES).saturating_sub(span.end);
                (span, most)
            }
            _ => {
                area.clear(buffers);
                let first_of_long = self.expects_long && area.span.len() == 0;
                (&mut area.span, if first_of_long { AHEAD_BYTES } else { usize::MAX })
            }
        };
        let room = span.room().min(most);
        let sink: Sink = span.lease.sink(span.end..span.end + room);
        let bytes = receive(&[&sink])?;
        span.end += bytes;
        Ok(Received { bytes, more: bytes == room })
    }

    /// Sees to it that a record can be received that is `whole` bytes long with its mark, or its mark.
    fn prepare(&mut self, whole: usize, area: &mut ReceiveArea, buffers: &Buffers) -> Step {
        match &self.kept {
            // It was made for this record.
            Kept::Long(..) => Step::Receive,
            _ if whole <= SHORT_MAX_BYTES => {
                if area.span.lease.len() < area.span.start + whole {
                    area.exchange(buffers);
                }
                Step::Receive
            }
            _ => {
                let room = buffers.account().has_room().then(|| buffers.take(whole + AHEAD_BYTES)).flatten();
                let Some(lease) = room else { return Step::NoRoom };
                let mut long = Span { lease, start: 0, end: 0 };
                long.append(&area.span.bytes(0, area.span.len()));
                area.span.start = area.span.end;
                self.kept = Kept::Long(long, whole);
                Step::Receive
            }
        }
    }

    /// After a long record: what was received beyond it goes to the area.
    fn put_down(&mut self, area: &mut ReceiveArea, buffers: &Buffers) {
        if let Kept::Long(long, _) = &self.kept {
            let ahead = long.bytes(0, long.len());
            if area.span.room() < ahead.len() {
                area.exchange(buffers);
            }
            area.span.append(&ahead);
            drop(ahead);
            self.kept = Kept::Nothing;
        }
    }

    /// Whether all that was received fits behind the pieces that were glued, if there are any.
    fn can_glue(&mut self, area: &ReceiveArea, buffers: &Buffers) -> bool {
        let Some(glued) = &mut self.glued else { return true };
        let more = area.span.len();
        // No record is longer than the largest buffer.
        if glued.room() >= more || glued.lease.len() >= BUFFER_MAX_BYTES {
            return true;
        }
        // Once, and for all that a record can be: many that grow step by step would come to wait for each
        // other's memory.
        let is_long = glued.len() + more > SHORT_MAX_BYTES;
        if is_long && !buffers.account().has_room() {
            return false;
        }
        let needed = if is_long { BUFFER_MAX_BYTES } else { glued.len() + more };
        let Some(lease) = buffers.take(needed) else { return false };
        let mut larger = Span { lease, start: 0, end: 0 };
        larger.append(&glued.bytes(0, glued.len()));
        *glued = larger;
        true
    }

    /// Glues a piece to those before; the record if that completes it.
    fn glue(
        &mut self,
        piece: &Source,
        complete: bool,
        area: &ReceiveArea,
        buffers: &Buffers,
    ) -> Option<Step> {
        let mut glued = match self.glued.take() {
            Some(glued) => glued,
            None => taken(&area.pool, buffers, piece.len())?,
        };
        glued.append(piece);
        if !complete {
            self.glued = Some(glued);
            return None;
        }
        self.expects_long = false;
        Some(Step::Serve(glued.bytes(0, glued.len()), glued.lease))
    }
}

/// A buffer that the client pays for even beyond its share: no more than the area holds is put into it.
fn taken(pool: &Arc<BufferPool>, buffers: &Buffers, len_bytes: usize) -> Option<Span> {
    let lease = pool.take(len_bytes)?;
    lease.charge(buffers.account());
    Some(Span { lease, start: 0, end: 0 })
}
