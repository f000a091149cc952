//! Reads: from the server directly into the reader's memory, from read-ahead, and from unstable written data.

use std::ops::Range;
use std::sync::{Arc, Mutex, Weak};

use tombolo_core::fs::ReadDone;
use tombolo_core::{Answer, Error, Result, lock};
use tombolo_host_runtime::buffer_pool::Lease;
use tombolo_host_runtime::task;
use tombolo_mem::{Sink, Source};
use tombolo_wire_nfs3::Procedure;

use super::budget::Budget;
use super::file::{FileState, State, unless_interrupted};
use super::piece::{Piece, WriteSeq};
use super::read_ahead::{AheadId, Fetched, Part, ReaderId};
use super::read_sequence::ReadAheadLimits;
use super::server::Server;
use super::started_call::StartedCall;
use crate::caller::Caller;

/// Read-ahead of one opening.
#[derive(Debug, Default)]
pub(crate) struct ReadAhead(Mutex<Opening>);

#[derive(Debug, Default)]
enum Opening {
    /// Nothing read so far.
    #[default]
    New,
    /// Registered among the file's readers.
    Reads(Weak<FileState>, ReaderId),
    /// The opening has ended.
    Over,
}

impl ReadAhead {
    /// Discards the read-ahead when the opening ends; later reads have none.
    pub(crate) fn stop(&self) {
        let before = std::mem::replace(&mut *lock(&self.0), Opening::Over);
        if let Opening::Reads(file, reader) = before
            && let Some(file) = file.upgrade()
        {
            file.update(|state| state.readers.remove(reader));
        }
    }

