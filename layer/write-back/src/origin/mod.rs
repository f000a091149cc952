//! Bringing changes to the origin: a thread that does it soon after they were made, and what its callers are
//! told.
//!
//! Reading order: `plan` (what differs at one moment), `round` (one attempt), `nodes`, `attributes`, `data`,
//! `names`, `looking`, `conflicts`, `window`.

mod attributes;
mod conflicts;
mod data;
mod looking;
mod names;
mod nodes;
mod plan;
mod round;
mod window;

use std::ops::Range;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tombolo_core::{Ctx, Error, Interrupt, Result};

use crate::Options;
use crate::shared::{ControlState, SESSION, Shared, Stuck};

pub(crate) use attributes::is_refusal;
use round::{Failure, How, Outcome, Round};

/// What a flush has achieved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// The origin has all changes up to this one.
    pub change: u64,
    /// Versions of others that were kept beside ours, since the start.
    pub conflicts: u64,
}

/// What the origin lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Bytes of data that the origin does not have.
    pub dirty_bytes: u64,
    /// Nodes of which it lacks something.
    pub dirty_nodes: usize,
    /// How long ago the oldest change was made that it lacks.
    pub oldest: Option<Duration>,
    /// The latest change.
    pub change: u64,
    /// The local disk has all changes up to this one.
    pub on_disk: u64,
    /// The origin has all changes up to this one.
    pub at_origin: u64,
    /// Why the last attempt to bring changes there failed, if it did.
    pub failure: Option<String>,
    /// Versions of others that were kept beside ours, since the start.
    pub conflicts: u64,
    /// Blocks that were being written over when an earlier life ended suddenly: they are kept as they lay on
    /// the disk.
    pub torn: u64,
    /// Whether it lacks nothing.
    pub is_clean: bool,
    /// Number of nodes with attributes that were asked for, or with another operation, that the origin has
    /// refused.
    pub refused: usize,
    /// The origin has all changes up to this one, except what it has refused and what depends on that.
    pub settled: u64,
    /// Whether the last attempt to bring changes there has met a refusal, and not only an origin that is away
    /// or full.
    pub is_refused: bool,
    /// Attempts to bring changes there that have begun since the start.
    pub attempts_begun: u64,
    /// Those of them that have ended.
    pub attempts_ended: u64,
}

/// The thread that brings changes to the origin.
pub(crate) struct Sender {
    shared: Arc<Shared>,
    interrupt: Interrupt,
    thread: Option<JoinHandle<()>>,
}

/// After an attempt that failed the next waits for so long; twice as long each time, up to the second.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// Interval at which refused operations are retried while there are no other changes.
const RETRY_REFUSED: Duration = Duration::from_secs(300);

/// Minimum interval at which writers that wait for space have them retried.
const RETRY_FOR_SPACE: Duration = Duration::from_secs(1);

/// Maximum number of rounds of an attempt: another client may change the same names, or a mode may permit more.
const ROUNDS_MAX: u32 = 8;

impl Sender {
    pub(crate) fn start(shared: &Arc<Shared>) -> Result<Self> {
        let interrupt = Interrupt::new();
        let (sending, ending) = (shared.clone(), interrupt.clone());
        let thread = thread::Builder::new().name("write-back".into());
        let thread = thread.spawn(move || run(&sending, &ending)).map_err(Error::io)?;
        Ok(Self { shared: shared.clone(), interrupt, thread: Some(thread) })
    }

    /// Returns what operations are for that end with it.
    pub(crate) fn cx(&self) -> Ctx {
        Ctx { interrupt: self.interrupt.clone(), ..Ctx::root(SESSION) }
    }

    /// Waits until the origin has all that was changed so far, or says why not.
    pub(crate) fn flush(&self) -> Result<Report> {
        let (change, is_clean) = {
            let tree = self.shared.tree();
            (tree.change, tree.is_clean())
        };
        let control = &self.shared.control;
        let mut state = control.state();
        if is_clean {
            state.at_origin = state.at_origin.max(change);
            return Ok(Report { change, conflicts: state.conflicts });
        }
        let (begun, was_behind) = (state.begun, state.at_origin < change);
        drop(state);
        control.urge();
        state = control.state();
        let has_all = |state: &ControlState| was_behind && state.at_origin >= change;
        // One that had begun already does not have it all.
        while !has_all(&state) && state.ended <= begun {
            if state.is_closing {
                return Err(Error::Interrupted);
            }
            state = control.wait(state, Duration::from_secs(3600));
        }
        let (failure, is_behind) = (state.failure.clone(), !has_all(&state));
        let (report, refusal) =
            (Report { change: state.at_origin, conflicts: state.conflicts }, state.refusal.clone());
        drop(state);
        let refused = refusal.filter(|_| self.shared.tree().refused_count() > 0);
        match failure.filter(|_| is_behind).or(refused) {
            Some(failure) => Err(Error::io(failure)),
            None => Ok(report),
        }
    }

