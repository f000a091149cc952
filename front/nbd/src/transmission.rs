//! Transmission: each request is checked, passed to the disk, and answered on completion.

use std::sync::Arc;

use tombolo_core::block::{BlockDevice, Extents, Range, RangeError, Zeroing};
use tombolo_core::{Answer, Ctx, Error, SessionId, Stability};
use tombolo_host_runtime::task;
use tombolo_wire_nbd::status::{Status, to_status};
use tombolo_wire_nbd::{Command, CommandFlags, PAYLOAD_BYTES_MAX, ReplyStyle, ReplyWriter, Request};

use crate::connection::{Connection, ConnectionEnd};
use crate::handshake::{CONTEXT, SelectedExport};
use crate::memory::Memory;
use crate::replies::Replies;

/// Maximum number of unanswered requests per connection.
const UNDER_WAY_MAX: usize = 256;

/// Maximum number of extents in a reply.
const EXTENTS_MAX: usize = 4096;

/// Transmission phase of a connection, for the export that the client has selected.
pub(crate) struct Transmission {
    selected: SelectedExport,
    cx: Ctx,
    is_read_only: bool,
}

impl Transmission {
    pub(crate) fn new(selected: SelectedExport, session: SessionId) -> Self {
        let is_read_only = selected.disk.profile().read_only;
        Self { selected, cx: Ctx::root(session), is_read_only }
    }

    /// Serves requests until the connection ends.
    pub(crate) fn run(&self, connection: &mut Connection) -> ConnectionEnd {
        loop {
            if let Err(end) = self.next(connection) {
                self.selected.disk.submit();
                return end;
            }
        }
    }

    fn next(&self, connection: &mut Connection) -> Result<(), ConnectionEnd> {
        let style = self.selected.header_style;
        if connection.buffered() < style.request_bytes() {
            self.end_batch(connection);
        }
        let request = Request::decode(style, connection.take(style.request_bytes())?)?;
        if request.command == Command::DISC {
            return Err(ConnectionEnd::Leave);
        }
        if connection.replies.under_way() >= UNDER_WAY_MAX {
            self.end_batch(connection);
            connection.wait_until_below(UNDER_WAY_MAX)?;
        }
        let pending = Pending::new(connection, &self.selected, &request);
        match (request.command, self.check(&request)) {
            (_, Err(status)) => {
                connection.skip(request.payload_bytes(style))?;
                pending.fail(status);
            }
            (Command::WRITE, Ok(range)) => {
                let memory = self.memory(connection, range)?;
                if connection.buffered() < memory.sink().len() {
                    self.end_batch(connection);
                }
                connection.take_into(memory.sink())?;
                let stability = stability(request.flags);
                let answer = self.selected.disk.write(&self.cx, range.offset, stability, memory.source());
                pending.answer(answer, move |()| Outcome::Written(memory));
            }
            (Command::READ, Ok(range)) if range.len_bytes > 0 => {
                let memory = self.memory(connection, range)?;
                let answer = self.selected.disk.read(&self.cx, range.offset, memory.sink());
                pending.answer(answer, move |()| Outcome::Data(memory, range.len_bytes as u32));
            }
            (_, Ok(range)) => self.control(&request, range, pending),
        }
        Ok(())
    }

    /// Starts a request without data.
    fn control(&self, request: &Request, range: Range, pending: Pending) {
        let (disk, cx) = (&self.selected.disk, &self.cx);
        let done = |()| Outcome::Done;
        match request.command {
            Command::FLUSH => pending.answer(disk.flush(cx), done),
            Command::TRIM if request.flags.contains(CommandFlags::FUA) => {
                let (flushed, flush_cx) = (disk.clone(), cx.clone());
                let answer = disk.discard(cx, range).then(move |()| {
                    let answer = flushed.flush(&flush_cx);
                    flushed.submit();
                    answer
                });
                pending.answer(answer, done);
            }
            Command::TRIM => pending.answer(disk.discard(cx, range), done),
            Command::WRITE_ZEROES => {
                let how = Zeroing {
                    may_unmap: !request.flags.contains(CommandFlags::NO_HOLE),
                    only_fast: request.flags.contains(CommandFlags::FAST_ZERO),
                    stability: stability(request.flags),
                };
                pending.answer(disk.write_zeroes(cx, range, how), done);
            }
            Command::BLOCK_STATUS => {
                let only_one = request.flags.contains(CommandFlags::REQ_ONE);
                let count_max = if only_one { 1 } else { EXTENTS_MAX };
                pending.answer(disk.extents(cx, range, count_max), Outcome::Extents);
            }
            // A READ of length 0.
            _ => pending.reply(Ok(Outcome::Done)),
        }
    }

