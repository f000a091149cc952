//! Operations of a worker, and the tree after each of them; always the same.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use fastrand::Rng;

/// Number of concurrent programs, each in its own directory.
pub const WORKERS: usize = 2;

/// An operation. The bytes that it writes depend on its number.
#[derive(Clone, Debug)]
pub enum Action {
    /// A new file, possibly replacing another: written under a temporary name and renamed.
    Put(String, usize),
    Create(String),
    Write(String, usize, usize),
    Resize(String, usize),
    Rename(String, String),
    Link(String, String),
    Unlink(String),
}

/// Names and their files.
#[derive(Clone, Debug, Default)]
pub struct State {
    pub names: BTreeMap<String, usize>,
    pub files: HashMap<usize, Arc<Vec<u8>>>,
}

/// The operations of a worker, with `true` for those made durable, and the states before each and at the end.
#[derive(Debug)]
pub struct History {
    pub actions: Vec<(Action, bool)>,
    pub states: Vec<State>,
}

/// Operations during which the origin is unreachable and cannot check who may write to its own files.
const AWAY: Range<usize> = 50..150;

/// Number of files at the origin before all work, and their size.
const OLD_FILES: usize = 4;
const OLD_BYTES: usize = 50_000;
/// Number of the first of them.
const OLD: usize = 1 << 20;

/// Returns the bytes of operation `number`, which depend on their position in the file.
pub fn bytes(number: usize, at: usize, len: usize) -> Vec<u8> {
    (at..at + len).map(|at| (number * 7 + at / 512) as u8).collect()
}

impl State {
    /// Returns the initial state.
    pub fn old() -> Self {
        let mut state = Self::default();
        for number in 0..OLD_FILES {
            state.names.insert(format!("sub/old-{number}"), OLD + number);
            state.files.insert(OLD + number, Arc::new(bytes(OLD + number, 0, OLD_BYTES)));
        }
        state
    }

    fn after(&self, number: usize, action: &Action) -> Self {
        let mut state = self.clone();
        let data = |state: &mut Self, name: &String, change: &dyn Fn(&mut Vec<u8>)| {
            let file = state.names[name];
            change(Arc::make_mut(state.files.entry(file).or_default()));
        };
        match action {
            Action::Put(name, len) => {
                state.names.insert(name.clone(), number);
                state.files.insert(number, Arc::new(bytes(number, 0, *len)));
            }
            Action::Create(name) => {
                state.names.insert(name.clone(), number);
                state.files.insert(number, Arc::default());
            }
            Action::Write(name, at, len) => data(&mut state, name, &|data| {
                data.resize(data.len().max(at + len), 0);
                data[*at..at + len].copy_from_slice(&bytes(number, *at, *len));
            }),
            Action::Resize(name, len) => data(&mut state, name, &|data| data.resize(*len, 0)),
            Action::Rename(from, to) => {
                if let Some(file) = state.names.remove(from) {
                    state.names.insert(to.clone(), file);
                }
            }
            Action::Link(from, to) => {
                state.names.insert(to.clone(), state.names[from]);
            }
            Action::Unlink(name) => drop(state.names.remove(name)),
        }
        state
    }

    /// Returns a random next operation, with `true` if it is made durable: writes always are, as a mount's
    /// kernel may defer them.
    fn choose(&self, random: &mut Rng, is_away: bool) -> (Action, bool) {
        let names = self.names.iter().filter(|(_, file)| !is_away || **file < OLD);
        let names: Vec<&String> = names.map(|(name, _)| name).collect();
        let any = |random: &mut Rng| names[random.usize(..names.len())].clone();
        let free = ('a'..='h').map(|name| format!("{}{name}", if name < 'e' { "" } else { "sub/" }));
        let free: Vec<String> = free.filter(|name| !self.names.contains_key(name)).collect();
        let free = free.get(random.usize(..free.len().max(1))).cloned();
        // Small ones go to the journal at first.
        let len = |random: &mut Rng| match random.bool() {
            true => random.usize(1..9000),
            false => random.usize(17_000..150_000),
        };
        let (one, other) = (any(random), any(random));
        match (random.u8(..16), free) {
            (0..=2, Some(free)) => (Action::Put(free, len(random)), true),
            (3 | 4, _) => (Action::Put(one, len(random)), true),
            (5, Some(free)) => (Action::Create(free), random.bool()),
            (6, Some(free)) => (Action::Link(one, free), random.bool()),
            (7, Some(free)) => (Action::Rename(one, free), random.bool()),
            // Two names of one file: a rename has no effect.
            (8, _) if self.names[&one] != self.names[&other] => (Action::Rename(one, other), random.bool()),
            (9, _) if names.len() > 4 => (Action::Unlink(one), random.bool()),
            (10, _) => (Action::Resize(one, random.usize(..60_000)), true),
            _ => (Action::Write(one, random.usize(..40_000), len(random)), true),
        }
    }
}

impl History {
    /// Returns the history of `count` operations of a worker.
    pub fn of(worker: usize, count: usize) -> Self {
        let mut random = Rng::with_seed(worker as u64);
        let (mut actions, mut states) = (Vec::new(), vec![State::old()]);
        for number in 0..count {
            let state = &states[number];
            let (action, is_durable) = state.choose(&mut random, AWAY.contains(&number));
            states.push(state.after(number, &action));
            actions.push((action, is_durable));
        }
        Self { actions, states }
    }
}