    /// Has all that was changed so far brought to the origin, and does not wait. Answers how things stood
    /// before.
    pub(crate) fn start_flush(&self) -> Status {
        let before = self.status();
        match before.is_clean {
            true => self.shared.control.tell(|state| state.at_origin = state.at_origin.max(before.change)),
            false => self.shared.control.urge(),
        }
        before
    }

    pub(crate) fn status(&self) -> Status {
        let (dirty_bytes, dirty_nodes, change, is_clean, refused) = {
            let tree = self.shared.tree();
            (tree.dirty_bytes, tree.dirty_count(), tree.change, tree.is_clean(), tree.refused_count())
        };
        let on_disk = self.shared.journal.stable_change();
        let state = self.shared.control.state();
        let stuck = state.stuck.as_ref();
        let oldest = [state.dirty_since.map(|(first, _)| first), stuck.map(|stuck| stuck.first)];
        let refused_nodes = if is_clean { 0 } else { state.refused_nodes };
        Status {
            dirty_bytes,
            dirty_nodes,
            oldest: oldest.into_iter().flatten().min().map(|first| first.elapsed()),
            change,
            on_disk,
            at_origin: state.at_origin,
            failure: state.failure.clone().or_else(|| state.refusal.clone().filter(|_| refused > 0)),
            conflicts: state.conflicts,
            torn: state.torn,
            is_clean,
            refused: refused + refused_nodes,
            settled: state.settled.max(state.at_origin),
            is_refused: refused > 0 || state.is_refused,
            attempts_begun: state.begun,
            attempts_ended: state.ended,
        }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.interrupt.raise();
        self.shared.control.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(shared: &Arc<Shared>, interrupt: &Interrupt) {
    let mut pause = RETRY.0;
    // What an earlier life has left may have been under way.
    let mut looks = true;
    while let Some((since, is_asked)) = next(shared) {
        let begun = Instant::now();
        let outcome = attempt(shared, interrupt, How { looks, tries_refused: is_asked });
        looks = outcome.is_err();
        let times = begun..Instant::now();
        shared.control.tell(|state| pause = end_attempt(state, outcome, since, times, pause));
        // Writers that wait learn that only refused changes occupy the space.
        shared.freed();
    }
}

/// Records the outcome of an attempt, with its times and those of the changes that it was made for. `pause`
/// precedes the next one if this one has failed; returns the pause after that.
fn end_attempt(
    state: &mut ControlState,
    outcome: std::result::Result<u64, Failure>,
    since: (Instant, Instant),
    times: Range<Instant>,
    pause: Duration,
) -> Duration {
    state.ended = state.begun;
    let stuck = state.stuck.take();
    let failure = match outcome {
        Ok(change) => {
            state.at_origin = state.at_origin.max(change);
            (state.failure, state.retry, state.is_refused) = (None, None, false);
            state.refused_nodes = 0;
            return RETRY.0;
        }
        Err(failure) => failure,
    };
    (state.failure, state.is_refused) = (Some(failure.reason), failure.is_refused);
    state.refused_nodes = failure.refused;
    let Some(now) = failure.stuck else {
        state.retry = Some(times.end + pause);
        let last = state.dirty_since.map_or(since.1, |(_, last)| last);
        state.dirty_since = Some((since.0, last));
        return RETRY.1.min(pause * 2);
    };
    state.settled = state.settled.max(now.change);
    // Refused operations take at most half of the time.
    state.retry = Some(times.end + (times.end - times.start).min(RETRY_REFUSED));
    let first = stuck.map_or(since.0, |before| before.first.min(since.0));
    state.stuck = Some(Stuck { nodes: Arc::new(now.nodes), first, ended: times.end });
    RETRY.0
}

/// Brings all that differs to the origin, also what comes of what is found there.
fn attempt(shared: &Arc<Shared>, interrupt: &Interrupt, mut how: How) -> std::result::Result<u64, Failure> {
    let reason = "another client keeps changing the origin".into();
    let mut last = Err(Failure { reason, ..Failure::default() });
    for _ in 0..ROUNDS_MAX {
        match Round::run(shared, interrupt, how) {
            Outcome::Done(change) => return Ok(change),
            Outcome::Again => how.looks = false,
            Outcome::Permitted(otherwise) => {
                how = How { looks: true, tries_refused: true };
                last = otherwise;
            }
            Outcome::Failed(failure) => return Err(failure),
        }
    }
    last
}

/// Waits until changes are to be brought to the origin. Answers when the first and the last of them were
/// made, and whether somebody has asked for it; `None`: it is over.
fn next(shared: &Shared) -> Option<((Instant, Instant), bool)> {
    let mut state = shared.control.state();
    loop {
        if state.is_closing {
            return None;
        }
        let now = Instant::now();
        let due = due(&shared.options, &state);
        if state.is_urgent || due.is_some_and(|due| due <= now) {
            let is_asked = std::mem::take(&mut state.is_urgent);
            state.has_waiting = false;
            state.begun += 1;
            return Some((state.dirty_since.take().unwrap_or((now, now)), is_asked));
        }
        let time = due.map_or(Duration::from_secs(3600), |due| due - now);
        state = shared.control.wait(state, time);
    }
}

/// Returns the time of the next attempt.
fn due(options: &Options, state: &ControlState) -> Option<Instant> {
    let refused = state.stuck.as_ref().map(|stuck| match state.has_waiting {
        true => stuck.ended + RETRY_FOR_SPACE,
        false => stuck.ended + RETRY_REFUSED,
    });
    let Some((first, last)) = state.dirty_since else { return refused };
    let due = match state.has_waiting {
        true => first,
        false => (first + options.delay_max).min(last + options.idle),
    };
    let due = state.retry.map_or(due, |retry| retry.max(due));
    Some(refused.map_or(due, |refused| refused.min(due)))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn refused_changes_are_retried_and_delay_no_others() {
        let (options, now) = (Options::default(), Instant::now());
        let stuck = Stuck { nodes: Arc::default(), first: now, ended: now };
        let mut state = ControlState { stuck: Some(stuck), ..ControlState::default() };
        assert_eq!(due(&options, &state), Some(now + RETRY_REFUSED));
        state.dirty_since = Some((now, now));
        assert_eq!(due(&options, &state), Some(now + options.idle));
        (state.dirty_since, state.has_waiting) = (None, true);
        assert_eq!(due(&options, &state), Some(now + RETRY_FOR_SPACE));
    }

    /// Records an attempt that took so long. Returns the pauses after it and after the next failure.
    fn pauses(failure: Failure, took: Duration, pause: Duration) -> (Duration, Duration) {
        let (begun, mut state) = (Instant::now(), ControlState::default());
        let ended = begun + took;
        let next = end_attempt(&mut state, Err(failure), (begun, begun), begun..ended, pause);
        state.dirty_since = Some((begun, begun));
        let due = due(&Options::default(), &state).expect("there are changes");
        (due - ended, next)
    }

    #[test]
    fn refused_attempts_pause_as_long_as_they_took() {
        let stuck = round::Stuck { nodes: HashSet::new(), change: 0 };
        let refused = Failure { stuck: Some(stuck), ..Failure::default() };
        for (took, pause) in [(10, 10), (31, 31), (200, 200), (299, 299), (1000, 300)] {
            let [took, pause] = [took, pause].map(Duration::from_secs);
            assert_eq!(pauses(refused.clone(), took, RETRY.1), (pause, RETRY.0));
        }
    }

    #[test]
    fn failed_attempts_pause_for_at_most_30_s() {
        let (mut pause, mut all) = (RETRY.0, Vec::new());
        for _ in 0..7 {
            let (now, next) = pauses(Failure::default(), Duration::from_secs(100), pause);
            all.push(now.as_secs());
            pause = next;
        }
        assert_eq!(all, [1, 2, 4, 8, 16, 30, 30]);
    }
}
