//! Resumable copies of disks.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use tombolo_core::Result as CoreResult;
use tombolo_core::block::{BlockDevice, Range};

use super::fault::{Fault, Step};
use super::pieces::{Piece, cx};
use super::tally::Watched;
use super::transfer::{Buffers, bytes_of, read, write, zero};
use super::walk::{Walk, unit_bytes};
use crate::zeroes::parts_of;

/// Interval at which copied data are made durable and reported, besides [`Copy::durable_every_bytes`].
const DURABLE_EVERY: Duration = Duration::from_secs(5);

/// A copy of one disk onto another.
#[derive(Clone)]
pub struct Copy {
    /// The source, copied in full.
    pub from: Arc<dyn BlockDevice>,
    /// The target, at least as long. Data beyond the source's length are left unchanged.
    pub to: Arc<dyn BlockDevice>,
    /// Length of the prefix that is durable already, in bytes.
    pub start: u64,
    /// `true` if everything after the start is known to read as zeroes in `to`.
    pub is_blank: bool,
    /// Number of bytes after which copied data are made durable and reported, unless five seconds pass first.
    pub durable_every_bytes: u64,
    /// Ends the copy early when set; copied data are still made durable.
    pub stop: Arc<AtomicBool>,
    /// Progress of the copy.
    pub watched: Watched,
}

/// Outcome of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Everything is copied and durable.
    Complete,
    /// The copy was stopped.
    Stopped,
}

/// A completed operation: everything before `end` is copied, or durable.
#[derive(Clone, Copy)]
enum Event {
    Copied { end: u64 },
    Durable { end: u64 },
}

/// A copy in progress.
struct Going<F> {
    copy: Arc<Copy>,
    buffers: Buffers,
    walk: Walk<Event>,
    /// Offset before which everything is copied.
    copied: u64,
    /// Offset before which everything was durable at the last flush.
    durable: u64,
    /// Time of the last flush, or of the start before the first flush.
    since: Instant,
    is_flushing: bool,
    on_durable: F,
}

impl Copy {
    /// Copies, and calls `on_durable` with each position before which all is durable, for the caller to
    /// record: a later copy can begin at the recorded position. After a failure or a stop, copied data are
    /// still made durable and reported, unless a flush failed.
    pub async fn run(self, on_durable: impl FnMut(u64) -> CoreResult<()>) -> Result<Ended, Fault> {
        let unit_bytes = unit_bytes([&*self.from, &*self.to]);
        let start = self.start - self.start % unit_bytes;
        let walk = Walk::over(self.from.clone(), start, unit_bytes);
        self.watched.found_done(start);
        let mut going = Going {
            copy: Arc::new(self),
            buffers: Buffers::default(),
            walk,
            copied: start,
            durable: start,
            since: Instant::now(),
            is_flushing: false,
            on_durable,
        };
        let ended = going.go().await;
        if let Err(fault) = &ended {
            let mut may_have_lost = fault.step == Step::Flush;
            // Operations in flight may still write. Only failed flushes among them count: copied pieces do
            // not, as a piece before them may be missing.
            while let Some(event) = going.walk.window.next().await {
                may_have_lost |= matches!(event, Err(Fault { step: Step::Flush, .. }));
            }
            // A disk that loses acknowledged writes may report the loss only once: the next flush would
            // succeed without them.
            if may_have_lost {
                return ended;
            }
        }
        let last = going.make_durable().await;
        ended.and_then(|ended| last.map(|()| ended))
    }

    async fn piece(self: Arc<Self>, buffers: Buffers, piece: Piece) -> Result<Event, Fault> {
        let Piece { range, is_zero } = piece;
        if is_zero {
            self.zeroes(range).await?;
        } else {
            let mut buffer = buffers.take();
            read(&*self.from, range, &buffer, Step::Read).await?;
            let bytes =
                bytes_of(&mut buffer, range.len_bytes).map_err(Fault::at(Step::Read, range.offset))?;
            let unit_bytes = unit_bytes([&*self.from, &*self.to]) as usize;
            let mut begin = 0;
            for (end, is_zero) in parts_of(bytes, unit_bytes) {
                let (offset, len_bytes) = (range.offset + begin as u64, (end - begin) as u64);
                if is_zero {
                    self.zeroes(Range { offset, len_bytes }).await?;
                } else {
                    write(&*self.to, range.offset, begin..end, &buffer).await?;
                    self.watched.data(len_bytes);
                }
                begin = end;
            }
            buffers.give(buffer);
        }
        Ok(Event::Copied { end: range.end() })
    }

    async fn zeroes(&self, range: Range) -> Result<(), Fault> {
        if !self.is_blank {
            zero(&*self.to, range).await?;
        }
        self.watched.zeroes(range.len_bytes);
        Ok(())
    }

    async fn flush(self: Arc<Self>, end: u64) -> Result<Event, Fault> {
        let answer = self.to.flush(&cx());
        self.to.submit();
        answer.resolve().await.map_err(Fault::at(Step::Flush, end))?;
        Ok(Event::Durable { end })
    }
}

impl<F: FnMut(u64) -> CoreResult<()>> Going<F> {
    async fn go(&mut self) -> Result<Ended, Fault> {
        let (copy, buffers) = (self.copy.clone(), self.buffers.clone());
        let begin = |piece| copy.clone().piece(buffers.clone(), piece);
        while let Some(event) = self.walk.next(&copy.stop, begin).await? {
            self.see(event)?;
        }
        Ok(if self.walk.is_stopped { Ended::Stopped } else { Ended::Complete })
    }

    fn see(&mut self, event: Event) -> Result<(), Fault> {
        match event {
            Event::Copied { end } => {
                self.copied = end;
                let is_due = self.since.elapsed() >= DURABLE_EVERY
                    || end - self.durable >= self.copy.durable_every_bytes;
                // The flush begins after all writes before this position were acknowledged, so it makes them
                // durable.
                if is_due && !self.is_flushing {
                    self.is_flushing = true;
                    self.walk.window.add(self.copy.clone().flush(end));
                }
                Ok(())
            }
            Event::Durable { end } => {
                (self.durable, self.since, self.is_flushing) = (end, Instant::now(), false);
                (self.on_durable)(end).map_err(Fault::at(Step::Record, end))
            }
        }
    }

    async fn make_durable(&mut self) -> Result<(), Fault> {
        let event = self.copy.clone().flush(self.copied).await?;
        self.see(event)
    }
}