    /// Checks a request. Returns its range, or the status to reply if it is invalid.
    fn check(&self, request: &Request) -> Result<Range, Status> {
        let changes = matches!(request.command, Command::WRITE | Command::TRIM | Command::WRITE_ZEROES);
        if changes && self.is_read_only {
            return Err(Status::Perm);
        }
        if !request.has_known_flags(self.selected.style) {
            return Err(Status::Inval);
        }
        let has_payload = request.payload_bytes(self.selected.header_style) > 0;
        let is_good = match request.command {
            Command::READ => !has_payload && request.len_bytes <= u64::from(PAYLOAD_BYTES_MAX),
            Command::WRITE => true,
            // The range of a flush is ignored.
            Command::FLUSH if !has_payload => return Ok(Range { offset: 0, len_bytes: 0 }),
            Command::TRIM | Command::WRITE_ZEROES => !has_payload,
            Command::BLOCK_STATUS => !has_payload && self.selected.has_context && request.len_bytes > 0,
            _ => false,
        };
        if !is_good {
            return Err(Status::Inval);
        }
        self.selected.disk.geometry().check(request.offset, request.len_bytes).map_err(|fault| match fault {
            RangeError::BeyondTheEnd { .. } if changes => Status::NoSpc,
            _ => Status::Inval,
        })
    }

    /// Takes memory for a request's data. Before it waits for memory, submits the disk's batch, since
    /// requests in the batch hold memory until they are answered.
    fn memory(&self, connection: &mut Connection, range: Range) -> Result<Memory, ConnectionEnd> {
        let len = range.len_bytes as usize;
        if let Some(memory) = Memory::take(&connection.buffers, len) {
            return Ok(memory);
        }
        self.selected.disk.submit();
        connection.memory(len)
    }

    /// Ends a batch: submits its requests to the disk and sends the queued replies.
    fn end_batch(&self, connection: &Connection) {
        self.selected.disk.submit();
        connection.replies.flush();
    }
}

fn stability(flags: CommandFlags) -> Stability {
    if flags.contains(CommandFlags::FUA) { Stability::DataSync } else { Stability::Unstable }
}

/// Outcome of a request.
enum Outcome {
    Done,
    /// A write, whose data are held until it has completed.
    Written(#[expect(dead_code, reason = "held until it is written")] Memory),
    /// A read, with its data and their length in bytes.
    Data(Memory, u32),
    Extents(Extents),
}

/// An unanswered request, which is answered with an error when dropped.
struct Pending {
    replies: Arc<Replies>,
    writer: ReplyWriter,
    disk: Arc<dyn BlockDevice>,
    is_answered: bool,
}

impl Pending {
    fn new(connection: &Connection, selected: &SelectedExport, request: &Request) -> Self {
        connection.replies.begin();
        let writer = ReplyWriter { style: selected.style, cookie: request.cookie, offset: request.offset };
        Self { replies: connection.replies.clone(), writer, disk: selected.disk.clone(), is_answered: false }
    }

    fn answer<T: Send + 'static>(
        self,
        answer: Answer<T>,
        outcome: impl FnOnce(T) -> Outcome + Send + 'static,
    ) {
        match answer {
            Answer::Done(result) => self.reply(result.map(outcome)),
            Answer::Later(later) => task::spawn(async move {
                let result = later.await.map(outcome);
                let replies = self.replies.clone();
                self.reply(result);
                replies.flush();
            }),
        }
    }

    fn reply(mut self, result: Result<Outcome, Error>) {
        self.is_answered = true;
        let mut head = Vec::with_capacity(64);
        let mut data = None;
        match result {
            Ok(Outcome::Done | Outcome::Written(_)) => self.writer.done(&mut head),
            Ok(Outcome::Data(memory, len_bytes)) => {
                self.writer.data(&mut head, len_bytes);
                data = Some(memory);
            }
            Ok(Outcome::Extents(extents)) if !extents.as_slice().is_empty() => {
                self.writer.block_status(&mut head, CONTEXT, extents.as_slice());
            }
            Ok(Outcome::Extents(_)) => return self.write_error(Status::Io, "the disk reported no extents"),
            Err(error) => {
                tracing::debug!(%error, size_bytes = self.disk.geometry().size_bytes, "NBD request failed");
                return self.write_error(to_status(&error), &error.to_string());
            }
        }
        self.replies.push(head, data);
    }

    fn fail(mut self, status: Status) {
        self.is_answered = true;
        self.write_error(status, "");
    }

    fn write_error(&self, status: Status, word: &str) {
        let mut head = Vec::with_capacity(64);
        let word = if self.writer.style == ReplyStyle::Simple { "" } else { word };
        self.writer.error(&mut head, status, word);
        self.replies.push(head, None);
    }
}

impl Drop for Pending {
    /// Replies with an error to a request that was not answered, because the disk has panicked, or the
    /// connection ended within the request.
    fn drop(&mut self) {
        if !self.is_answered {
            self.write_error(Status::Io, "");
            self.replies.flush();
        }
    }
}
