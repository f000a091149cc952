//! Prefetch of directories: when a walk goes on from a directory to those below it, the others are listed
//! ahead, many at a time. Two look-ups in one directory list it, and after a neighbour does the same, all of
//! them. A program that looks into a single directory triggers nothing else. The window of unused listings
//! grows while the predictions are right.
//!
//! Where a whole tree is wanted, it is listed without a limit, but only a few directories at a time until a
//! caller walks, so that callers' requests do not wait.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tombolo_host_runtime::promise::Promise;

use crate::object::Object;
use crate::store::ObjectId;
use crate::walk_order::WalkOrder;

/// What is to be listed ahead.
#[derive(Debug, Default)]
pub(crate) struct Walk(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    queue: WalkOrder<Arc<Object>>,
    /// What is being listed.
    under_way: HashMap<ObjectId, Arc<Promise<()>>>,
    /// The directories of which all that lie below were queued since this began.
    gone_through: HashSet<ObjectId>,
    /// The directories that a caller has listed lately.
    listed: VecDeque<ObjectId>,
    /// Those in which one has looked up a name that was not known here.
    looked_in: VecDeque<ObjectId>,
    /// Those with a directory in them that was listed after look-ups, and which.
    above: VecDeque<(ObjectId, ObjectId)>,
    /// All that lies below the directories in the queue is wanted.
    wants_all: bool,
    /// What was listed and was not looked at yet; and what turned out right so far, by which more of it is
    /// allowed.
    unused_bytes: u64,
    used_bytes: u64,
    /// What a listing has brought lately, on average.
    lately_bytes: u64,
    last: Option<Instant>,
    workers: usize,
}

/// What look-ups in a directory say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LookedIn {
    /// Nothing yet.
    First,
    /// The first in a directory below one where names were looked up just before: a path leads through it.
    Below,
    /// Names of it are wanted, not only one.
    Again,
    /// The same, and so it was with another beside it: it is a walk.
    AfterAnother,
}

/// So many directories are asked for at a time, at least and at most: as many as bring what a line of 100
/// Mbit/s and 80 ms holds. A caller's own request waits behind no more than that.
const WORKERS: (usize, usize) = (16, 128);
const IN_FLIGHT_BYTES: u64 = 1 << 20;

/// So many wait at most. Beyond, the walk itself will ask.
const QUEUE_MAX: usize = 1024;

/// The same, where all of a tree is wanted.
const QUEUE_ALL_MAX: usize = 1 << 16;

/// The directories that count as listed lately, or as looked in.
const LISTED_MAX: usize = 64;

/// So many directories are remembered as gone through.
const GONE_THROUGH_MAX: usize = 1 << 16;

/// What may be here that was not looked at: at first, and at most.
const WINDOW_BYTES: (u64, u64) = (2 << 20, 32 << 20);

/// So much of what was guessed wrong is written off each time that a caller looks at something else.
const MISS_BYTES: u64 = 64 << 10;

/// What a listing takes on the way, beside its names: of itself, and of each entry (attributes and a handle,
/// RFC 1813 §3.3.17).
const LISTING_BYTES: u64 = 256;
const ENTRY_BYTES: u64 = 200;

/// When nothing was listed for this long the walk is over, and the guess was wrong.
const PATIENCE: Duration = Duration::from_secs(2);

/// What a listing of names of so many bytes has cost, about.
pub(crate) fn listing_bytes(names: usize, name_bytes: usize) -> u64 {
    LISTING_BYTES + ENTRY_BYTES * names as u64 + name_bytes as u64
}

impl Walk {
    /// A caller lists a directory. Whether that goes on from the one above, as a walk does.
    pub(crate) fn goes_on(&self, dir: ObjectId, parent: Option<ObjectId>) -> bool {
        let mut state = self.state();
        state.forget_if_over();
        let goes_on = parent.is_some_and(|parent| parent != dir && state.listed.contains(&parent));
        note(&mut state.listed, dir);
        state.last = Some(Instant::now());
        goes_on
    }

    /// A caller looks up a name in a directory, and has to ask for it, or finds it in what was listed ahead.
    pub(crate) fn looks_in(&self, dir: ObjectId, parent: Option<ObjectId>) -> LookedIn {
        let mut state = self.state();
        state.forget_if_over();
        state.last = Some(Instant::now());
        let parent = parent.filter(|parent| *parent != dir);
        if !note(&mut state.looked_in, dir) {
            let is_below = parent.is_some_and(|parent| state.looked_in.contains(&parent));
            return if is_below { LookedIn::Below } else { LookedIn::First };
        }
        let Some(parent) = parent else { return LookedIn::Again };
        match state.above.iter().find(|(above, _)| *above == parent) {
            Some((_, first)) if *first == dir => LookedIn::Again,
            Some(_) => LookedIn::AfterAnother,
            None => {
                state.above.push_back((parent, dir));
                if state.above.len() > LISTED_MAX {
                    state.above.pop_front();
                }
                LookedIn::Again
            }
        }
    }

    /// Whether those below a directory are still to be gone through.
    pub(crate) fn is_new(&self, dir: ObjectId) -> bool {
        !self.state().gone_through.contains(&dir)
    }

