//! Replies as they come in over one connection.
//!
//! What is received goes to a staging buffer, many small replies at a time. Of a reply whose data have a
//! place of their own the rest is received straight there, and only what came along with its head is copied.
//! What goes wrong with one reply is that call's failure; a record that is too long is that as well, and what
//! follows in the stream is of no use any more.

use std::mem;

use super::call::Reply;
use super::reply::{Incoming, Judged, judge, whole, xid_of};
use super::state::Known;
use super::wire::Socket;
use smallvec::SmallVec;
use tombolo_mem::{Buffer, Sink};
use tombolo_sys::Errno;
use tombolo_wire_rpc::{Found as Part, Mark, RecordError, Records};

/// Received at a time; a datagram fits.
const STAGING_BYTES: usize = 64 << 10;

/// The same while data are awaited that have a place of their own: little of them comes here then.
const STAGING_SHORT_BYTES: usize = 4 << 10;

/// Whose data cannot be found in so many bytes, of its reply all is awaited.
const HEAD_BYTES_MAX: usize = 4 << 10;

/// The receiving side of one connection.
pub(super) struct ReplyReader {
    staging: Buffer,
    /// What lies there and was not looked at yet.
    start: usize,
    end: usize,
    stage: Stage,
    records: Records,
    limit_bytes: usize,
}

/// What the next bytes belong to.
enum Stage {
    /// A record begins.
    Start,
    /// A record that is awaited as a whole, since it is longer than what came or in pieces.
    Collect { body: Vec<u8>, rest: Rest },
    /// Data that are received in their place.
    Land(DirectReply),
    /// Bytes to drop.
    Skip { bytes: usize },
}

/// What is still to come of a record that is collected.
#[derive(Clone, Copy)]
enum Rest {
    Bytes(usize),
    Pieces,
}

struct DirectReply {
    xid: u32,
    reply: Reply,
    copied_bytes: usize,
    /// The rest of it; as long as what is still to come.
    sink: Sink,
    /// What follows the data.
    behind_bytes: usize,
}

/// What is found next in what was received.
pub(super) enum Step {
    /// Nothing before more is received.
    Receive,
    /// A reply.
    Reply(Incoming),
    /// One that answers nothing, and is skipped.
    Unknown,
}

/// Says what is known of the call that a reply answers.
pub(super) type Lookup<'a> = &'a mut dyn FnMut(u32) -> Option<Known>;

/// The stream makes no sense from here on.
pub(super) struct ProtocolError {
    /// What stands where the record's transaction id does.
    pub(super) xid: u32,
    pub(super) why: RecordError,
}

impl Step {
    fn of(incoming: Option<Incoming>) -> Self {
        incoming.map_or(Self::Unknown, Self::Reply)
    }
}

/// How much was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Received {
    pub(super) bytes: usize,
    /// Of those, what went straight to its place.
    pub(super) direct: usize,
    /// The buffers could have taken more.
    pub(super) is_less: bool,
}

impl ReplyReader {
    pub(super) fn new(limit_bytes: usize) -> Self {
        Self {
            staging: Buffer::new(STAGING_BYTES),
            start: 0,
            end: 0,
            stage: Stage::Start,
            records: Records::new(limit_bytes),
            limit_bytes,
        }
    }

    /// The call whose data are being received, if any are.
    pub(super) fn direct_xid(&self) -> Option<u32> {
        match &self.stage {
            Stage::Land(direct) => Some(direct.xid),
            _ => None,
        }
    }

    /// Bytes of data that are missing of the reply that is coming in.
    pub(super) fn missing_data(&self) -> usize {
        match &self.stage {
            Stage::Land(direct) => direct.sink.len(),
            _ => 0,
        }
    }

    /// Lets go of the memory that data are being received into; the rest of that reply is skipped.
    pub(super) fn abandon_direct(&mut self) {
        if let Stage::Land(direct) = &self.stage {
            self.stage = Stage::Skip { bytes: direct.sink.len() + direct.behind_bytes };
        }
    }

