//! Writes behind: writes whose callers continue before the reply (docs/decisions/vrpc-writes-behind.md).
//!
//! Such a write is in the ring when its caller continues, or is about to be sent again after a loss of the
//! link. The server performs it before it begins a later request of the link. The write is recorded here,
//! with its data, until its reply is taken out of the ring; if the link is lost before that, the write is
//! sent again on the next link, ahead of any other request. A failure is kept for the next write, flush or
//! fsync through the same opening.
//!
//! The table of [`WritesBehind`] is never locked while a reply is taken or a request is sent, because both
//! may run tasks that use it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use smallvec::SmallVec;
use tombolo_core::fs::{File, Notice, OpenFlags, OpenId, Write};
use tombolo_core::{Ctx, Error, Interrupt, Result, lock};
use tombolo_host_links::client::{Call, Spans};
use tombolo_wire_vrpc::{Data, DecodeError, FRAME_BYTES, Kind, Reply, Request};

use crate::bulk_memory::largest;
use crate::link::{Link, SessionObjects};
use crate::owned::Owned;
use crate::request::{NoAnswer, OutgoingRequest};
use crate::session::{out_reference, written};

/// Maximum number of unanswered writes of a session; at most one of each opening.
const WRITES_MAX: usize = 8;
/// Maximum length of a write behind, in bytes.
pub(crate) const WRITE_BYTES_MAX: usize = 64 << 10;
/// Minimum number of slots of a link that carries writes behind. Their replies occupy slots until they are
/// taken out, so on a smaller link other requests would wait for one.
const SLOTS_MIN: u32 = 32;
/// Minimum size of a link's bulk memory for writes behind that exceed a frame, in bytes, so that other
/// requests need not wait for memory.
const BULK_BYTES_MIN: u64 = 4 * (WRITES_MAX * WRITE_BYTES_MAX) as u64;
/// Flags of openings whose writes are awaited, because they wait for the server's disk.
const AWAITED: OpenFlags = OpenFlags::DIRECT.union(OpenFlags::SYNC).union(OpenFlags::DATA_SYNC);

/// The writes of a session that are not answered yet, and the failures not reported yet.
#[derive(Default)]
pub(crate) struct WritesBehind {
    table: Mutex<Table>,
    /// Number of unanswered writes, also read without the lock.
    unanswered: AtomicUsize,
}

#[derive(Default)]
struct Table {
    /// Unanswered writes in the order of their calls.
    entries: Vec<Entry>,
    errors: HashMap<OpenId, Error>,
}

/// A write with everything needed to send it again, in the session's ids.
pub(crate) struct UnansweredWrite {
    sequence: u64,
    file: File,
    how: Write,
    data: Box<[u8]>,
    cx: Ctx,
}

struct Entry {
    write: Arc<UnansweredWrite>,
    stage: Stage,
}

enum Stage {
    /// Its caller is sending it.
    Sending,
    /// In the ring of a link; its reply may have been received.
    Sent(Arc<Link>, Call),
    /// To be sent again on the next link.
    Repeating,
}

impl UnansweredWrite {
    pub(crate) fn new(sequence: u64, cx: &Ctx, file: File, how: Write, data: Box<[u8]>) -> Arc<Self> {
        let identity = cx.identity.clone();
        let cx = Ctx { identity, interrupt: Interrupt::default(), ..Ctx::root(cx.session) };
        Arc::new(Self { sequence, file, how, data, cx })
    }

    /// Returns the outcome according to the reply. A short write counts as a lack of space for the remainder.
    fn outcome(&self, kind: u32, body: &[u8; 48]) -> std::result::Result<Result<()>, DecodeError> {
        Ok(match Reply::decode(Kind::Write, kind, body, &[])? {
            Ok(Reply::Written(written)) if written.count >= self.data.len() => Ok(()),
            Ok(_) => Err(Error::NoSpace),
            Err(status) => Err(status.into()),
        })
    }

    /// Returns the notice by which caches drop the data of a failed write.
    fn notice(&self) -> Notice {
        let (node, start) = (self.file.node, self.how.offset);
        Notice::Data { node, start, last: start.saturating_add(self.data.len() as u64).saturating_sub(1) }
    }
}

impl WritesBehind {
    /// Registers a write that its caller is about to send. Returns `false` if the write must be awaited,
    /// because its opening has an unanswered one, or the session too many.
    pub(crate) fn register(&self, write: &Arc<UnansweredWrite>) -> bool {
        let mut table = lock(&self.table);
        let is_first = table.entries.iter().all(|entry| entry.write.file.open != write.file.open);
        let is_admitted = is_first && table.entries.len() < WRITES_MAX;
        if is_admitted {
            table.entries.push(Entry { write: write.clone(), stage: Stage::Sending });
            self.unanswered.store(table.entries.len(), Ordering::SeqCst);
        }
        is_admitted
    }