    /// Has a directory listed ahead, and all that lies below it, however much that is. How many workers are
    /// to be started.
    #[must_use]
    pub(crate) fn add_all_of(&self, dir: Arc<Object>) -> usize {
        let mut state = self.state();
        state.wants_all = true;
        state.queue.add_first(dir.id, dir);
        state.workers_to_start()
    }

    /// Has the directories below one listed ahead. How many workers are to be started for that: each of them
    /// must ask for the next directory until there is none.
    #[must_use]
    pub(crate) fn add(&self, dir: ObjectId, below: Vec<Arc<Object>>) -> usize {
        let mut state = self.state();
        let queue_max = if state.wants_all { QUEUE_ALL_MAX } else { QUEUE_MAX };
        let room = queue_max.saturating_sub(state.queue.len());
        if below.len() <= room && state.gone_through.len() < GONE_THROUGH_MAX {
            state.gone_through.insert(dir);
        }
        state.queue.add_below(dir, below.into_iter().take(room).map(|below| (below.id, below)));
        state.workers_to_start()
    }

    /// A directory is about to be listed. False if it is being listed already.
    pub(crate) fn begin(&self, dir: ObjectId) -> bool {
        let mut state = self.state();
        if state.under_way.contains_key(&dir) {
            return false;
        }
        state.under_way.insert(dir, Arc::default());
        true
    }

    /// The next directory for a worker. `None`: it ends.
    pub(crate) fn next(&self) -> Option<Arc<Object>> {
        let mut state = self.state();
        state.forget_if_over();
        let next = if state.workers <= state.workers_max() { state.queue.take() } else { None };
        if next.is_none() {
            state.workers -= 1;
        }
        // A worker that is still at it may find more.
        if state.queue.is_empty() && state.workers == 0 {
            state.queue.forget();
            state.wants_all = false;
        }
        next
    }

    /// A worker could not be started.
    pub(crate) fn has_no_thread(&self) {
        self.state().workers -= 1;
    }

    /// A directory is listed, or could not be.
    pub(crate) fn done(&self, dir: ObjectId) {
        let listed = self.state().under_way.remove(&dir);
        if let Some(listed) = listed {
            listed.keep(());
        }
    }

    /// A directory was listed ahead, which brought so much, and it was not looked at yet.
    pub(crate) fn guessed(&self, bytes: u64) {
        let mut state = self.state();
        state.unused_bytes += bytes;
        if bytes > 0 {
            state.lately_bytes = (state.lately_bytes * 7 + bytes) / 8;
        }
    }

    /// A caller looks at what was listed ahead. How many workers are to be started.
    #[must_use]
    pub(crate) fn used(&self, bytes: u64) -> usize {
        let mut state = self.state();
        state.last = Some(Instant::now());
        state.unused_bytes = state.unused_bytes.saturating_sub(bytes);
        state.used_bytes = state.used_bytes.saturating_add(bytes);
        state.workers_to_start()
    }

    /// A caller looks at something else.
    pub(crate) fn missed(&self) {
        let mut state = self.state();
        state.unused_bytes = state.unused_bytes.saturating_sub(MISS_BYTES);
    }

    /// A walk has come to a directory that was not listed ahead of it: what was guessed lies elsewhere. How
    /// many workers are to be started.
    #[must_use]
    pub(crate) fn came_first(&self) -> usize {
        let mut state = self.state();
        state.unused_bytes = state.unused_bytes.saturating_sub(MISS_BYTES);
        state.workers_to_start()
    }

    /// Waits for a directory that is just being listed. Whether it was.
    pub(crate) async fn wait_for(&self, dir: ObjectId) -> bool {
        let listed = self.state().under_way.get(&dir).cloned();
        match listed {
            Some(listed) => {
                listed.kept().await;
                true
            }
            None => false,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn forget_if_over(&mut self) {
        if !self.wants_all && self.last.is_none_or(|last| last.elapsed() > PATIENCE) {
            let Self { under_way, workers, lately_bytes, .. } = std::mem::take(self);
            *self = Self { under_way, workers, lately_bytes, last: Some(Instant::now()), ..Self::default() };
        }
    }

    /// So many directories are asked for at a time; none while too much was guessed.
    fn workers_max(&self) -> usize {
        if self.wants_all && self.used_bytes == 0 {
            return WORKERS.0;
        }
        if !self.wants_all && self.unused_bytes >= (WINDOW_BYTES.0 + self.used_bytes).min(WINDOW_BYTES.1) {
            return 0;
        }
        let fill = IN_FLIGHT_BYTES.checked_div(self.lately_bytes).unwrap_or(u64::MAX);
        (fill as usize).clamp(WORKERS.0, WORKERS.1)
    }

    fn workers_to_start(&mut self) -> usize {
        let missing = self.queue.len().min(self.workers_max()).saturating_sub(self.workers);
        self.workers += missing;
        missing
    }
}

/// Takes a directory into a list of late ones. Whether it is there already.
fn note(late: &mut VecDeque<ObjectId>, dir: ObjectId) -> bool {
    if late.contains(&dir) {
        return true;
    }
    late.push_back(dir);
    if late.len() > LISTED_MAX {
        late.pop_front();
    }
    false
}
