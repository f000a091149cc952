//! Delivery of changes to the origin: [`Sender`], whose thread sends them soon after they were made. It makes
//! an *attempt* to send all differences, which consists of *rounds*, each with a plan of its own.
//!
//! Reading order: `plan` (all differences at one time), `round` (the phases of a round), `nodes`,
//! `attributes`, `data`, `names`, `times`, `looking`, `conflicts`, `window`.

mod attributes;
mod conflicts;
mod data;
mod looking;
mod names;
mod nodes;
mod plan;
mod round;
mod times;
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

/// Result of a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Number of the change up to which the origin has all changes.
    pub change: u64,
    /// Number of conflicts with other writers since the start.
    pub conflicts: u64,
}

/// Changes that the origin lacks, and the progress of sending them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Number of bytes that the origin lacks.
    pub dirty_bytes: u64,
    /// Number of nodes of which the origin lacks something.
    pub dirty_nodes: usize,
    /// Age of the oldest change that the origin lacks, or lacked at the start of the attempt in progress.
    pub oldest: Option<Duration>,
    /// Number of the latest change.
    pub change: u64,
    /// The local disk has all changes up to this one.
    pub on_disk: u64,
    /// The origin has all changes up to this one, except attributes that it has refused.
    pub at_origin: u64,
    /// Reason why the last attempt to send changes has failed, or the latest refusal of attributes, if any
    /// remain.
    pub failure: Option<String>,
    /// Number of conflicts with other writers since the start.
    pub conflicts: u64,
    /// Number of blocks that failed their checksums at the start, and are used as found on the disk.
    pub torn: u64,
    /// `true` if the origin lacks nothing.
    pub is_clean: bool,
    /// Number of nodes with requested attributes, or another operation, that the origin has refused.
    pub refused: usize,
    /// The origin has all changes up to this one, except those that it has refused and those that depend on
    /// them.
    pub settled: u64,
    /// `true` if the last attempt has met a refusal, or if refused attributes remain.
    pub is_refused: bool,
    /// Number of attempts begun since the start.
    pub attempts_begun: u64,
    /// Number of attempts ended since the start.
    pub attempts_ended: u64,
}

/// The thread that sends changes to the origin.
pub(crate) struct Sender {
    shared: Arc<Shared>,
    interrupt: Interrupt,
    thread: Option<JoinHandle<()>>,
}

/// Pause after a failed attempt, doubled each time, and its maximum.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// Interval at which refused operations are retried while there are no other changes.
const RETRY_REFUSED: Duration = Duration::from_secs(300);

/// Minimum interval at which refused operations are retried while writers wait for space.
const RETRY_FOR_SPACE: Duration = Duration::from_secs(1);

/// Maximum number of rounds of an attempt. Another round follows if another client has changed the same
/// nodes, or if a mode or owner that was set may permit refused operations.
const ROUNDS_MAX: u32 = 8;

impl Sender {
    pub(crate) fn start(shared: &Arc<Shared>) -> Result<Self> {
        let interrupt = Interrupt::new();
        let (sending, ending) = (shared.clone(), interrupt.clone());
        let thread = thread::Builder::new().name("write-back".into());
        let thread = thread.spawn(move || run(&sending, &ending)).map_err(Error::io)?;
        Ok(Self { shared: shared.clone(), interrupt, thread: Some(thread) })
    }

    /// Returns the context of operations that are interrupted when the sender is dropped.
    pub(crate) fn cx(&self) -> Ctx {
        Ctx { interrupt: self.interrupt.clone(), ..Ctx::root(SESSION) }
    }

    /// Waits until the origin has all changes made so far, or returns the reason why it has not.
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
        // An attempt that had begun before this call may lack some of the changes.
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

    /// Starts to send all changes made so far, without waiting. Returns the status at the time of the call.
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
        let waiting = state.dirty_since.map(|(first, _)| first);
        let oldest = [waiting, state.sending_since, stuck.map(|stuck| stuck.first)];
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
    // An earlier run may have ended in the middle of operations at the origin, so the first attempt looks
    // up all names that differ.
    let mut looks = true;
    while let Some((since, is_asked)) = next(shared) {
        let begun = Instant::now();
        let outcome = attempt(shared, interrupt, How { looks, tries_refused: is_asked });
        looks = outcome.is_err();
        let times = begun..Instant::now();
        shared.control.tell(|state| pause = end_attempt(state, outcome, since, times, pause));
        // Notifies waiting writers also if only refused changes occupy the space.
        shared.freed();
    }
}

/// Records the outcome of an attempt. `since` are the times of the first and the last change that it was to
/// send, `times` those of its start and end. `pause` precedes the next attempt if this one has failed.
/// Returns the pause to follow another failure.
fn end_attempt(
    state: &mut ControlState,
    outcome: std::result::Result<u64, Failure>,
    since: (Instant, Instant),
    times: Range<Instant>,
    pause: Duration,
) -> Duration {
    (state.ended, state.sending_since) = (state.begun, None);
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
    // Refused operations take at most half of the time, unless an attempt exceeds `RETRY_REFUSED`.
    state.retry = Some(times.end + (times.end - times.start).min(RETRY_REFUSED));
    let first = stuck.map_or(since.0, |before| before.first.min(since.0));
    state.stuck = Some(Stuck { nodes: now.nodes, unsent: now.unsent, first, ended: times.end });
    RETRY.0
}

/// Sends all differences to the origin, in several rounds if another client has changed nodes there, or if
/// refused operations may be permitted by now.
fn attempt(shared: &Arc<Shared>, interrupt: &Interrupt, mut how: How) -> std::result::Result<u64, Failure> {
    let reason = "another client keeps changing the origin";
    let changing = || Err(Failure { reason: reason.into(), ..Failure::default() });
    let mut last = changing();
    for _ in 0..ROUNDS_MAX {
        match Round::run(shared, interrupt, how) {
            Outcome::Done(change) => return Ok(change),
            Outcome::Again => (how.looks, last) = (false, changing()),
            Outcome::Permitted(otherwise) => (how.looks, last) = (true, otherwise),
            Outcome::Failed(failure) => return Err(failure),
        }
    }
    last
}

/// Waits for the time of the next attempt. Returns the times of the first and the last change, and `true` if
/// the attempt was requested; `None` at the end.
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
            let since = state.dirty_since.take();
            state.sending_since = since.map(|(first, _)| first);
            return Some((since.unwrap_or((now, now)), is_asked));
        }
        let time = due.map_or(Duration::from_secs(3600), |due| due - now);
        state = shared.control.wait(state, time);
    }
}

/// Returns the time of the next attempt; `None` if nothing is to be sent.
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
        let (nodes, unsent) = (HashSet::new(), Arc::default());
        let stuck = Stuck { nodes, unsent, first: now, ended: now };
        let mut state = ControlState { stuck: Some(stuck), ..ControlState::default() };
        assert_eq!(due(&options, &state), Some(now + RETRY_REFUSED));
        state.dirty_since = Some((now, now));
        assert_eq!(due(&options, &state), Some(now + options.idle));
        (state.dirty_since, state.has_waiting) = (None, true);
        assert_eq!(due(&options, &state), Some(now + RETRY_FOR_SPACE));
    }

    /// Returns the pauses after an attempt of this duration, and after the next failure.
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
        let stuck = round::Stuck { nodes: HashSet::new(), unsent: Arc::default(), change: 0 };
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
