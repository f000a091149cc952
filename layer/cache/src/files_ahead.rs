//! Prefetch of small files: when callers read one file of a directory after another (if trees are prefetched,
//! after the first), the others are fetched ahead, also in subdirectories and neighbouring directories. The
//! window, the maximum of bytes prefetched and not yet read, grows while the predictions are right.
//! [`FilesAhead`] has the queues; the workers that fetch are tasks of `session/ahead.rs`.

use std::collections::{HashSet, VecDeque};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tombolo_core::lock;

use crate::store::ObjectId;

/// Prefetch of small files: recent reads, the queues and the window.
#[derive(Debug, Default)]
pub(crate) struct FilesAhead(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Directories in which callers have read files lately, and their parents; each with the first child that
    /// was read or passed through.
    read: VecDeque<(ObjectId, ObjectId)>,
    files: VecDeque<ObjectId>,
    /// Directories to search for more files, each with the child after which the search begins.
    dirs: VecDeque<(ObjectId, Option<ObjectId>)>,
    /// Directories queued since the prefetch began.
    seen: HashSet<ObjectId>,
    /// Bytes prefetched, or being prefetched, and not read yet; and their limit.
    unread_bytes: u64,
    window_bytes: u64,
    /// Time of the last read that missed or used a prefetch; and the number of workers.
    last: Option<Instant>,
    workers: usize,
}

/// A worker's next step.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Fetch this file.
    File(ObjectId),
    /// Find more files in this directory, beginning after `after`.
    Dir {
        dir: ObjectId,
        /// The child after which to begin; `None` for the first.
        after: Option<ObjectId>,
    },
}

/// Maximum size of a prefetched file, in bytes. The remainder of a larger file is fetched by read-ahead.
pub(crate) const FILE_BYTES_MAX: u64 = 128 << 10;

/// Maximum number of files fetched at a time; each takes at least a round trip.
const WORKERS_MAX: usize = 48;

/// Window of unread files: initial and maximum size, in bytes.
const WINDOW_BYTES: (u64, u64) = (256 << 10, 8 << 20);

/// Bytes of wrong guesses written off each time that a caller waits for a file that was not prefetched.
const MISS_BYTES: u64 = 128 << 10;

/// Number of bytes as which a smaller file counts in the window, for the cost of its round trip.
const COST_BYTES_MIN: u64 = 8 << 10;

/// Maximum number of queued files, and of queued directories.
const QUEUE_MAX: usize = 8192;

/// Maximum number of directories remembered as recently read.
const READ_MAX: usize = 64;

/// Idle time after which the prefetch ends and its queues are dropped.
const PATIENCE: Duration = Duration::from_secs(2);

impl FilesAhead {
    /// Records that a caller waits for a file of `dir`, whose parent is `above`. The other files of `dir` are
    /// queued if one of them was read before, or `is_wanted`, or another directory of `above` was read; in
    /// the last case also those of `above`. Returns the number of workers to start.
    #[must_use]
    pub(crate) fn missed(
        &self,
        file: ObjectId,
        dir: ObjectId,
        above: Option<ObjectId>,
        is_wanted: bool,
    ) -> usize {
        let mut state = lock(&self.0);
        state.forget_if_over();
        let again = state.note(dir, file) || is_wanted;
        let beside = above.is_some_and(|above| state.note(above, dir));
        state.last = Some(Instant::now());
        state.unread_bytes = state.unread_bytes.saturating_sub(MISS_BYTES);
        if beside && let Some(above) = above.filter(|above| state.seen.insert(*above)) {
            state.dirs.push_front((above, Some(dir)));
        }
        if (again || beside) && state.seen.insert(dir) {
            state.dirs.push_front((dir, Some(file)));
        }
        state.workers_to_start()
    }

    /// Records a read of a prefetched file. Returns the number of workers to start.
    #[must_use]
    pub(crate) fn used(&self, size: u64) -> usize {
        let (mut state, cost) = (lock(&self.0), size.max(COST_BYTES_MIN));
        state.last = Some(Instant::now());
        state.unread_bytes = state.unread_bytes.saturating_sub(cost);
        state.window_bytes = (state.window_bytes + cost).clamp(WINDOW_BYTES.0, WINDOW_BYTES.1);
        state.workers_to_start()
    }

    /// Records the start of a prefetch of this size.
    pub(crate) fn guessed(&self, size: u64) {
        lock(&self.0).unread_bytes += size.max(COST_BYTES_MIN);
    }

    /// Queues files, and directories to search for files. Returns the number of workers to start.
    #[must_use]
    pub(crate) fn add(
        &self,
        files: impl Iterator<Item = ObjectId>,
        dirs: impl DoubleEndedIterator<Item = ObjectId>,
    ) -> usize {
        let mut state = lock(&self.0);
        let room = QUEUE_MAX.saturating_sub(state.files.len());
        state.files.extend(files.take(room));
        // Depth first, as a walk proceeds.
        for dir in dirs.rev() {
            if state.dirs.len() < QUEUE_MAX && state.seen.insert(dir) {
                state.dirs.push_front((dir, None));
            }
        }
        state.workers_to_start()
    }

