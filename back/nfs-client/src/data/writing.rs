//! Writes: the admission of their bytes to the file's dirty ranges, within the limits of memory and of calls
//! in flight.

use std::sync::{Arc, Weak};

use tombolo_core::fs::{Change, Write, Written};
use tombolo_core::{Answer, Error, Result, Stability, or_answer};
use tombolo_mem::Source;

use super::budget::{Budget, Registration, Relieve};
use super::committing::start_commit;
use super::dirty_ranges::NewWrite;
use super::file::{FileState, unless_interrupted};
use super::losses::Reported;
use super::memory::Memory;
use super::sending::{all_so_far, send_what_may_leave};
use super::server::Server;
use crate::caller::Caller;

/// Spare bytes in the buffers of small waiting writes, for the writes that follow.
const SPARE_BYTES: usize = 128 << 10;

/// Limits of a file's queue while the in-flight limit is reached or WRITEs are paused: number of full WRITEs,
/// and number of bytes unless one WRITE is longer. A writer blocked by the in-flight limit continues when a
/// quarter is left.
const QUEUE_WRITES: usize = 16;
const QUEUE_BYTES: usize = 4 << 20;

fn queue_bytes(piece_max: usize) -> usize {
    piece_max.saturating_mul(QUEUE_WRITES).min(QUEUE_BYTES).max(piece_max)
}

/// Writes. Returns as soon as the bytes are sent or queued; for a stable write, once the server has confirmed
/// the stability. Fails with an unreported failure of an earlier write to this file; then nothing is written.
/// With `appends`, writes at the end of the file as known from the server and from local writes.
pub(crate) fn write<S: Server>(
    server: &Arc<S>,
    node: &Arc<S::Node>,
    caller: &Caller,
    mut how: Write,
    from: Source,
    appends: bool,
) -> Answer<Written> {
    let file = node.as_ref().as_ref().state();
    let begun: Result<_> = file.update(|state| {
        if state.losses.is_unreported() {
            let seen = state.losses.reported();
            state.losses.report(seen)?;
        }
        let offset = match appends {
            true => server.known_size(node).max(state.end().unwrap_or_default()),
            false => how.offset,
        };
        let end = offset.checked_add(from.len() as u64).filter(|end| i64::try_from(*end).is_ok());
        let end = end.ok_or(Error::FileTooLarge)?;
        state.begin_write(end);
        Ok((offset, end, state.losses.reported()))
    });
    let (offset, end, seen) = or_answer!(begun);
    how.offset = offset;
    let mut writing = Writing {
        server: server.clone(),
        node: node.clone(),
        caller: caller.clone(),
        how,
        rest: from,
        done: 0,
        end,
        seen,
    };
    match writing.take_in() {
        None if how.stability == Stability::Unstable => Answer::ok(writing.written()),
        stuck => Answer::later(writing.finish(stuck)),
    }
}

/// A write whose bytes are being queued.
struct Writing<S: Server> {
    server: Arc<S>,
    node: Arc<S::Node>,
    caller: Caller,
    how: Write,
    /// Bytes not yet queued.
    rest: Source,
    /// Number of queued bytes.
    done: usize,
    /// End of the write in the file.
    end: u64,
    /// Losses reported before the write began.
    seen: Reported,
}

/// Condition that blocks a write.
enum Stuck {
    /// The mount's memory limit is reached; the next piece has this length.
    Memory(usize),
    /// The in-flight limit is reached, and the file's queue is full.
    Queue,
    /// WRITEs of this file are paused, and its queue is full.
    Pause,
}

impl<S: Server> Writing<S> {
    /// Queues and sends pieces as the limits allow. Returns the condition that blocks the remainder; `None`
    /// once all bytes are queued.
    fn take_in(&mut self) -> Option<Stuck> {
        let piece_max = self.server.sizes().write_max.max(1);
        while !self.rest.is_empty() {
            let mut piece = self.rest.clone();
            piece.truncate(piece_max);
            let len = piece.len();
            let stuck = self.take_piece(&piece, piece_max);
            if stuck.is_some() {
                return stuck;
            }
            self.rest.advance(len);
            self.done += len;
            send_what_may_leave(&self.server, &self.node);
        }
        None
    }