    /// Receives as much as the buffers take. `short` says that data with a receive buffer of their own are
    /// awaited.
    pub(super) fn receive(&mut self, socket: &dyn Socket, short: bool) -> Result<Received, Errno> {
        self.make_room();
        let room = if short { STAGING_SHORT_BYTES } else { STAGING_BYTES };
        let staging = self.staging.sink(self.end..self.end.saturating_add(room));
        let (room, bytes, direct) = match &mut self.stage {
            Stage::Land(direct) => {
                let room = direct.sink.len() + staging.len();
                let bytes = socket.receive(&[&direct.sink, &staging])?;
                let there = bytes.min(direct.sink.len());
                direct.sink.advance(there);
                (room, bytes, there)
            }
            _ => (staging.len(), socket.receive(&[&staging])?, 0),
        };
        self.end += bytes - direct;
        Ok(Received { bytes, direct, is_less: bytes < room })
    }

    /// Takes a whole datagram out of what was received.
    pub(super) fn datagram(&mut self, lookup: Lookup<'_>) -> Step {
        let (start, end) = (mem::take(&mut self.start), mem::take(&mut self.end));
        let body = self.staging.as_slice().and_then(|bytes| bytes.get(start..end)).unwrap_or_default();
        Step::of(whole(body, lookup))
    }

    /// Finds the next reply in what was received.
    pub(super) fn next(&mut self, lookup: Lookup<'_>) -> Result<Step, ProtocolError> {
        loop {
            let (used, step) = match mem::replace(&mut self.stage, Stage::Start) {
                Stage::Start => self.start(lookup)?,
                Stage::Collect { body, rest } => self.collect(body, rest, lookup)?,
                Stage::Land(direct) => self.receive_direct(direct),
                Stage::Skip { bytes } => {
                    let there = bytes.min(self.end - self.start);
                    if there < bytes {
                        self.stage = Stage::Skip { bytes: bytes - there };
                    }
                    (there, (there < bytes).then_some(Step::Receive))
                }
            };
            self.start += used;
            if let Some(step) = step {
                return Ok(step);
            }
        }
    }