    /// Records that a registered write is in the ring, unless it is being sent again already.
    pub(crate) fn sent(&self, write: &UnansweredWrite, link: Arc<Link>, call: Call) {
        let mut table = lock(&self.table);
        if let Some(entry) = table.entry(write)
            && let Stage::Sending = entry.stage
        {
            entry.stage = Stage::Sent(link, call);
        }
    }

    /// Removes a registered write that could not be sent; `false` if it is being sent again, or has been.
    pub(crate) fn withdraw(&self, write: &UnansweredWrite) -> bool {
        let mut table = lock(&self.table);
        let is_here = table.entry(write).is_some_and(|entry| matches!(entry.stage, Stage::Sending));
        if is_here {
            self.remove(&mut table, write);
        }
        is_here
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.unanswered.load(Ordering::SeqCst) == 0
    }

    /// Returns the write of this opening whose caller has continued, if it is unanswered.
    pub(crate) fn unanswered(&self, open: OpenId) -> Option<Arc<UnansweredWrite>> {
        let table = lock(&self.table);
        let is_of = |entry: &&Entry| entry.write.file.open == open && !matches!(entry.stage, Stage::Sending);
        table.entries.iter().find(is_of).map(|entry| entry.write.clone())
    }

    pub(crate) fn is_unanswered(&self, write: &UnansweredWrite) -> bool {
        lock(&self.table).entry(write).is_some()
    }

    /// Takes the failure to be reported by the present write, flush or fsync through the opening.
    pub(crate) fn take_error(&self, open: OpenId) -> Option<Error> {
        lock(&self.table).errors.remove(&open)
    }

    /// Forgets an opening that ends. Returns the failure that no operation has reported.
    pub(crate) fn released(&self, open: OpenId) -> Option<Error> {
        let (lost, error) = {
            let mut table = lock(&self.table);
            let lost: SmallVec<[Entry; 1]> =
                table.entries.extract_if(.., |entry| entry.write.file.open == open).collect();
            self.unanswered.store(table.entries.len(), Ordering::SeqCst);
            (lost, table.errors.remove(&open))
        };
        // A write remains unanswered for instance if the session has waited in vain for another link.
        error.or_else(|| lost.first().map(|_| Error::Disconnected))
    }

    /// Removes the writes whose replies were received, and records their failures. A malformed reply ends the
    /// link.
    pub(crate) fn collect(&self, objects: &SessionObjects) {
        let mut failed = SmallVec::<[_; 1]>::new();
        let mut malformed = SmallVec::<[_; 1]>::new();
        let answered: SmallVec<[Entry; 1]> = {
            let mut table = lock(&self.table);
            let Table { entries, errors } = &mut *table;
            let answered = entries.extract_if(.., |entry| {
                let Stage::Sent(link, call) = &entry.stage else { return false };
                let Some((kind, body)) = call.received() else { return false };
                match entry.write.outcome(kind, &body) {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => {
                        failed.push(entry.write.clone());
                        errors.entry(entry.write.file.open).or_insert(error);
                    }
                    Err(error) => {
                        malformed.push((link.clone(), error));
                        return false;
                    }
                }
                true
            });
            let answered = answered.collect();
            self.unanswered.store(entries.len(), Ordering::SeqCst);
            answered
        };
        for entry in answered {
            if let Stage::Sent(link, call) = entry.stage {
                drop(call);
                link.bulk_waiters.changed();
            }
        }
        failed.iter().for_each(|write| objects.nodes.notice(write.notice()));
        malformed.into_iter().for_each(|(link, error)| drop(link.malformed(error)));
    }

    /// Marks the first unanswered write as being sent again after its link was lost, and returns it.
    pub(crate) fn first_to_repeat(&self) -> Option<Arc<UnansweredWrite>> {
        let (write, _stage) = {
            let mut table = lock(&self.table);
            let entry = table.entries.first_mut()?;
            (entry.write.clone(), std::mem::replace(&mut entry.stage, Stage::Repeating))
        };
        Some(write)
    }

    /// Records the outcome of a write that was sent again; no failure if its opening has ended meanwhile,
    /// because no operation would report it.
    pub(crate) fn repeated(&self, objects: &SessionObjects, write: &UnansweredWrite, outcome: Result<()>) {
        {
            let mut table = lock(&self.table);
            let is_here = table.entry(write).is_some();
            self.remove(&mut table, write);
            let Err(error) = outcome else { return };
            if is_here {
                table.errors.entry(write.file.open).or_insert(error);
            }
        }
        objects.nodes.notice(write.notice());
    }

    /// Fails all unanswered writes, because no further link will be established.
    pub(crate) fn fail_all(&self, objects: &SessionObjects) {
        while let Some(write) = self.first_to_repeat() {
            self.repeated(objects, &write, Err(Error::Disconnected));
        }
    }

    fn remove(&self, table: &mut Table, write: &UnansweredWrite) {
        table.entries.retain(|entry| entry.write.sequence != write.sequence);
        self.unanswered.store(table.entries.len(), Ordering::SeqCst);
    }
}

impl Table {
    fn entry(&mut self, write: &UnansweredWrite) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.write.sequence == write.sequence)
    }
}