    /// Queues one piece. Returns the condition that prevents it; `None` once the piece is queued.
    fn take_piece(&self, piece: &Source, piece_max: usize) -> Option<Stuck> {
        let file = self.file();
        let has_permit = self.server.has_permit();
        let write = NewWrite {
            offset: self.how.offset + self.done as u64,
            stability: self.how.stability,
            caller: &self.caller,
        };
        let may_gather = !has_permit && !self.how.retainable;
        if may_gather && file.update(|state| state.add_copy(&write, piece, piece_max)) {
            self.server.budget().count_copied(piece.len());
            return None;
        }
        let stuck = file.look(|state| match () {
            () if state.dirty.waiting_bytes() + piece.len() <= queue_bytes(piece_max) => None,
            () if state.pauses > 0 => Some(Stuck::Pause),
            () if !has_permit => Some(Stuck::Queue),
            () => None,
        });
        if stuck.is_some() {
            return stuck;
        }
        let budget = self.server.budget();
        let Some(charge) = budget.written.take(piece.len()) else {
            return Some(Stuck::Memory(piece.len()));
        };
        let memory = match self.how.retainable {
            true => Memory::keep(piece.clone(), charge),
            false => {
                let spare = if may_gather && piece.len() < SPARE_BYTES { SPARE_BYTES } else { 0 };
                budget.copy(piece, spare, charge)
            }
        };
        file.update(|state| {
            state.add(&write, memory, piece_max);
            state.list(|| (budget.clone(), self.list(budget)));
        });
        None
    }

    /// Queues the remainder of the write as the limits allow. For a stable write, then waits until the server
    /// has replied.
    async fn finish(mut self, mut stuck: Option<Stuck>) -> Result<Written> {
        while let Some(what) = stuck {
            let interruption = self.server.interruption(&self.caller);
            if let Err(error) = unless_interrupted(interruption, self.unstick(what)).await {
                // Queued bytes count as written, but have no stability yet.
                let is_written = self.done > 0 && self.how.stability == Stability::Unstable;
                return if is_written { Ok(self.written()) } else { Err(error) };
            }
            stuck = self.take_in();
        }
        if self.how.stability > Stability::Unstable {
            let file = self.file();
            let answered = file.answered(all_so_far(file));
            unless_interrupted(self.server.interruption(&self.caller), answered).await?;
            file.update(|state| state.losses.report(self.seen))?;
        }
        Ok(self.written())
    }

    async fn unstick(&self, stuck: Stuck) {
        match stuck {
            Stuck::Memory(len) => {
                let budget = self.server.budget();
                let _stuck = budget.written.stuck();
                // Replies received from now on cause COMMITs for this waiter; this call sends those for
                // earlier replies.
                budget.relieve();
                budget.written.wait_for(len).await;
            }
            Stuck::Queue => {
                let piece_max = self.server.sizes().write_max.max(1);
                self.file().queue_space(queue_bytes(piece_max) / 4).await;
            }
            Stuck::Pause => self.file().until(|state| state.pauses == 0).await,
        }
    }

    /// Returns the result, with the requested stability.
    fn written(&self) -> Written {
        Written { count: self.done, stability: self.how.stability, file: Change::default() }
    }

    fn list(&self, budget: &Budget) -> Registration {
        let retaining = RetainingFile { server: Arc::downgrade(&self.server), node: self.node.clone() };
        budget.register(Arc::new(retaining))
    }

    fn file(&self) -> &Arc<FileState> {
        self.node.as_ref().as_ref().state()
    }
}

impl<S: Server> Drop for Writing<S> {
    fn drop(&mut self) {
        self.file().quietly(|state| state.end_begin(self.end));
    }
}

/// A file with retained bytes. It keeps the node alive until they are released.
struct RetainingFile<S: Server> {
    server: Weak<S>,
    node: Arc<S::Node>,
}

impl<S: Server> Relieve for RetainingFile<S> {
    fn relieve(&self) {
        if let Some(server) = self.server.upgrade() {
            start_commit(&server, &self.node);
        }
    }
}
