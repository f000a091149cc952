//! The transfer of one large file's data, many pieces at a time.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tombolo_core::fs::{Attr, SyncScope, Whence, Write};
use tombolo_core::{Error, Result, lock};

use crate::file::File;
use crate::run::{Group, Permit};
use crate::zeroes::parts_of;

use super::entry::Trouble;
use super::prefix::Prefix;
use super::small::{reading, write_all};
use super::{Holes, PIECE_BYTES, Work, mark};

/// Interval at which a part is marked.
const MARK_EVERY: Duration = Duration::from_secs(5);

/// Size of the blocks of a piece that are searched for zeroes, in bytes; its last block may be shorter.
const BLOCK_BYTES: usize = 32 << 10;

/// Data in flight from one file to another.
pub(super) struct Transfer {
    work: Arc<Work>,
    pub from: File,
    pub to: File,
    /// Attributes of the source when the copy began.
    attr: Attr,
    /// Length of the part's valid beginning when the copy began; 0 without a part.
    start: u64,
    state: Mutex<State>,
    is_failed: AtomicBool,
    /// `true` while a task marks the part.
    marking: AtomicBool,
    marked_bytes: AtomicU64,
    under_way: Group,
}

struct State {
    prefix: Prefix,
    trouble: Option<Trouble>,
    /// End of the source: its size when the copy began, or less if it was found to end earlier.
    end: u64,
    /// End of the last byte written.
    written_end: u64,
}

pub(super) enum Outcome {
    Complete,
    Stopped,
    /// The transfer failed; this is its first failure.
    Failed(Trouble),
}

impl Transfer {
    /// Creates a transfer that continues from `start`, before which all is complete.
    pub fn new(work: Arc<Work>, from: File, to: File, attr: Attr, start: u64) -> Arc<Self> {
        let prefix = Prefix::starting_at(start);
        let state = State { prefix, trouble: None, end: attr.size, written_end: 0 };
        Arc::new(Self {
            work,
            from,
            to,
            attr,
            start,
            state: Mutex::new(state),
            is_failed: AtomicBool::new(false),
            marking: AtomicBool::new(false),
            marked_bytes: AtomicU64::new(start),
            under_way: Group::default(),
        })
    }

    /// Transfers piece after piece, as many at a time as the memory window allows, and waits for the last.
    pub async fn run(self: &Arc<Self>) -> Outcome {
        let is_whole = self.pieces().await;
        self.under_way.ended().await;
        match (lock(&self.state).trouble.take(), is_whole) {
            (Some(trouble), _) => Outcome::Failed(trouble),
            (None, true) => Outcome::Complete,
            (None, false) => Outcome::Stopped,
        }
    }

    /// Returns the size to set on the target; `None` if it has that size already. The size may differ if the
    /// target ends with a hole, if the source ended early, or if a part was resumed.
    pub fn size_to_set(&self) -> Option<u64> {
        let state = lock(&self.state);
        (self.start > 0 || state.written_end != state.end).then_some(state.end)
    }

    pub fn is_marked(&self) -> bool {
        self.marked_bytes() > self.start
    }

    /// Returns the number of complete bytes that the last mark recorded.
    pub fn marked_bytes(&self) -> u64 {
        self.marked_bytes.load(Ordering::Relaxed)
    }

    /// Makes the complete prefix stable, then records it in the part's mark. Returns the recorded length.
    pub async fn mark(&self) -> Result<u64> {
        let complete = lock(&self.state).prefix.complete();
        let (set, marked) = mark::of(&self.attr, complete);
        if marked <= self.marked_bytes() {
            return Ok(self.marked_bytes());
        }
        self.to.sync(SyncScope::All).resolve().await?;
        self.to.set_attr(&set).resolve().await?;
        self.marked_bytes.store(marked, Ordering::Relaxed);
        Ok(marked)
    }

