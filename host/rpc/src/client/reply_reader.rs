//! Receiving of replies over one connection.
//!
//! Data are received into a staging buffer, many small replies at a time. The file data of a long reply go
//! straight to the call's receive buffer, except for the part that arrived with the reply's head, which is
//! copied. The file data of short and of fragmented replies are copied as a whole. A malformed reply fails
//! its call; a record that is too long also makes the remainder of the stream unusable.

use std::mem;

use super::call::Reply;
use super::reply::{Incoming, Verdict, judge, whole, xid_of};
use super::state::ReplyContext;
use super::wire::Socket;
use smallvec::SmallVec;
use tombolo_mem::{Buffer, Sink};
use tombolo_sys::Errno;
use tombolo_wire_rpc::{Mark, RecordError, RecordScan as Part, Records};

/// Size of the staging buffer; a datagram fits.
const STAGING_BYTES: usize = 64 << 10;

/// Number of bytes received into the staging buffer while data with a receive buffer are awaited: data that
/// arrive in the staging buffer must be copied.
const STAGING_SHORT_BYTES: usize = 4 << 10;

/// Length of a reply's beginning in which its data are expected to begin. If they do not, the whole reply is
/// collected.
const HEAD_BYTES_MAX: usize = 4 << 10;

/// Receiving side of one connection.
pub(super) struct ReplyReader {
    staging: Buffer,
    /// Range of unprocessed bytes.
    start: usize,
    end: usize,
    stage: ReadStage,
    records: Records,
    limit_bytes: usize,
}

/// Destination of the next bytes.
enum ReadStage {
    /// A new record.
    Start,
    /// A record collected as a whole, because it is longer than the bytes received or fragmented.
    Collect { body: Vec<u8>, rest: Remainder },
    /// Data received into their receive buffer.
    Direct(DirectReply),
    /// Bytes to skip.
    Skip { bytes: usize },
}

/// Remainder of a record being collected.
#[derive(Clone, Copy)]
enum Remainder {
    /// This number of bytes.
    Bytes(usize),
    /// Further fragments, up to the one marked as the last.
    Pieces,
}

/// A reply whose file data are being received straight into the receive buffer.
struct DirectReply {
    xid: u32,
    reply: Reply,
    copied_bytes: usize,
    /// Remaining part of the receive buffer.
    sink: Sink,
    /// Number of bytes of the record behind the data.
    behind_bytes: usize,
}

/// Next item in the received bytes.
pub(super) enum Step {
    /// More bytes are needed.
    Receive,
    Reply(Incoming),
    /// A reply that matches no call, skipped.
    Unknown,
}

/// A look-up of the call that a reply answers.
pub(super) type Lookup<'a> = &'a mut dyn FnMut(u32) -> Option<ReplyContext>;

/// A violation that makes the remainder of the stream unusable.
pub(super) struct ProtocolError {
    /// Bytes in the position of the record's transaction id.
    pub(super) xid: u32,
    pub(super) why: RecordError,
}

impl Step {
    fn of(incoming: Option<Incoming>) -> Self {
        incoming.map_or(Self::Unknown, Self::Reply)
    }
}

/// Amounts received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Received {
    pub(super) bytes: usize,
    /// Part received straight into its receive buffer.
    pub(super) direct: usize,
    /// `true` if the buffers were not filled.
    pub(super) is_less: bool,
}

impl ReplyReader {
    pub(super) fn new(limit_bytes: usize) -> Self {
        Self {
            staging: Buffer::new(STAGING_BYTES),
            start: 0,
            end: 0,
            stage: ReadStage::Start,
            records: Records::new(limit_bytes),
            limit_bytes,
        }
    }

    /// Returns the call whose data are being received, if any.
    pub(super) fn direct_xid(&self) -> Option<u32> {
        match &self.stage {
            ReadStage::Direct(direct) => Some(direct.xid),
            _ => None,
        }
    }

    /// Returns the number of data bytes missing from the reply being received.
    pub(super) fn missing_data(&self) -> usize {
        match &self.stage {
            ReadStage::Direct(direct) => direct.sink.len(),
            _ => 0,
        }
    }

    /// Releases the receive buffer in use; the remainder of its reply is skipped.
    pub(super) fn abandon_direct(&mut self) {
        if let ReadStage::Direct(direct) = &self.stage {
            self.stage = ReadStage::Skip { bytes: direct.sink.len() + direct.behind_bytes };
        }
    }

