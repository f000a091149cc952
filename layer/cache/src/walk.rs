//! Directories that will be listed soon: when a walk goes on from a directory to those below it, the others are listed ahead, many at a
//! time. Two names that were looked up in one have that one listed, and after
//! another beside it all of them. A program that looks into one directory causes nothing else.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tombolo_host_runtime::promise::Promise;

use crate::object::Object;
use crate::store::ObjectId;

/// What is to be listed ahead.
#[derive(Debug, Default)]
pub(crate) struct Walk(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Step>,
    queued: HashSet<ObjectId>,
    /// What workers are listing.
    under_way: HashMap<ObjectId, Arc<Promise<()>>>,
    /// The directories that a caller has listed lately.
    listed: VecDeque<ObjectId>,
    /// Those in which one has looked up a name that was not known here.
    looked_in: VecDeque<ObjectId>,
    /// Those with a directory in them that was listed after look-ups, and which.
    above: VecDeque<(ObjectId, ObjectId)>,
    last: Option<Instant>,
    workers: usize,
}

/// A directory that is to be listed.
#[derive(Debug)]
pub(crate) struct Step {
    pub dir: Arc<Object>,
    /// And then those below it.
    pub goes_down: bool,
}

/// What look-ups in a directory say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LookedIn {
    /// Nothing yet.
    First,
    /// Names of it are wanted, not only one.
    Again,
    /// The same, and so it was with another beside it: it is a walk.
    AfterAnother,
}

/// So many directories are asked for at a time.
const WORKERS_MAX: usize = 64;

/// So many wait at most. Beyond, the walk itself will ask.
const QUEUE_MAX: usize = 1024;

/// The directories that count as listed lately, or as looked in.
const LISTED_MAX: usize = 64;

/// When nothing was listed for this long the walk is over, and the guess was wrong.
const PATIENCE: Duration = Duration::from_secs(2);

impl Step {
    pub(crate) fn alone(dir: Arc<Object>) -> Self {
        Self { dir, goes_down: false }
    }

    pub(crate) fn and_below(dir: Arc<Object>) -> Self {
        Self { dir, goes_down: true }
    }
}

impl Walk {
    /// A caller lists a directory. Whether that goes on from the one above, as a walk does.
    pub(crate) fn goes_on(&self, dir: ObjectId, parent: Option<ObjectId>) -> bool {
        let mut state = self.state();
        let goes_on = parent.is_some_and(|parent| parent != dir && state.listed.contains(&parent));
        note(&mut state.listed, dir);
        state.last = Some(Instant::now());
        goes_on
    }

    /// A caller has to ask for a name in a directory.
    pub(crate) fn looks_in(&self, dir: ObjectId, parent: Option<ObjectId>) -> LookedIn {
        let mut state = self.state();
        state.last = Some(Instant::now());
        if !note(&mut state.looked_in, dir) {
            return LookedIn::First;
        }
        let Some(parent) = parent.filter(|parent| *parent != dir) else { return LookedIn::Again };
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

    /// Has directories listed ahead. How many workers are to be started for that: each of them must ask for the next directory until there
    /// is none.
    #[must_use]
    pub(crate) fn add(&self, steps: impl IntoIterator<Item = Step>) -> usize {
        let mut state = self.state();
        for step in steps {
            if state.queue.len() < QUEUE_MAX && state.queued.insert(step.dir.id) {
                state.queue.push_back(step);
            }
        }
        let wanted = state.queue.len().min(WORKERS_MAX - state.workers);
        state.workers += wanted;
        wanted
    }

    /// The next directory for a worker. `None`: it ends.
    pub(crate) fn next(&self) -> Option<Step> {
        let mut state = self.state();
        if state.last.is_none_or(|last| last.elapsed() > PATIENCE) {
            state.queue.clear();
        }
        let next = state.queue.pop_front();
        match &next {
            Some(step) => drop(state.under_way.insert(step.dir.id, Arc::default())),
            None => state.workers -= 1,
        }
        if state.queue.is_empty() && state.under_way.is_empty() {
            state.queued.clear();
        }
        next
    }

    /// A worker could not be started.
    pub(crate) fn has_no_thread(&self) {
        self.state().workers -= 1;
    }

    /// A worker has listed a directory, or could not.
    pub(crate) fn done(&self, dir: ObjectId) {
        let listed = self.state().under_way.remove(&dir);
        if let Some(listed) = listed {
            listed.keep(());
        }
    }

    /// Waits for a directory that is just being listed ahead.
    pub(crate) async fn wait_for(&self, dir: ObjectId) {
        let listed = self.state().under_way.get(&dir).cloned();
        if let Some(listed) = listed {
            listed.kept().await;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
