//! A tree before and after each of a history's changes, for comparison with what a power loss has left of it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use fastrand::Rng;

/// A change. The bytes that it writes depend on its number.
#[derive(Clone, Debug)]
pub enum Change {
    /// A new file, possibly replacing another: written under a temporary name and renamed.
    Put(String, usize),
    /// A new, empty file.
    Create(String),
    /// Offset and length.
    Write(String, usize, usize),
    /// Another length.
    Resize(String, usize),
    /// Another name, possibly replacing that of another file.
    Rename(String, String),
    /// One more name.
    Link(String, String),
    /// The end of a name.
    Unlink(String),
    /// Nothing but fsync of a file.
    Sync(String),
}

/// Names and their files.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// Paths, with the number of the file.
    pub names: BTreeMap<String, usize>,
    /// Contents.
    pub files: HashMap<usize, Arc<Vec<u8>>>,
}

/// Returns the bytes of change `number`, which depend on their position in the file.
pub fn bytes(number: usize, at: usize, len: usize) -> Vec<u8> {
    (at..at + len).map(|at| (number * 7 + at / 512) as u8).collect()
}

impl State {
    /// Adds a file of the number, whose bytes are those of a change of that number.
    pub fn add(&mut self, name: String, number: usize, len: usize) {
        self.names.insert(name, number);
        self.files.insert(number, Arc::new(bytes(number, 0, len)));
    }

    /// Returns the state after a change.
    pub fn after(&self, number: usize, change: &Change) -> Self {
        let mut state = self.clone();
        let data = |state: &mut Self, name: &String, change: &dyn Fn(&mut Vec<u8>)| {
            let file = state.names[name];
            change(Arc::make_mut(state.files.entry(file).or_default()));
        };
        match change {
            Change::Put(name, len) => state.add(name.clone(), number, *len),
            Change::Create(name) => state.add(name.clone(), number, 0),
            Change::Write(name, at, len) => data(&mut state, name, &|data| {
                data.resize(data.len().max(at + len), 0);
                data[*at..at + len].copy_from_slice(&bytes(number, *at, *len));
            }),
            Change::Resize(name, len) => data(&mut state, name, &|data| data.resize(*len, 0)),
            Change::Rename(from, to) => {
                if let Some(file) = state.names.remove(from) {
                    state.names.insert(to.clone(), file);
                }
            }
            Change::Link(from, to) => {
                state.names.insert(to.clone(), state.names[from]);
            }
            Change::Unlink(name) => drop(state.names.remove(name)),
            Change::Sync(_) => {}
        }
        state
    }

    /// Samples a change of the files for which `is_known` returns `true`: puts or, if not `puts`, syncs.
    pub fn choose(&self, random: &mut Rng, puts: bool, is_known: impl Fn(usize) -> bool) -> Change {
        let names = self.names.iter().filter(|(_, file)| is_known(**file));
        let names: Vec<&String> = names.map(|(name, _)| name).collect();
        let any = |random: &mut Rng| names[random.usize(..names.len())].clone();
        let free = ('a'..='h').map(|name| format!("{}{name}", if name < 'e' { "" } else { "sub/" }));
        let free: Vec<String> = free.filter(|name| !self.names.contains_key(name)).collect();
        let free = free.get(random.usize(..free.len().max(1))).cloned();
        // Small ones go to a journal at first.
        let len = |random: &mut Rng| match random.bool() {
            true => random.usize(1..9000),
            false => random.usize(17_000..if puts { 150_000 } else { 50_000 }),
        };
        let (one, other) = (any(random), any(random));
        match (random.u8(..16), free) {
            (0..=2, Some(free)) if puts => Change::Put(free, len(random)),
            (3 | 4, _) if puts => Change::Put(one, len(random)),
            (0..=2 | 5, Some(free)) => Change::Create(free),
            (6, Some(free)) => Change::Link(one, free),
            (7, Some(free)) => Change::Rename(one, free),
            // Two names of one file: a rename has no effect.
            (8, _) if self.names[&one] != self.names[&other] => Change::Rename(one, other),
            (9, _) if names.len() > 4 => Change::Unlink(one),
            (10, _) => Change::Resize(one, random.usize(..60_000)),
            (11, _) if !puts => Change::Sync(one),
            _ => Change::Write(one, random.usize(..40_000), len(random)),
        }
    }
}

/// Properties that a power loss may give to files changed since their last stable state.
#[derive(Clone, Copy, Debug)]
pub struct Loss {
    /// The length of any of their states.
    pub lengths: bool,
    /// Zeroes where a state ends.
    pub zeroes: bool,
}

/// Describes why a tree is none of these states: it must have the names of the first, and each file a length
/// and bytes that it has then or later.
pub fn difference(found: &BTreeMap<String, Vec<u8>>, all: &[State], loss: Loss) -> Option<String> {
    let names = &all[0].names;
    if !names.keys().eq(found.keys()) {
        return Some(format!("{:?} and not {:?}", found.keys(), names.keys()));
    }
    for (name, bytes) in found {
        let file = names[name];
        let versions: Vec<_> = all.iter().filter_map(|state| state.files.get(&file)).collect();
        let lens = || versions.iter().take(if loss.lengths { versions.len() } else { 1 }).map(|it| it.len());
        if bytes.len() < lens().min()? || bytes.len() > lens().max()? {
            return Some(format!("{name} has {} bytes and not {}", bytes.len(), versions[0].len()));
        }
        let is_none = |(at, byte): &(usize, &u8)| {
            let is_at_end = || versions.iter().any(|version| version.len() <= *at);
            let is_one = versions.iter().any(|version| version.get(*at) == Some(*byte));
            !(is_one || loss.zeroes && **byte == 0 && is_at_end())
        };
        if let Some((at, byte)) = bytes.iter().enumerate().find(is_none) {
            return Some(format!("{name} has {byte} at {at}, and not {:?}", versions[0].get(at)));
        }
    }
    None
}