impl Link {
    /// Returns `true` if a write of `len` bytes through the opening need not be awaited. A write that is
    /// known to fail must be awaited, so that its own caller gets the error.
    pub(crate) fn may_write_behind(&self, file: File, offset: u64, len: usize) -> bool {
        let has_memory = len <= FRAME_BYTES || self.line.out_area().capacity_bytes() >= BULK_BYTES_MIN;
        let end = offset.checked_add(len as u64);
        self.has_quiet_requests()
            && (1..=WRITE_BYTES_MAX.min(self.terms.transfer_bytes_max as usize)).contains(&len)
            && end.is_some_and(|end| end <= self.terms.profile.file_size_max)
            && has_memory
            && self.line.slots() >= SLOTS_MIN
            && self.line.is_half_free()
            && !self.line.is_lost()
            && self
                .objects
                .openings
                .prompt_flags(file)
                .is_some_and(|flags| flags.contains(OpenFlags::WRITE) && !flags.intersects(AWAITED))
    }

    /// Sends a write without waiting; `None` if it cannot be put in the ring at once and whole.
    pub(crate) fn send_behind(self: &Arc<Self>, write: &UnansweredWrite) -> Option<Call> {
        let (outgoing, len) = self.placed(write, 0).ok()?;
        let request = self.translated(&outgoing.request).ok()?;
        let is_whole = len == write.data.len();
        is_whole.then(|| {
            self.try_send_quietly(&write.cx, write.sequence, OutgoingRequest { request, ..outgoing })
        })?
    }

    /// Sends a write again, and waits until all of it is performed. Its first piece has the original sequence
    /// number.
    pub(crate) async fn repeat_write(
        self: Arc<Self>,
        write: Arc<UnansweredWrite>,
    ) -> std::result::Result<(), NoAnswer> {
        let (mut done, mut sequence) = (0, write.sequence);
        while done < write.data.len() {
            let (OutgoingRequest { request, tail, spans }, len) =
                self.placed(&write, done).map_err(NoAnswer::Failed)?;
            let owned = Owned::new(&request, tail, sequence, &write.cx).map_err(NoAnswer::Failed)?;
            let reply = owned.send(&self, &write.cx, spans).await?;
            let written = self.finish(Kind::Write, reply, |link, answered| written(link, &answered, len));
            match written.map_err(NoAnswer::Failed)?.count {
                0 => return Err(NoAnswer::Failed(Error::NoSpace)),
                count => done += count,
            }
            sequence = self.objects.next_sequence();
        }
        Ok(())
    }

    /// Prepares the request for the data of a write from `done` on, or for as much as the link has space for.
    /// Returns the request and the length of its data.
    fn placed<'a>(&self, write: &'a UnansweredWrite, done: usize) -> Result<(OutgoingRequest<'a>, usize)> {
        let rest = write.data.get(done..).unwrap_or_default();
        let how = Write { offset: write.how.offset.saturating_add(done as u64), ..write.how };
        let len_max = rest.len().min(self.terms.transfer_bytes_max as usize);
        let span =
            (len_max > FRAME_BYTES).then(|| largest(self.line.out_area(), len_max, FRAME_BYTES)).flatten();
        let len = span.as_ref().map_or(len_max.min(FRAME_BYTES), |span| span.len() as usize);
        let part = rest.get(..len).unwrap_or_default();
        let (data, tail, spans) = match span {
            None => (Data::Follows { len_bytes: len as u32 }, part, Spans::none()),
            Some(span) => {
                self.line.out_sink(&span).map_err(Error::io)?.write_at(0, part);
                (Data::One(out_reference(self, &span, len)?), Default::default(), Spans::from(span))
            }
        };
        Ok((OutgoingRequest { request: Request::Write { file: write.file, how, data }, tail, spans }, len))
    }
}

#[cfg(test)]
mod tests {
    use tombolo_core::SessionId;
    use tombolo_core::fs::NodeId;

    use super::*;

    fn unanswered_write(len: usize) -> Arc<UnansweredWrite> {
        let file = File { node: NodeId(1), open: OpenId(1) };
        let data = vec![1; len].into_boxed_slice();
        UnansweredWrite::new(1, &Ctx::root(SessionId(1)), file, Write::default(), data)
    }

    #[test]
    fn failed_write_notice_ends_with_last_byte() {
        let notice = unanswered_write(4096).notice();
        assert_eq!(notice, Notice::Data { node: NodeId(1), start: 0, last: 4095 });
    }

    #[test]
    fn failure_after_its_opening_ended_is_not_kept() {
        let (behind, write) = (WritesBehind::default(), unanswered_write(1));
        assert!(behind.register(&write) && behind.first_to_repeat().is_some());
        assert!(matches!(behind.released(write.file.open), Some(Error::Disconnected)));
        behind.repeated(&SessionObjects::default(), &write, Err(Error::Disconnected));
        assert!(lock(&behind.table).errors.is_empty());
    }
}