    /// Receives what is available, up to the size of the buffers. `short`: data with a receive buffer of
    /// their own are awaited, so little is received into the staging buffer.
    pub(super) fn receive(&mut self, socket: &dyn Socket, short: bool) -> Result<Received, Errno> {
        self.make_space();
        let free = if short { STAGING_SHORT_BYTES } else { STAGING_BYTES };
        let staging = self.staging.sink(self.end..self.end.saturating_add(free));
        let (free, bytes, direct) = match &mut self.stage {
            ReadStage::Direct(direct) => {
                let free = direct.sink.len() + staging.len();
                let bytes = socket.receive(&[&direct.sink, &staging])?;
                let available = bytes.min(direct.sink.len());
                direct.sink.advance(available);
                (free, bytes, available)
            }
            _ => (staging.len(), socket.receive(&[&staging])?, 0),
        };
        self.end += bytes - direct;
        Ok(Received { bytes, direct, is_less: bytes < free })
    }

    /// Extracts a whole datagram.
    pub(super) fn datagram(&mut self, lookup: Lookup<'_>) -> Step {
        let (start, end) = (mem::take(&mut self.start), mem::take(&mut self.end));
        let body = self.staging.as_slice().and_then(|bytes| bytes.get(start..end)).unwrap_or_default();
        Step::of(whole(body, lookup))
    }

    /// Extracts the next reply from the received bytes.
    pub(super) fn next(&mut self, lookup: Lookup<'_>) -> Result<Step, ProtocolError> {
        loop {
            let (used, step) = match mem::replace(&mut self.stage, ReadStage::Start) {
                ReadStage::Start => self.start(lookup)?,
                ReadStage::Collect { body, rest } => self.collect(body, rest, lookup)?,
                ReadStage::Direct(direct) => self.receive_direct(direct),
                ReadStage::Skip { bytes } => {
                    let available = bytes.min(self.end - self.start);
                    if available < bytes {
                        self.stage = ReadStage::Skip { bytes: bytes - available };
                    }
                    (available, (available < bytes).then_some(Step::Receive))
                }
            };
            self.start += used;
            if let Some(step) = step {
                return Ok(step);
            }
        }
    }

    /// Begins a record, if bytes are available.
    fn start(&mut self, lookup: Lookup<'_>) -> Result<(usize, Option<Step>), ProtocolError> {
        let receive = Ok((0, Some(Step::Receive)));
        // Only this thread accesses the staging buffer between two system calls.
        let bytes =
            self.staging.as_slice().and_then(|bytes| bytes.get(self.start..self.end)).unwrap_or_default();
        let Some(mark) = bytes.first_chunk().map(|mark| Mark::from_bytes(*mark)) else { return receive };
        if !mark.last {
            self.records = Records::new(self.limit_bytes);
            self.stage = ReadStage::Collect { body: Vec::new(), rest: Remainder::Pieces };
            return Ok((0, None));
        }
        let body_bytes = mark.len_bytes as usize;
        let body = bytes.get(Mark::BYTES..).unwrap_or_default();
        if body_bytes > self.limit_bytes {
            // Wait for the transaction id, to name the call.
            let Some(xid) = xid_of(body) else { return receive };
            let why = RecordError::TooLong { announced_bytes: body_bytes, limit_bytes: self.limit_bytes };
            return Err(ProtocolError { xid, why });
        }
        if let Some(body) = body.get(..body_bytes) {
            return Ok((Mark::BYTES + body_bytes, Some(Step::of(whole(body, lookup)))));
        }
        let used = bytes.len();
        match begin(body, body_bytes, lookup) {
            None => receive,
            Some((stage, step)) => {
                self.stage = stage;
                Ok((used, step))
            }
        }
    }