    fn reader(&self, file: &Arc<FileState>) -> Option<ReaderId> {
        let mut opening = lock(&self.0);
        match &*opening {
            Opening::New => {
                let reader = file.quietly(|state| state.readers.add());
                *opening = Opening::Reads(Arc::downgrade(file), reader);
                Some(reader)
            }
            Opening::Reads(_, reader) => Some(*reader),
            Opening::Over => None,
        }
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Reads into the start of `into`, directly from the wire except for read-ahead and uncommitted data. Waits
/// for unanswered writes to the range.
pub(crate) fn read<S: Server>(
    server: &Arc<S>,
    node: &Arc<S::Node>,
    caller: &Caller,
    ahead: &ReadAhead,
    offset: u64,
    into: Sink,
) -> Answer<ReadDone> {
    let range = offset..offset.saturating_add(into.len() as u64);
    if range.is_empty() {
        return Answer::ok(ReadDone { count: 0, eof: false });
    }
    let file = node.as_ref().as_ref().state().clone();
    let seq = super::sending::all_so_far(&file);
    let reader = ahead.reader(&file);
    let reading = Reading {
        server: server.clone(),
        node: node.clone(),
        caller: caller.clone(),
        file,
        reader,
        range,
        into,
    };
    let plan = reading.plan(seq);
    match plan.as_ref().and_then(|plan| reading.at_hand(plan)) {
        Some(here) => Answer::ok(reading.copy_all(here, plan)),
        None => Answer::later(reading.finish(seq, plan)),
    }
}

/// A read in progress: the range, its destination, and the reader whose read-ahead it uses.
struct Reading<S: Server> {
    server: Arc<S>,
    node: Arc<S::Node>,
    caller: Caller,
    file: Arc<FileState>,
    reader: Option<ReaderId>,
    range: Range<u64>,
    into: Sink,
}

/// Sources of a read's bytes, and the read-ahead to start.
struct Plan {
    parts: Vec<Part>,
    /// Uncommitted written bytes, copied over the data read: the server may have lost them.
    written: Overlay,
    /// Furthest end of a write that is retained or not yet completely queued, which the server may not know
    /// yet; 0 without such writes.
    end: u64,
    fetches: Vec<Fetch>,
}

/// Written bytes borrowed for a read. If they are committed meanwhile, this may be their last reference, so
/// dropping it wakes waiters for memory.
struct Overlay {
    pieces: Vec<Piece>,
    budget: Arc<Budget>,
}

impl Drop for Overlay {
    fn drop(&mut self) {
        if !self.pieces.is_empty() {
            self.pieces.clear();
            self.budget.written.wake();
        }
    }
}

/// A read-ahead READ. Dropping it records the result, also if it was never sent.
struct Fetch {
    file: Arc<FileState>,
    reader: ReaderId,
    id: AheadId,
    range: Range<u64>,
    /// Retained until the result is recorded, so that the memory counts as used while a reply may be written
    /// to it.
    memory: Lease,
    result: Option<ReadDone>,
}

impl Fetch {
    fn done(mut self, result: Option<ReadDone>) {
        self.result = result;
    }
}

impl Drop for Fetch {
    fn drop(&mut self) {
        self.file.update(|state| {
            if let Some(reader) = state.readers.reader_mut(self.reader) {
                reader.fetched(self.id, self.result);
            }
        });
    }
}

type PendingRead = StartedCall<Result<ReadDone>>;

/// A received read-ahead part.
struct Ready {
    id: AheadId,
    range: Range<u64>,
    bytes: Source,
    eof: bool,
    memory: Lease,
}

impl Fetched {
    fn ready(self, id: AheadId, range: &Range<u64>) -> Option<Ready> {
        match self {
            Self::Ready { bytes, eof, memory } => {
                Some(Ready { id, range: range.clone(), bytes, eof, memory })
            }
            Self::Pending | Self::Discarded => None,
        }
    }
}

/// Result of a read so far, over its parts in order.
#[derive(Default)]
struct Progress {
    count: usize,
    /// `true` after a short part or an error: later parts do not count.
    is_over: bool,
    eof: bool,
    error: Option<Error>,
}

impl Progress {
    fn add(&mut self, part: Result<ReadDone>, len: usize) {
        match part {
            _ if self.is_over => {}
            Ok(done) => {
                self.count += done.count;
                self.eof = done.eof;
                self.is_over = done.count < len;
            }
            Err(error) => {
                self.is_over = true;
                self.error = Some(error);
            }
        }
    }
}

impl<S: Server> Reading<S> {
    /// Returns the plan; `None` while writes before `seq` to the range are unanswered.
    fn plan(&self, seq: WriteSeq) -> Option<Plan> {
        let sizes = self.server.sizes();
        let limits = ReadAheadLimits { window_max: sizes.read_ahead_max, piece_max: sizes.read_max.max(1) };
        let now = self.server.now();
        let known_size = self.server.known_size(&self.node);
        self.file.update(|state| {
            if state.dirty.has_pending_in(&self.range, seq) {
                return None;
            }
            let written = state.dirty.uncommitted_pieces(&self.range);
            let end = state.end().unwrap_or(0);
            let covered: usize = written.iter().map(|piece| piece.len).sum();
            let written = Overlay { pieces: written, budget: self.server.budget().clone() };
            if covered == self.into.len() {
                return Some(Plan { parts: Vec::new(), written, end, fetches: Vec::new() });
            }
            let reader = self.reader.and_then(|reader| state.readers.reader_mut(reader));
            let parts = match reader {
                Some(reader) if limits.window_max > 0 => {
                    reader.asked(&self.range, &limits, now, sizes.read_ahead_time)
                }
                _ => vec![Part::Direct(self.range.clone())],
            };
            let fetches = self.fetches(state, &limits, known_size.max(end));
            Some(Plan { parts, written, end, fetches })
        })
    }

    /// Returns the read-ahead READs to start, as memory and in-flight permits allow. They end before bytes
    /// whose write is unanswered.
    fn fetches(&self, state: &mut State, limits: &ReadAheadLimits, file_end: u64) -> Vec<Fetch> {
        let mut fetches = Vec::new();
        let Some(reader) = self.reader.filter(|_| limits.window_max > 0) else { return fetches };
        let now = self.server.now();
        let State { readers, dirty, .. } = state;
        let Some(opening) = readers.reader_mut(reader) else { return fetches };
        while self.server.has_permit() && fetches.len() < FETCHES_MAX {
            let Some(mut range) = opening.next(&self.range, file_end, limits) else { break };
            range.end = dirty.pending_from(&range);
            let len = (range.end - range.start) as usize;
            let Some(memory) = self.server.budget().ahead.take(len).filter(|_| len > 0) else { break };
            let id = opening.fetch(&range, memory.clone(), now, dirty.is_empty());
            fetches.push(Fetch { file: self.file.clone(), reader, id, range, memory, result: None });
        }
        fetches
    }

    /// Returns the plan's read-ahead parts if they have all arrived and nothing must be fetched for the read.
    fn at_hand(&self, plan: &Plan) -> Option<Vec<Ready>> {
        let here = self.file.look(|state| {
            let here = plan.parts.iter().map(|part| match part {
                Part::Direct(_) => None,
                Part::Ahead(id, range) => self.look_up(state, *id, range).ready(*id, range),
            });
            here.collect::<Option<Vec<Ready>>>()
        })?;
        let all = here.iter().map(|part| part.bytes.len()).sum::<usize>() == self.into.len();
        let ends = here.last().is_some_and(|part| part.eof);
        (all || ends || plan.parts.is_empty()).then_some(here)
    }

    fn look_up(&self, state: &State, id: AheadId, range: &Range<u64>) -> Fetched {
        let reader = self.reader.and_then(|reader| state.readers.reader(reader));
        reader.map_or(Fetched::Discarded, |reader| reader.part(id, range))
    }

    /// Completes a read from the parts at hand, and starts the plan's read-ahead.
    fn copy_all(&self, here: Vec<Ready>, plan: Option<Plan>) -> ReadDone {
        let mut progress = Progress::default();
        for part in here {
            let len = length(&part.range);
            progress.add(Ok(self.copy(part)), len);
        }
        let Some(mut plan) = plan else { return ReadDone { count: progress.count, eof: progress.eof } };
        if plan.parts.is_empty() {
            progress.count = self.into.len();
        }
        plan.fetches.drain(..).for_each(|fetch| self.fetch(fetch));
        self.with_written(&progress, &plan)
    }

    /// Copies a read-ahead part to the reader's memory.
    fn copy(&self, part: Ready) -> ReadDone {
        let Ready { id, range, bytes, eof, memory } = part;
        let count = bytes.copy_to_sink(&self.sink(&range));
        drop((bytes, memory));
        self.file.quietly(|state| {
            if let Some(reader) = self.reader.and_then(|reader| state.readers.reader_mut(reader)) {
                reader.served(id, count);
            }
        });
        ReadDone { count, eof }
    }

    /// Starts a read-ahead READ, whose result is recorded in the background.
    fn fetch(&self, fetch: Fetch) {
        let (server, node, caller) = (self.server.clone(), self.node.clone(), self.caller.detached());
        let (start, into) = (fetch.range.start, fetch.memory.sink(0..length(&fetch.range)));
        let call = StartedCall::new(async move { read_all(&server, &node, &caller, start, into).await });
        task::spawn(async move { fetch.done(call.await.ok()) });
    }

    /// Waits until no write to the range is unanswered, and reads the parts of the plan.
    async fn finish(self, seq: WriteSeq, plan: Option<Plan>) -> Result<ReadDone> {
        let mut plan = plan;
        let mut plan = loop {
            if let Some(plan) = plan.take().or_else(|| self.plan(seq)) {
                break plan;
            }
            let written = self.file.until(|state| !state.dirty.has_pending_in(&self.range, seq));
            // Data that a restarted server has lost are resent, so they may be in flight again after this
            // wait.
            unless_interrupted(self.server.interruption(&self.caller), written).await?;
        };
        let mut reads = self.begin(&plan.parts);
        if reads.len() > 1 || plan.parts.len() > 1 {
            // A call that is awaited only after other calls must not block these: see `StartedCall::driven`.
            reads = reads.into_iter().map(|(call, len)| (call.driven(), len)).collect();
        }
        for fetch in plan.fetches.drain(..) {
            self.fetch(fetch);
        }
        let mut progress = Progress::default();
        if plan.parts.is_empty() {
            progress.count = self.into.len();
        }
        for part in &plan.parts {
            match part {
                Part::Direct(range) => {
                    // All calls are awaited, regardless of earlier results: they write to the reader's
                    // memory.
                    for (piece, len) in reads.drain(..self.pieces(range).count().min(reads.len())) {
                        progress.add(piece.await, len);
                    }
                }
                Part::Ahead(..) if progress.is_over => {}
                Part::Ahead(id, range) => progress.add(self.ahead(*id, range).await, length(range)),
            }
        }
        // The read-ahead data ended with the file, which may have grown since.
        let read_end = self.range.start + progress.count as u64;
        if !progress.is_over && !progress.eof && read_end < self.range.end {
            let rest = read_end..self.range.end;
            progress.add(self.straight(rest.clone()).await, length(&rest));
        }
        match progress.error.take() {
            Some(error) => Err(error),
            None => Ok(self.with_written(&progress, &plan)),
        }
    }

    /// Sends the READs of all direct parts.
    fn begin(&self, parts: &[Part]) -> Vec<(PendingRead, usize)> {
        let direct = parts.iter().filter_map(|part| match part {
            Part::Direct(range) => Some(range),
            Part::Ahead(..) => None,
        });
        let pieces = direct.flat_map(|range| self.pieces(range));
        pieces.map(|range| (self.direct(&range), length(&range))).collect()
    }

    /// Sends a READ of this range into the reader's memory.
    fn direct(&self, range: &Range<u64>) -> PendingRead {
        let (server, node, caller) = (self.server.clone(), self.node.clone(), self.caller.clone());
        let (offset, into) = (range.start, self.sink(range));
        StartedCall::new(async move { read_all(&server, &node, &caller, offset, into).await })
    }

    /// Splits a range into READs of the maximum size.
    fn pieces(&self, range: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<S> {
        let (end, piece_max) = (range.end, self.server.sizes().read_max.max(1));
        let starts = (range.start..end).step_by(piece_max);
        starts.map(move |start| start..start.saturating_add(piece_max as u64).min(end))
    }

    /// Waits for a read-ahead part, and reads directly what it lacks.
    async fn ahead(&self, id: AheadId, range: &Range<u64>) -> Result<ReadDone> {
        let arrived = self.file.until(|state| !matches!(self.look_up(state, id, range), Fetched::Pending));
        unless_interrupted(self.server.interruption(&self.caller), arrived).await?;
        let here = self.file.look(|state| self.look_up(state, id, range)).ready(id, range);
        let done = here.map_or(ReadDone { count: 0, eof: false }, |here| self.copy(here));
        if done.eof || done.count == length(range) {
            return Ok(done);
        }
        let more = self.straight(range.start + done.count as u64..range.end).await?;
        Ok(ReadDone { count: done.count + more.count, eof: more.eof })
    }

    /// Reads a range from the server, one READ after another, up to the first short one.
    async fn straight(&self, range: Range<u64>) -> Result<ReadDone> {
        let mut done = ReadDone { count: 0, eof: false };
        for piece in self.pieces(&range) {
            let more = self.direct(&piece).await?;
            done = ReadDone { count: done.count + more.count, eof: more.eof };
            if more.count < length(&piece) {
                break;
            }
        }
        Ok(done)
    }

    /// Returns the part of the reader's memory that receives a range.
    fn sink(&self, range: &Range<u64>) -> Sink {
        let mut sink = self.into.clone();
        sink.advance((range.start - self.range.start) as usize);
        sink.truncate(length(range));
        sink
    }

    /// Zero-fills the range after the data read, up to the end of retained writes, and copies uncommitted
    /// data over the data read and the zeroes. Returns the resulting count and end of file.
    fn with_written(&self, progress: &Progress, plan: &Plan) -> ReadDone {
        let &Progress { mut count, eof, is_over, .. } = progress;
        let end = usize::try_from(plan.end.saturating_sub(self.range.start)).unwrap_or(usize::MAX);
        let end = end.min(self.into.len());
        if end > count {
            // The server does not know yet that the file is longer.
            self.into.zero(count, end - count);
            count = end;
        }
        for piece in &plan.written.pieces {
            let at = (piece.offset - self.range.start) as usize;
            let mut place = self.into.clone();
            place.advance(at);
            piece.source().copy_to_sink(&place);
        }
        let read_end = self.range.start.saturating_add(count as u64);
        ReadDone { count, eof: (eof || is_over) && read_end >= plan.end }
    }
}

/// Maximum number of read-ahead READs started by one read.
const FETCHES_MAX: usize = 16;

/// Reads until the sink is full or the file ends. A server may return less than requested (RFC 1813 §3.3.6).
async fn read_all<S: Server>(
    server: &Arc<S>,
    node: &Arc<S::Node>,
    caller: &Caller,
    offset: u64,
    into: Sink,
) -> Result<ReadDone> {
    let mut rest = into;
    let mut count = 0;
    loop {
        let at = offset.saturating_add(count as u64);
        let done = server.clone().read(caller.clone(), node.clone(), at, rest.clone()).await?;
        if done.count > rest.len() {
            return Err(server.invalid_reply(Procedure::Read, "more data than requested"));
        }
        count += done.count;
        rest.advance(done.count);
        if done.eof || rest.is_empty() {
            return Ok(ReadDone { count, eof: done.eof });
        }
        if done.count == 0 {
            return Err(server.invalid_reply(Procedure::Read, "no data and no end of file"));
        }
    }
}

/// Returns the length of a range that fits in memory.
fn length(range: &Range<u64>) -> usize {
    usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(usize::MAX)
}
