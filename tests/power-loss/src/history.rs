//! What a worker does, and what the tree is after each of its operations. The same each time.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use fastrand::Rng;

/// Programs at work, each in a directory of its own.
pub const WORKERS: usize = 2;

/// One operation. Its number says what bytes it writes.
#[derive(Clone, Debug)]
pub enum Action {
    /// A new file, under a name that another may have had: written aside and moved there.
    Put(String, usize),
    Create(String),
    Write(String, usize, usize),
    Resize(String, usize),
    Rename(String, String),
    Link(String, String),
    Unlink(String),
}

/// Names, and the files that they lead to.
#[derive(Clone, Debug, Default)]
pub struct State {
    pub names: BTreeMap<String, usize>,
    pub files: HashMap<usize, Arc<Vec<u8>>>,
}

/// The operations of a worker, each with whether it is made durable, and the states before each and at the
/// end.
#[derive(Debug)]
pub struct History {
    pub actions: Vec<(Action, bool)>,
    pub states: Vec<State>,
}

/// The origin is away in these, and cannot be asked who may write to its own files.
const AWAY: Range<usize> = 50..150;

/// Files that the origin has before all work, and their size.
const OLD_FILES: usize = 4;
const OLD_BYTES: usize = 50_000;
/// They have the numbers from here on.
const OLD: usize = 1 << 20;

/// The bytes of operation `number`, which tell where in the file they belong.
pub fn bytes(number: usize, at: usize, len: usize) -> Vec<u8> {
    (at..at + len).map(|at| (number * 7 + at / 512) as u8).collect()
}

impl State {
    /// Before all work.
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

    /// The next operation, and whether it is made durable: what writes always is, since a mount's kernel may
    /// hold back what was written.
    fn choose(&self, random: &mut Rng, is_away: bool) -> (Action, bool) {
        let names = self.names.iter().filter(|(_, file)| !is_away || **file < OLD);
        let names: Vec<&String> = names.map(|(name, _)| name).collect();
        let any = |random: &mut Rng| names[random.usize(..names.len())].clone();
        let free = ('a'..='h').map(|name| format!("{}{name}", if name < 'e' { "" } else { "sub/" }));
        let free: Vec<String> = free.filter(|name| !self.names.contains_key(name)).collect();
        let free = free.get(random.usize(..free.len().max(1))).cloned();
        // Small ones lie in the journal at first.
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
            // Two names of one file: a rename does nothing.
            (8, _) if self.names[&one] != self.names[&other] => (Action::Rename(one, other), random.bool()),
            (9, _) if names.len() > 4 => (Action::Unlink(one), random.bool()),
            (10, _) => (Action::Resize(one, random.usize(..60_000)), true),
            _ => (Action::Write(one, random.usize(..40_000), len(random)), true),
        }
    }
}

impl History {
    /// Of so many operations of a worker.
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