    /// A record begins, if anything does.
    fn start(&mut self, lookup: Lookup<'_>) -> Result<(usize, Option<Step>), ProtocolError> {
        let receive = Ok((0, Some(Step::Receive)));
        // No other thread has a part of it between two system calls.
        let bytes =
            self.staging.as_slice().and_then(|bytes| bytes.get(self.start..self.end)).unwrap_or_default();
        let Some(mark) = bytes.first_chunk().map(|mark| Mark::from_bytes(*mark)) else { return receive };
        if !mark.last {
            self.records = Records::new(self.limit_bytes);
            self.stage = Stage::Collect { body: Vec::new(), rest: Rest::Pieces };
            return Ok((0, None));
        }
        let body_bytes = mark.len_bytes as usize;
        let body = bytes.get(Mark::BYTES..).unwrap_or_default();
        if body_bytes > self.limit_bytes {
            // Its transaction id is waited for: whose reply it is.
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

    /// More of a record that is awaited as a whole.
    fn collect(
        &mut self,
        mut body: Vec<u8>,
        rest: Rest,
        lookup: Lookup<'_>,
    ) -> Result<(usize, Option<Step>), ProtocolError> {
        let bytes =
            self.staging.as_slice().and_then(|bytes| bytes.get(self.start..self.end)).unwrap_or_default();
        let (used, rest) = match rest {
            Rest::Bytes(missing) => {
                let there = missing.min(bytes.len());
                body.extend_from_slice(bytes.get(..there).unwrap_or_default());
                (there, (there < missing).then_some(Rest::Bytes(missing - there)))
            }
            Rest::Pieces => {
                let found = match self.records.find(bytes, bytes.len()) {
                    Ok(found) => found,
                    Err(why) => {
                        // The mark of this piece stands in front of what is missing of the transaction id.
                        let front = body.iter().chain(bytes.iter().skip(Mark::BYTES)).copied();
                        let front: SmallVec<[u8; 4]> = front.take(4).collect();
                        if let Some(xid) = xid_of(&front) {
                            return Err(ProtocolError { xid, why });
                        }
                        self.stage = Stage::Collect { body, rest: Rest::Pieces };
                        return Ok((0, Some(Step::Receive)));
                    }
                };
                let complete = match &found {
                    Part::Piece { body: piece, complete } => {
                        body.extend_from_slice(bytes.get(piece.clone()).unwrap_or_default());
                        *complete
                    }
                    // Within a record in pieces there are pieces only.
                    Part::Nothing { .. } | Part::Record { .. } => {
                        self.stage = Stage::Collect { body, rest: Rest::Pieces };
                        return Ok((0, Some(Step::Receive)));
                    }
                };
                (found.used_bytes(), (!complete).then_some(Rest::Pieces))
            }
        };
        Ok(match rest {
            None => (used, Some(Step::of(whole(&body, lookup)))),
            Some(rest) => {
                let is_used_up = used == bytes.len();
                self.stage = Stage::Collect { body, rest };
                (used, is_used_up.then_some(Step::Receive))
            }
        })
    }

    /// Data are complete, or more of them must come.
    fn receive_direct(&mut self, direct: DirectReply) -> (usize, Option<Step>) {
        if !direct.sink.is_empty() {
            self.stage = Stage::Land(direct);
            return (0, Some(Step::Receive));
        }
        let DirectReply { xid, reply, copied_bytes, behind_bytes, .. } = direct;
        self.stage = Stage::Skip { bytes: behind_bytes };
        (0, Some(Step::Reply(Incoming { xid, outcome: Ok(reply), copied_bytes })))
    }

    /// Moves the bytes in the staging buffer to its front, if there is little space behind them.
    fn make_room(&mut self) {
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

/// A record begins of which only a part has come: what the rest of it is, and what is known already. None if
/// that is too little.
fn begin(body: &[u8], body_bytes: usize, lookup: Lookup<'_>) -> Option<(Stage, Option<Step>)> {
    let xid = xid_of(body)?;
    let missing = body_bytes.saturating_sub(body.len());
    let Some(Known { receive_buffer, spare }) = lookup(xid) else {
        return Some((Stage::Skip { bytes: missing }, Some(Step::Unknown)));
    };
    let collect = |mut body_so_far: Vec<u8>| {
        body_so_far.extend_from_slice(body);
        Some((Stage::Collect { body: body_so_far, rest: Rest::Bytes(missing) }, None))
    };
    let Some(receive_buffer) = receive_buffer else { return collect(spare) };
    match judge(body, body_bytes, Some(&receive_buffer)) {
        Judged::More if body.len() < HEAD_BYTES_MAX => None,
        Judged::More | Judged::Plain { .. } => collect(spare),
        Judged::Failed(failure) => {
            let incoming = Incoming { xid, outcome: Err(failure), copied_bytes: 0 };
            Some((Stage::Skip { bytes: missing }, Some(Step::Reply(incoming))))
        }
        Judged::Data { results_at, range } => {
            let results_there = body.get(results_at..).unwrap_or_default();
            if results_there.len() < range.start {
                return if body.len() < HEAD_BYTES_MAX { None } else { collect(spare) };
            }
            let (mut results, mut sink) = (spare, receive_buffer.sink);
            results.extend_from_slice(results_there.get(..range.start).unwrap_or_default());
            let there =
                results_there.get(range.start..range.end.min(results_there.len())).unwrap_or_default();
            sink.truncate(range.len());
            let copied_bytes = sink.write_at(0, there);
            sink.advance(copied_bytes);
            // What is missing is the rest of the data and what stands behind them.
            let behind_bytes = missing.saturating_sub(sink.len());
            let reply = Reply { results, data_bytes: range.len(), data_announced: range };
            Some((Stage::Land(DirectReply { xid, reply, copied_bytes, sink, behind_bytes }), None))
        }
    }
}
