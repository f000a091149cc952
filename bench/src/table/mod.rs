//! One module per table. Each makes a [`Report`](crate::report::Report), and knows its targets.

pub mod atomic;
pub mod disk;
pub mod guest;
pub mod guest_disk;
pub mod gvfs;
pub mod memory;
pub mod mount;
pub mod nbd;
pub mod nfs;
pub mod ring;
pub mod virtio;
pub mod vnfs;
pub mod waist;

use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use crate::error::{Doing, Error, Result};
use crate::measure::Contest;
use crate::report::Report;

/// How thoroughly to measure, and where.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Only see that it runs: two short rounds.
    pub quick: bool,
    pub rounds: usize,
    /// Whether that number was asked for: tables whose rounds take long have fewer by themselves.
    pub rounds_given: bool,
    pub turn: Duration,
    /// Below which directory the served tree is made.
    pub within: PathBuf,
    /// The command line, for the report.
    pub command: String,
}

impl Plan {
    pub fn contest(&self) -> Contest {
        let (rounds, turn) = (self.rounds, self.turn);
        Contest { rounds, turn, count_max: 200_000, costs: true, count_syscalls: !self.quick }
    }

    /// The same where only time counts.
    pub fn timed(&self) -> Contest {
        Contest { costs: false, count_syscalls: false, ..self.contest() }
    }

    /// A report that names the command line.
    pub fn report(&self, name: &str, title: &str) -> Report {
        Report::new(name, title, self.command.clone(), self.quick)
    }

    /// A folder of the run's own, which is removed when dropped.
    pub fn folder(&self) -> Result<TempDir> {
        folder(&self.within)
    }

    /// How many rounds a table makes whose rounds take long, unless another number was asked for.
    pub fn rounds_of(&self, few: usize) -> usize {
        if self.quick || self.rounds_given { self.rounds } else { few }
    }

    /// A smaller number when it is only to see that it runs.
    pub fn scaled(&self, full: usize, quick: usize) -> usize {
        if self.quick { quick } else { full }
    }
}

/// A folder of the run's own below another.
pub fn folder(within: &Path) -> Result<TempDir> {
    let made = tempfile::Builder::new().prefix("tombolo-bench.").tempdir_in(within);
    made.doing_to("make a directory in", within)
}

/// Hands each part of a table that is wanted (all, if none is named) to `make`, with its name.
fn each_part<P>(
    parts: &[(&str, P)],
    only: &[String],
    mut make: impl FnMut(&str, &P) -> Result<()>,
) -> Result<()> {
    if let Some(unknown) = only.iter().find(|name| parts.iter().all(|(part, _)| part != name)) {
        let parts: Vec<_> = parts.iter().map(|(part, _)| *part).collect();
        let what = format!("there is no part {unknown}, but {}", parts.join(", "));
        return Err(Error::Absent(what));
    }
    for (name, part) in parts {
        if only.is_empty() || only.iter().any(|wanted| wanted == name) {
            make(name, part)?;
        }
    }
    Ok(())
}
