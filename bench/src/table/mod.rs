//! One module per table. Each makes a [`Report`](crate::report::Report), and knows its aims.

pub mod atomic;
pub mod guest;
pub mod memory;
pub mod mount;
pub mod nfs;
pub mod ring;
pub mod table_6_2;
pub mod virtio;
pub mod waist;

use std::path::PathBuf;
use std::time::Duration;

use crate::measure::Contest;

/// How thoroughly to measure, and where.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Only see that it runs: two short rounds.
    pub quick: bool,
    /// How many rounds.
    pub rounds: usize,
    /// Whether that number was asked for: tables whose rounds take long have fewer by themselves.
    pub rounds_given: bool,
    /// How long a turn shall be.
    pub turn: Duration,
    /// Below which directory the served tree is made.
    pub within: PathBuf,
    /// The command line, for the report.
    pub command: String,
}

impl Plan {
    /// Turns of the usual kind.
    pub fn contest(&self) -> Contest {
        Contest { rounds: self.rounds, turn: self.turn, count_max: 200_000, count_syscalls: !self.quick }
    }

    /// A smaller number when it is only to see that it runs.
    pub fn scaled(&self, full: usize, quick: usize) -> usize {
        if self.quick { quick } else { full }
    }
}