    /// Begins the transfer of all pieces; returns `false` if it ended early, by a failure or a stop.
    async fn pieces(self: &Arc<Self>) -> bool {
        let mut at = self.start;
        let mut last_mark = Instant::now();
        while at < self.attr.size {
            let data = match self.data_from(at).await {
                Ok(data) => data,
                Err(error) => {
                    self.fail(reading(error));
                    return false;
                }
            };
            self.pass(at..data.start);
            at = data.start;
            while at < data.end {
                let len = (PIECE_BYTES - at as usize % PIECE_BYTES).min((data.end - at) as usize);
                let room = self.work.room(len).await;
                if self.is_failed.load(Ordering::Relaxed) || self.work.is_stopped() {
                    return false;
                }
                self.begin_piece(at, len, room);
                at += len as u64;
                if last_mark.elapsed() >= MARK_EVERY {
                    last_mark = Instant::now();
                    self.begin_mark();
                }
            }
        }
        true
    }

    /// Returns the next data at or after `at`; an empty range at the end of the file.
    async fn data_from(&self, at: u64) -> Result<Range<u64>> {
        let size = self.attr.size;
        if self.work.options.holes == Holes::Fill || self.attr.blocks.saturating_mul(512) >= size {
            return Ok(at..size);
        }
        let start = match self.from.seek(at, Whence::Data).resolve().await {
            Ok(start) => start.clamp(at, size),
            // The remainder is a hole.
            Err(Error::NoDevice) => return Ok(size..size),
            Err(Error::NotSupported | Error::NotImplemented | Error::InvalidArgument) => return Ok(at..size),
            Err(error) => return Err(error),
        };
        let end = match self.from.seek(start, Whence::Hole).resolve().await {
            // A server that reports a hole where data begin would cause an endless loop.
            Ok(end) if end > start => end.min(size),
            _ => size,
        };
        Ok(start..end)
    }

    fn begin_piece(self: &Arc<Self>, at: u64, len: usize, room: Permit) {
        let member = self.under_way.member();
        let this = self.clone();
        self.work.spawner.spawn(async move {
            match this.piece(at, len).await {
                Ok(()) => lock(&this.state).prefix.done(at, at + len as u64),
                Err(trouble) => this.fail(trouble),
            }
            drop(room);
            drop(this);
            drop(member);
        });
    }

    async fn piece(&self, at: u64, len: usize) -> std::result::Result<(), Trouble> {
        let mut lease = self.work.buffers.lend(len);
        let count = self.from.read_at(at, lease.sink(0..len)).resolve().await.map_err(reading)?.count;
        if count < len {
            let mut state = lock(&self.state);
            state.end = state.end.min(at + count as u64);
        }
        let runs = match self.work.options.holes {
            Holes::Make => lease.as_slice().map(|bytes| runs_of_data(bytes.get(..count).unwrap_or_default())),
            Holes::AsTheyAre | Holes::Fill => None,
        };
        for run in runs.unwrap_or_else(|| std::iter::once(0..count).collect()) {
            let (start, len) = (at + run.start as u64, run.len());
            let how = Write { offset: start, retainable: true, ..Write::default() };
            write_all(&self.to, how, &lease, run).await?;
            self.work.counters.wrote(len);
            let mut state = lock(&self.state);
            state.written_end = state.written_end.max(start + len as u64);
        }
        Ok(())
    }

    fn begin_mark(self: &Arc<Self>) {
        if self.marking.swap(true, Ordering::Acquire) {
            return;
        }
        let member = self.under_way.member();
        let this = self.clone();
        self.work.spawner.spawn(async move {
            // The copy continues without this mark; at worst less of the copy can be resumed.
            if let Err(error) = this.mark().await {
                tracing::debug!(%error, "the part could not be marked");
            }
            this.marking.store(false, Ordering::Release);
            drop(this);
            drop(member);
        });
    }

    fn pass(&self, hole: Range<u64>) {
        if !hole.is_empty() {
            self.work.counters.passed(hole.end - hole.start);
            lock(&self.state).prefix.done(hole.start, hole.end);
        }
    }

    fn fail(&self, trouble: Trouble) {
        self.is_failed.store(true, Ordering::Relaxed);
        lock(&self.state).trouble.get_or_insert(trouble);
    }
}

/// Returns the ranges that are not blocks of zeroes.
fn runs_of_data(bytes: &[u8]) -> Vec<Range<usize>> {
    let mut start = 0;
    let runs = parts_of(bytes, BLOCK_BYTES).into_iter().filter_map(|(end, is_zero)| {
        let run = std::mem::replace(&mut start, end)..end;
        (!is_zero).then_some(run)
    });
    runs.collect()
}
