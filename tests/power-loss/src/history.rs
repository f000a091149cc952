//! Operations of a worker, and the tree after each of them; always the same.

use std::ops::Range;

use fastrand::Rng;
use tombolo_test_support::history::{Change, State};

/// Number of concurrent programs, each in its own directory.
pub const WORKERS: usize = 2;

/// The operations of a worker, with `true` for those made durable, and the states before each and at the end.
#[derive(Debug)]
pub struct History {
    pub actions: Vec<(Change, bool)>,
    pub states: Vec<State>,
}

/// Operations during which the origin is unreachable and cannot check who may write to its own files.
const AWAY: Range<usize> = 50..150;

/// Number of files at the origin before all work, and their size.
const OLD_FILES: usize = 4;
const OLD_BYTES: usize = 50_000;
/// Number of the first of them.
const OLD: usize = 1 << 20;

/// Returns the initial state.
pub fn old() -> State {
    let mut state = State::default();
    (0..OLD_FILES).for_each(|number| state.add(format!("sub/old-{number}"), OLD + number, OLD_BYTES));
    state
}

impl History {
    /// Returns the history of `count` operations of a worker.
    pub fn of(worker: usize, count: usize) -> Self {
        let mut random = Rng::with_seed(worker as u64);
        let (mut actions, mut states) = (Vec::new(), vec![old()]);
        for number in 0..count {
            let state: &State = &states[number];
            let action = state.choose(&mut random, true, |file| !AWAY.contains(&number) || file < OLD);
            // Writes always are, as a mount's kernel may defer them.
            let writes = matches!(action, Change::Put(..) | Change::Write(..) | Change::Resize(..));
            states.push(state.after(number, &action));
            actions.push((action, writes || random.bool()));
        }
        Self { actions, states }
    }
}