    /// Continues a record that is collected as a whole.
    fn collect(
        &mut self,
        mut body: Vec<u8>,
        rest: Remainder,
        lookup: Lookup<'_>,
    ) -> Result<(usize, Option<Step>), ProtocolError> {
        let bytes =
            self.staging.as_slice().and_then(|bytes| bytes.get(self.start..self.end)).unwrap_or_default();
        let (used, rest) = match rest {
            Remainder::Bytes(missing) => {
                let available = missing.min(bytes.len());
                body.extend_from_slice(bytes.get(..available).unwrap_or_default());
                (available, (available < missing).then_some(Remainder::Bytes(missing - available)))
            }
            Remainder::Pieces => {
                let found = match self.records.find(bytes, bytes.len()) {
                    Ok(found) => found,
                    Err(why) => {
                        // The mark of this fragment precedes the missing part of the transaction id.
                        let front = body.iter().chain(bytes.iter().skip(Mark::BYTES)).copied();
                        let front: SmallVec<[u8; 4]> = front.take(4).collect();
                        if let Some(xid) = xid_of(&front) {
                            return Err(ProtocolError { xid, why });
                        }
                        self.stage = ReadStage::Collect { body, rest: Remainder::Pieces };
                        return Ok((0, Some(Step::Receive)));
                    }
                };
                let complete = match &found {
                    Part::Piece { body: piece, complete } => {
                        body.extend_from_slice(bytes.get(piece.clone()).unwrap_or_default());
                        *complete
                    }
                    // A fragmented record yields fragments only.
                    Part::Nothing { .. } | Part::Record { .. } => {
                        self.stage = ReadStage::Collect { body, rest: Remainder::Pieces };
                        return Ok((0, Some(Step::Receive)));
                    }
                };
                (found.used_bytes(), (!complete).then_some(Remainder::Pieces))
            }
        };
        Ok(match rest {
            None => (used, Some(Step::of(whole(&body, lookup)))),
            Some(rest) => {
                let is_used_up = used == bytes.len();
                self.stage = ReadStage::Collect { body, rest };
                (used, is_used_up.then_some(Step::Receive))
            }
        })
    }

    /// Completes a reply whose data are received, or requests more.
    fn receive_direct(&mut self, direct: DirectReply) -> (usize, Option<Step>) {
        if !direct.sink.is_empty() {
            self.stage = ReadStage::Direct(direct);
            return (0, Some(Step::Receive));
        }
        let DirectReply { xid, reply, copied_bytes, behind_bytes, .. } = direct;
        self.stage = ReadStage::Skip { bytes: behind_bytes };
        (0, Some(Step::Reply(Incoming { xid, outcome: Ok(reply), copied_bytes })))
    }

    /// Moves unprocessed bytes to the front of the staging buffer, if little space is left after them.
    fn make_space(&mut self) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.end + STAGING_SHORT_BYTES > STAGING_BYTES
            && let Some(bytes) = self.staging.as_mut_slice()
        {
            bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
    }
}

/// Begins a partly received record. Returns the stage for its remainder, and the next step if it is already
/// determined; `None` if more bytes are needed.
fn begin(body: &[u8], body_bytes: usize, lookup: Lookup<'_>) -> Option<(ReadStage, Option<Step>)> {
    let xid = xid_of(body)?;
    let missing = body_bytes.saturating_sub(body.len());
    let Some(ReplyContext { receive_buffer, spare }) = lookup(xid) else {
        return Some((ReadStage::Skip { bytes: missing }, Some(Step::Unknown)));
    };
    let collect = |mut body_so_far: Vec<u8>| {
        body_so_far.extend_from_slice(body);
        Some((ReadStage::Collect { body: body_so_far, rest: Remainder::Bytes(missing) }, None))
    };
    let Some(receive_buffer) = receive_buffer else { return collect(spare) };
    match judge(body, body_bytes, Some(&receive_buffer)) {
        Verdict::More if body.len() < HEAD_BYTES_MAX => None,
        Verdict::More | Verdict::Plain { .. } => collect(spare),
        Verdict::Failed(failure) => {
            let incoming = Incoming { xid, outcome: Err(failure), copied_bytes: 0 };
            Some((ReadStage::Skip { bytes: missing }, Some(Step::Reply(incoming))))
        }
        Verdict::Data { results_at, range } => {
            let received_results = body.get(results_at..).unwrap_or_default();
            if received_results.len() < range.start {
                return if body.len() < HEAD_BYTES_MAX { None } else { collect(spare) };
            }
            let (mut results, mut sink) = (spare, receive_buffer.sink);
            results.extend_from_slice(received_results.get(..range.start).unwrap_or_default());
            let available =
                received_results.get(range.start..range.end.min(received_results.len())).unwrap_or_default();
            sink.truncate(range.len());
            let copied_bytes = sink.write_at(0, available);
            sink.advance(copied_bytes);
            // The missing bytes are the rest of the data and the bytes after the data.
            let behind_bytes = missing.saturating_sub(sink.len());
            let reply = Reply { results, data_bytes: range.len(), data_announced: range };
            Some((ReadStage::Direct(DirectReply { xid, reply, copied_bytes, sink, behind_bytes }), None))
        }
    }
}
