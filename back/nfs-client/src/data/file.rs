//! The state of one file's data, shared by its reads, writes and commits, and the tasks that wait until it
//! changes.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, Waker};

use tombolo_core::{Error, Result, lock};
use tombolo_mem::Source;

use super::budget::{Budget, Registration};
use super::dirty_ranges::{DirtyRanges, NewWrite};
use super::losses::Losses;
use super::memory::Memory;
use super::piece::WriteSeq;
use super::read_ahead::Readers;

/// Data of a file: unstable written bytes and read-ahead.
///
/// Allocates nothing until its first use.
#[derive(Debug, Default)]
pub(crate) struct FileData(OnceLock<Arc<FileState>>);

impl FileData {
    /// Returns the furthest end of a write that is retained or not yet completely queued, which may be beyond
    /// the end known to the server; `None` without such writes.
    pub(crate) fn end(&self) -> Option<u64> {
        self.0.get()?.look(|state| state.end())
    }

    /// Returns `true` if writes are unanswered, so that the server's attributes may differ from the writers'
    /// view.
    pub(crate) fn has_unanswered_writes(&self) -> bool {
        self.0.get().is_some_and(|file| file.look(|state| state.dirty.has_pending(WriteSeq(u64::MAX))))
    }

    /// Returns `true` if all writes are stable and no loss is unreported.
    pub(crate) fn is_clean(&self) -> bool {
        !self.is_dirty()
    }

    /// Returns `true` if writes are not stable or a loss is unreported.
    pub(crate) fn is_dirty(&self) -> bool {
        let is_dirty = |state: &State| !state.dirty.is_empty() || state.losses.is_unreported();
        self.0.get().is_some_and(|file| file.look(is_dirty))
    }

    /// Discards the read-ahead after a change of the file.
    pub(crate) fn drop_read_ahead(&self) {
        if let Some(file) = self.0.get() {
            file.update(|state| state.readers.forget(&(0..u64::MAX)));
        }
    }

    pub(super) fn state(&self) -> &Arc<FileState> {
        self.0.get_or_init(Arc::default)
    }

    /// Returns the state, if any was created.
    pub(super) fn used(&self) -> Option<&Arc<FileState>> {
        self.0.get()
    }
}

/// State of a file, shared by its operations.
#[derive(Debug, Default)]
pub(super) struct FileState(Mutex<State>);

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) dirty: DirtyRanges,
    pub(super) losses: Losses,
    pub(super) readers: Readers,
    pub(super) is_committing: bool,
    /// `true` if a task waits for an in-flight permit to send waiting pieces.
    pub(super) waits_for_permit: bool,
    /// Number of guards that block WRITEs and COMMITs.
    pub(super) pauses: u32,
    /// Ends of writes that are not completely queued.
    beginning: Vec<u64>,
    /// Budget and registration, while bytes are retained.
    listed: Option<(Arc<Budget>, Registration)>,
    /// Tasks in [`FileState::until`], woken by each change.
    wakers: Vec<Waker>,
    /// Queue length in bytes at or below which writers that wait for space are woken, and their wakers. They
    /// are separate so that not every answered WRITE wakes them.
    writers: (usize, Vec<Waker>),
}

