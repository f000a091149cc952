//! Prefetch of directories. When a client lists a directory and then one below it, as a walk does, the other
//! subdirectories of both are listed ahead. A directory is listed after two look-ups in it (a small one below
//! a directory just looked into, after one), and its siblings once two of them have had two look-ups each.
//! The window, the maximum of bytes listed ahead and unused, grows while the predictions are right.
//!
//! A tree that is prefetched as a whole is listed without a window, but only a few directories at a time
//! until a caller uses one of the listings, so that callers' requests do not wait.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tombolo_core::lock;
use tombolo_host_runtime::promise::Promise;

use crate::object::Object;
use crate::store::ObjectId;
use crate::walk_order::WalkOrder;

/// Prefetch of directories: the queue, recent accesses and the window.
#[derive(Debug, Default)]
pub(crate) struct Walk(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    queue: WalkOrder<Arc<Object>>,
    /// Listings in progress, each with the promise of its end.
    under_way: HashMap<ObjectId, Arc<Promise<()>>>,
    /// Directories whose subdirectories were all queued since the walk began, and are not queued again.
    gone_through: HashSet<ObjectId>,
    /// Directories listed lately by callers.
    listed: VecDeque<ObjectId>,
    /// Directories in which callers looked up names lately that were not cached, or were listed ahead.
    looked_in: VecDeque<ObjectId>,
    /// Pairs of a parent and the first of its directories in which look-ups were repeated.
    above: VecDeque<(ObjectId, ObjectId)>,
    /// `true` if the whole trees below the queued directories are wanted.
    wants_all: bool,
    /// Bytes listed ahead and unused so far; and bytes used so far, which extend the window.
    unused_bytes: u64,
    used_bytes: u64,
    /// Moving average of the bytes of a listing.
    lately_bytes: u64,
    /// Time of a caller's last access; and number of workers.
    last: Option<Instant>,
    workers: usize,
}

/// Significance of a look-up in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LookedIn {
    /// First look-up: nothing to conclude.
    First,
    /// First look-up, in a directory below one that was looked into just before: a path leads through it.
    Below,
    /// Repeated look-up: several names of the directory are wanted.
    Again,
    /// Repeated look-up, after another directory of the same parent had one: a walk.
    AfterAnother,
}

/// Bounds of the maximum number of listings in flight. Between them, the number is such that the total size
/// is `IN_FLIGHT_BYTES`: the bandwidth-delay product of 100 Mbit/s and 80 ms, so that requests queue briefly.
const WORKERS: (usize, usize) = (16, 128);
const IN_FLIGHT_BYTES: u64 = 1 << 20;

/// Maximum length of the queue. Directories beyond it are listed when the client comes to them.
const QUEUE_MAX: usize = 1024;

/// Maximum length of the queue if a whole tree is wanted.
const QUEUE_ALL_MAX: usize = 1 << 16;

/// Maximum number of directories remembered as recently listed or looked into.
const LISTED_MAX: usize = 64;

/// Maximum number of directories in `gone_through`; beyond it, subdirectories may be queued again.
const GONE_THROUGH_MAX: usize = 1 << 16;

/// Window of unused listings: initial and maximum size.
const WINDOW_BYTES: (u64, u64) = (2 << 20, 32 << 20);

/// Bytes of wrong guesses written off each time that a caller uses a directory not listed ahead.
const MISS_BYTES: u64 = 64 << 10;

/// Size of a listing on the wire without its names: of the reply, and of each entry (attributes and a handle,
/// RFC 1813 §3.3.17).
const LISTING_BYTES: u64 = 256;
const ENTRY_BYTES: u64 = 200;

/// Idle time after which a walk counts as over, and its unused listings are written off.
const PATIENCE: Duration = Duration::from_secs(2);

/// Computes the approximate size of a listing on the wire.
pub(crate) fn listing_bytes(names: usize, name_bytes: usize) -> u64 {
    LISTING_BYTES + ENTRY_BYTES * names as u64 + name_bytes as u64
}

impl Walk {
    /// Records a caller's listing. Returns `true` if the parent was listed lately too, as by a walk.
    pub(crate) fn goes_on(&self, dir: ObjectId, parent: Option<ObjectId>) -> bool {
        let mut state = lock(&self.0);
        state.forget_if_over();
        let goes_on = parent.is_some_and(|parent| parent != dir && state.listed.contains(&parent));
        note(&mut state.listed, dir);
        state.last = Some(Instant::now());
        goes_on
    }

