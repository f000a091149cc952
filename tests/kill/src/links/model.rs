//! Actions of a client, and the state that they must lead to.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use fastrand::Rng;

/// One operation. Names are numbers that are never reused, so that only a second execution explains a
/// failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Create a directory of this number.
    Mkdir(u64),
    /// Remove it.
    Rmdir(u64),
    /// Create a file of this number, which must not exist.
    Create(u64),
    /// Remove it.
    Unlink(u64),
    /// Rename the first number to the second.
    Rename(u64, u64),
    /// Append the record of this number to the log in the tree, from this byte of the record on.
    Append(u64, u64),
    /// Overwrite this block with this number, durably.
    Write(u64, u64),
}

/// Number of blocks, which are overwritten repeatedly.
pub const BLOCKS: u64 = 16;

/// Maximum number of names at a time.
const NAMES_MAX: usize = 40;

impl Action {
    /// Parses the output of [`Display`](fmt::Display).
    pub fn read(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let what = words.next()?;
        let mut number = || words.next()?.parse().ok();
        Some(match what {
            "mkdir" => Self::Mkdir(number()?),
            "rmdir" => Self::Rmdir(number()?),
            "create" => Self::Create(number()?),
            "unlink" => Self::Unlink(number()?),
            "rename" => Self::Rename(number()?, number()?),
            "append" => Self::Append(number()?, number()?),
            "write" => Self::Write(number()?, number()?),
            _ => return None,
        })
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mkdir(name) => write!(f, "mkdir {name}"),
            Self::Rmdir(name) => write!(f, "rmdir {name}"),
            Self::Create(name) => write!(f, "create {name}"),
            Self::Unlink(name) => write!(f, "unlink {name}"),
            Self::Rename(from, to) => write!(f, "rename {from} {to}"),
            Self::Append(record, from) => write!(f, "append {record} {from}"),
            Self::Write(block, number) => write!(f, "write {block} {number}"),
        }
    }
}

/// Required content of the tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Model {
    /// Names, with `true` for directories.
    pub names: BTreeMap<u64, bool>,
    /// The number last written to each block.
    pub blocks: BTreeMap<u64, u64>,
    /// Answered appends in order: record, first byte in it, and number of bytes.
    pub records: Vec<(u64, u64, u64)>,
    /// Actions of unknown outcome: the client was killed during them.
    pub doubts: Vec<Action>,
}

impl Model {
    /// Applies an action that was done, with `count` bytes for an append.
    pub fn apply(&mut self, action: Action, count: u64) {
        match action {
            Action::Mkdir(name) => drop(self.names.insert(name, true)),
            Action::Create(name) => drop(self.names.insert(name, false)),
            Action::Rmdir(name) | Action::Unlink(name) => drop(self.names.remove(&name)),
            Action::Rename(from, to) => {
                if let Some(kind) = self.names.remove(&from) {
                    self.names.insert(to, kind);
                }
            }
            Action::Append(record, from) => self.records.push((record, from, count)),
            Action::Write(block, number) => drop(self.blocks.insert(block, number)),
        }
    }

    /// Registers an action of unknown outcome. Its objects are not used from now on.
    pub fn doubt(&mut self, action: Action) {
        match action {
            Action::Rmdir(name) | Action::Unlink(name) | Action::Rename(name, _) => {
                self.names.remove(&name);
            }
            _ => {}
        }
        self.doubts.push(action);
    }

    /// Returns the blocks that may still change until the server is restarted.
    fn unsettled_blocks(&self) -> BTreeSet<u64> {
        let block = |action: &Action| if let Action::Write(block, _) = action { Some(*block) } else { None };
        self.doubts.iter().filter_map(block).collect()
    }

    /// Returns a random request, number `number`.
    pub fn choose(&self, number: u64, random: &mut Rng) -> Action {
        let some = |random: &mut Rng| {
            let at = random.usize(..self.names.len());
            self.names.iter().nth(at).map(|(name, is_dir)| (*name, *is_dir))
        };
        match random.u64(..10) {
            0..=2 => Action::Append(number, 0),
            3 => {
                let unsettled = self.unsettled_blocks();
                let free: Vec<u64> = (0..BLOCKS).filter(|block| !unsettled.contains(block)).collect();
                match free.get(random.usize(..free.len().max(1))) {
                    Some(block) => Action::Write(*block, number),
                    None => Action::Append(number, 0),
                }
            }
            kind if self.names.is_empty() || kind < 6 && self.names.len() < NAMES_MAX => {
                if kind == 4 {
                    Action::Mkdir(number)
                } else {
                    Action::Create(number)
                }
            }
            kind => match some(random) {
                Some((name, _)) if kind < 8 => Action::Rename(name, number),
                Some((name, true)) => Action::Rmdir(name),
                Some((name, false)) => Action::Unlink(name),
                None => Action::Mkdir(number),
            },
        }
    }
}