impl FileState {
    /// Changes the state, then wakes the waiters. They are woken without the lock, because a task may run at
    /// once on this thread.
    pub(super) fn update<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let (result, wakers, budget) = {
            let mut state = lock(&self.0);
            let before = state.dirty.uncommitted_bytes();
            let result = change(&mut state);
            let budget = state.account(before);
            let writers =
                if state.has_queue_space() { std::mem::take(&mut state.writers.1) } else { Vec::new() };
            (result, (std::mem::take(&mut state.wakers), writers), budget)
        };
        wakers.0.into_iter().chain(wakers.1).for_each(Waker::wake);
        if let Some(budget) = budget {
            budget.written.wake();
        }
        result
    }

    /// Changes state for which no task waits, so that none is woken.
    pub(super) fn quietly<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut lock(&self.0))
    }

    /// Calls `look` with the state, which is locked meanwhile.
    pub(super) fn look<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&lock(&self.0))
    }

    /// Waits until `check`, which is called after each change, returns `true`.
    pub(super) async fn until(&self, check: impl Fn(&State) -> bool) {
        poll_fn(|context| {
            let mut state = lock(&self.0);
            if check(&state) {
                return Poll::Ready(());
            }
            wake_later(&mut state.wakers, context);
            Poll::Pending
        })
        .await;
    }

    /// Waits until at most this many bytes wait to be sent.
    pub(super) async fn queue_space(&self, waiting_bytes_max: usize) {
        poll_fn(|context| {
            let mut state = lock(&self.0);
            if state.dirty.waiting_bytes() <= waiting_bytes_max {
                return Poll::Ready(());
            }
            state.writers.0 = waiting_bytes_max;
            wake_later(&mut state.writers.1, context);
            Poll::Pending
        })
        .await;
    }

    pub(super) async fn answered(&self, seq: WriteSeq) {
        self.until(|state| !state.dirty.has_pending(seq)).await;
    }

    /// Records a truncation after all writes before `seq`.
    pub(super) fn truncated(&self, size: u64, seq: WriteSeq) {
        self.update(|state| {
            state.dirty.truncated(size, seq);
            state.readers.forget(&(size..u64::MAX));
        });
    }
}

fn wake_later(wakers: &mut Vec<Waker>, context: &Context<'_>) {
    if !wakers.iter().any(|waker| waker.will_wake(context.waker())) {
        wakers.push(context.waker().clone());
    }
}

impl State {
    /// Returns the furthest end of a write that is retained or not yet completely queued.
    pub(super) fn end(&self) -> Option<u64> {
        self.dirty.end().max(self.beginning.iter().max().copied())
    }

    fn has_queue_space(&self) -> bool {
        self.dirty.waiting_bytes() <= self.writers.0
    }

    /// Records a write with this end that begins to queue its bytes.
    pub(super) fn begin_write(&mut self, end: u64) {
        self.beginning.push(end);
    }

    /// Removes a write with this end that is queued or was abandoned.
    pub(super) fn end_begin(&mut self, end: u64) {
        if let Some(index) = self.beginning.iter().position(|other| *other == end) {
            self.beginning.swap_remove(index);
        }
    }

    /// Registers the file with the budget, once.
    pub(super) fn list(&mut self, list: impl FnOnce() -> (Arc<Budget>, Registration)) {
        self.listed.get_or_insert_with(list);
    }

    /// Adds written bytes to the dirty ranges, and discards older read-ahead of these bytes.
    pub(super) fn add(&mut self, write: &NewWrite<'_>, memory: Memory, piece_max: usize) {
        self.readers.forget(&write.range(memory.len()));
        self.dirty.add(write, memory, piece_max);
    }

    /// Adds written bytes like [`add`](Self::add), if they can be copied into the last waiting piece.
    pub(super) fn add_copy(&mut self, write: &NewWrite<'_>, from: &Source, piece_max: usize) -> bool {
        let is_added = self.dirty.add_copy(write, from, piece_max);
        if is_added {
            self.readers.forget(&write.range(from.len()));
        }
        is_added
    }

    /// Updates the mount's budget after a change of the dirty ranges; returns it if bytes are, or were,
    /// retained.
    fn account(&mut self, uncommitted_before: usize) -> Option<Arc<Budget>> {
        let (budget, listed) = self.listed.as_ref()?;
        budget.written.count_uncommitted(uncommitted_before, self.dirty.uncommitted_bytes());
        let budget = budget.clone();
        if self.dirty.is_empty() {
            budget.unregister(listed);
            self.listed = None;
        }
        Some(budget)
    }
}

/// Runs the work; fails with [`Error::Interrupted`] if `interruption` ends first. The work must be safe to
/// drop.
pub(crate) async fn unless_interrupted<T>(
    interruption: impl Future<Output = ()>,
    work: impl Future<Output = T>,
) -> Result<T> {
    let (mut interruption, mut work) = (pin!(interruption), pin!(work));
    poll_fn(|context| {
        if let Poll::Ready(result) = work.as_mut().poll(context) {
            return Poll::Ready(Ok(result));
        }
        interruption.as_mut().poll(context).map(|()| Err(Error::Interrupted))
    })
    .await
}