    /// Records a look-up of a name that was not cached, or was listed ahead, and returns its significance.
    pub(crate) fn looks_in(&self, dir: ObjectId, parent: Option<ObjectId>) -> LookedIn {
        let mut state = lock(&self.0);
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

    /// Returns `true` if the directory's subdirectories were not queued yet.
    pub(crate) fn is_new(&self, dir: ObjectId) -> bool {
        !lock(&self.0).gone_through.contains(&dir)
    }

    /// Queues a directory and the whole tree below it. Returns the number of workers to start.
    #[must_use]
    pub(crate) fn add_all_of(&self, dir: Arc<Object>) -> usize {
        let mut state = lock(&self.0);
        state.wants_all = true;
        state.queue.add_first(dir.id, dir);
        state.workers_to_start()
    }

    /// Queues the directories below a directory, as many as there is space for in the queue. Returns the
    /// number of workers to start; each must call `next` until it returns `None`.
    #[must_use]
    pub(crate) fn add(&self, dir: ObjectId, below: Vec<Arc<Object>>) -> usize {
        let mut state = lock(&self.0);
        let queue_max = if state.wants_all { QUEUE_ALL_MAX } else { QUEUE_MAX };
        let room = queue_max.saturating_sub(state.queue.len());
        if below.len() <= room && state.gone_through.len() < GONE_THROUGH_MAX {
            state.gone_through.insert(dir);
        }
        state.queue.add_below(dir, below.into_iter().take(room).map(|below| (below.id, below)));
        state.workers_to_start()
    }

    /// Registers a listing. Returns `false` if one is in progress.
    pub(crate) fn begin(&self, dir: ObjectId) -> bool {
        let mut state = lock(&self.0);
        if state.under_way.contains_key(&dir) {
            return false;
        }
        state.under_way.insert(dir, Arc::default());
        true
    }

    /// Returns the next directory for a worker, or `None` if the worker must end.
    pub(crate) fn next(&self) -> Option<Arc<Object>> {
        let mut state = lock(&self.0);
        state.forget_if_over();
        let next = if state.workers <= state.workers_max() { state.queue.take() } else { None };
        if next.is_none() {
            state.workers -= 1;
        }
        // The queue is forgotten only without a running worker, which may still add directories.
        if state.queue.is_empty() && state.workers == 0 {
            state.queue.forget();
            state.wants_all = false;
        }
        next
    }

    /// Records that a worker could not be started.
    pub(crate) fn has_no_thread(&self) {
        lock(&self.0).workers -= 1;
    }

    /// Ends a listing, successful or not, and wakes its waiters.
    pub(crate) fn done(&self, dir: ObjectId) {
        let listed = lock(&self.0).under_way.remove(&dir);
        if let Some(listed) = listed {
            listed.keep(());
        }
    }

    /// Records a prefetched listing of this size, unused so far.
    pub(crate) fn guessed(&self, bytes: u64) {
        let mut state = lock(&self.0);
        state.unused_bytes += bytes;
        if bytes > 0 {
            state.lately_bytes = (state.lately_bytes * 7 + bytes) / 8;
        }
    }

    /// Records the use of a listing. Returns the number of workers to start.
    #[must_use]
    pub(crate) fn used(&self, bytes: u64) -> usize {
        let mut state = lock(&self.0);
        state.last = Some(Instant::now());
        state.unused_bytes = state.unused_bytes.saturating_sub(bytes);
        state.used_bytes = state.used_bytes.saturating_add(bytes);
        state.workers_to_start()
    }

    /// Records a look-up in a directory that is not listed, and writes off some wrong guesses.
    pub(crate) fn missed(&self) {
        let mut state = lock(&self.0);
        state.unused_bytes = state.unused_bytes.saturating_sub(MISS_BYTES);
    }

    /// Records that a caller has opened a directory before it was listed ahead, and writes off some wrong
    /// guesses. Returns the number of workers to start.
    #[must_use]
    pub(crate) fn came_first(&self) -> usize {
        let mut state = lock(&self.0);
        state.unused_bytes = state.unused_bytes.saturating_sub(MISS_BYTES);
        state.workers_to_start()
    }

    /// Waits for a listing in progress. Returns `false` if there is none.
    pub(crate) async fn wait_for(&self, dir: ObjectId) -> bool {
        let listed = lock(&self.0).under_way.get(&dir).cloned();
        match listed {
            Some(listed) => {
                listed.kept().await;
                true
            }
            None => false,
        }
    }
}

impl State {
    fn forget_if_over(&mut self) {
        if !self.wants_all && self.last.is_none_or(|last| last.elapsed() > PATIENCE) {
            let Self { under_way, workers, lately_bytes, .. } = std::mem::take(self);
            *self = Self { under_way, workers, lately_bytes, last: Some(Instant::now()), ..Self::default() };
        }
    }

    /// Returns the maximum number of concurrent listings; 0 while the window, if there is one, is full.
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

/// Adds a directory to a list of recent ones. Returns `true` if the list contains it already.
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