    /// Returns a worker's next step, or `None` if the worker must end.
    pub(crate) fn next(&self) -> Option<Next> {
        let mut state = lock(&self.0);
        state.forget_if_over();
        let next = if state.has_room() { state.pop() } else { None };
        if next.is_none() {
            state.workers -= 1;
        }
        next
    }

    /// Records that a worker could not be started.
    pub(crate) fn has_no_thread(&self) {
        lock(&self.0).workers -= 1;
    }
}

impl State {
    fn forget_if_over(&mut self) {
        if self.last.is_none_or(|last| last.elapsed() > PATIENCE) {
            *self = Self { workers: self.workers, window_bytes: WINDOW_BYTES.0, ..Self::default() };
        }
    }

    /// Records a read of, or below, the child `what` of a directory. Returns `true` if the first such read in
    /// the directory was of another child.
    fn note(&mut self, dir: ObjectId, what: ObjectId) -> bool {
        if let Some((_, first)) = self.read.iter().find(|(read, _)| *read == dir) {
            return *first != what;
        }
        self.read.push_back((dir, what));
        if self.read.len() > READ_MAX {
            self.read.pop_front();
        }
        false
    }

    fn has_room(&self) -> bool {
        self.unread_bytes < self.window_bytes
    }

    fn pop(&mut self) -> Option<Next> {
        let file = self.files.pop_front().map(Next::File);
        file.or_else(|| self.dirs.pop_front().map(|(dir, after)| Next::Dir { dir, after }))
    }

    fn workers_to_start(&mut self) -> usize {
        let room = self.window_bytes.saturating_sub(self.unread_bytes).div_ceil(COST_BYTES_MIN) as usize;
        let wanted = (self.files.len() + self.dirs.len()).min(room).min(WORKERS_MAX);
        let missing = wanted.saturating_sub(self.workers);
        self.workers += missing;
        missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: ObjectId = ObjectId(100);
    const ABOVE: ObjectId = ObjectId(99);

    fn files(from: u64, to: u64) -> impl Iterator<Item = ObjectId> {
        (from..to).map(ObjectId)
    }

    fn none() -> std::iter::Empty<ObjectId> {
        std::iter::empty()
    }

    #[test]
    fn two_files_of_a_directory_start_prefetch() {
        let ahead = FilesAhead::default();
        assert_eq!(ahead.missed(ObjectId(1), DIR, None, false), 0);
        assert_eq!(ahead.missed(ObjectId(2), DIR, None, false), 1);
        assert_eq!(ahead.next(), Some(Next::Dir { dir: DIR, after: Some(ObjectId(2)) }));
        assert_eq!(ahead.missed(ObjectId(3), DIR, None, false), 0, "that is under way");
        assert_eq!(ahead.next(), None);
    }

    #[test]
    fn one_file_starts_prefetch_if_neighbours_are_wanted() {
        let ahead = FilesAhead::default();
        assert_eq!(ahead.missed(ObjectId(1), DIR, None, true), 1);
        assert_eq!(ahead.next(), Some(Next::Dir { dir: DIR, after: Some(ObjectId(1)) }));
    }

    #[test]
    fn consecutive_directories_are_a_walk_of_their_parent() {
        let ahead = FilesAhead::default();
        assert_eq!(ahead.missed(ObjectId(1), DIR, Some(ABOVE), false), 0);
        assert_eq!(ahead.missed(ObjectId(2), ObjectId(101), Some(ABOVE), false), 2);
        assert_eq!(ahead.next(), Some(Next::Dir { dir: ObjectId(101), after: Some(ObjectId(2)) }));
        assert_eq!(ahead.next(), Some(Next::Dir { dir: ABOVE, after: Some(ObjectId(101)) }));
    }

    #[test]
    fn unread_prefetch_is_bounded_by_the_window() {
        let ahead = FilesAhead::default();
        let _ = ahead.missed(ObjectId(1), DIR, None, false);
        let _ = ahead.missed(ObjectId(2), DIR, None, false);
        let size = 32 << 10;
        assert!(ahead.next().is_some() && ahead.add(files(3, 1000), none()) > 0);
        let fetch_all = || {
            let mut count = 0;
            while ahead.next().is_some() {
                ahead.guessed(size);
                lock(&ahead.0).workers += 1;
                count += 1;
            }
            count
        };
        assert_eq!(fetch_all(), WINDOW_BYTES.0 / size);
        let _ = ahead.used(size);
        assert_eq!(fetch_all(), 2, "what was right lets it grow");
        let _ = ahead.missed(ObjectId(999), DIR, None, false);
        assert_eq!(fetch_all(), MISS_BYTES / size, "what is wrong costs so much for each file that is read");
    }

    #[test]
    fn when_nothing_is_read_any_more_nothing_is_fetched() {
        let ahead = FilesAhead::default();
        let _ = ahead.missed(ObjectId(1), DIR, None, false);
        let _ = ahead.missed(ObjectId(2), DIR, None, false);
        lock(&ahead.0).last = Instant::now().checked_sub(PATIENCE * 2);
        assert_eq!(ahead.next(), None);
        assert_eq!(ahead.missed(ObjectId(3), DIR, None, false), 0, "it is forgotten");
    }
}
