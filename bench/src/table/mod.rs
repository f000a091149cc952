//! One module per table. Each creates a [`Report`](crate::report::Report) and defines its targets.

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

/// Thoroughness and location of measurements.
#[derive(Clone, Debug)]
pub struct Plan {
    /// `true` for a smoke test of two short rounds.
    pub quick: bool,
    pub rounds: usize,
    /// `true` if the number was given: slow tables have fewer by default.
    pub rounds_given: bool,
    pub turn: Duration,
    /// Parent of the served tree.
    pub within: PathBuf,
    /// Command line for the report.
    pub command: String,
}

impl Plan {
    pub fn contest(&self) -> Contest {
        let (rounds, turn) = (self.rounds, self.turn);
        Contest { rounds, turn, count_max: 200_000, costs: true, count_syscalls: !self.quick }
    }

    /// Returns a contest that measures time alone.
    pub fn timed(&self) -> Contest {
        Contest { costs: false, count_syscalls: false, ..self.contest() }
    }

    /// Creates a report with the command line.
    pub fn report(&self, name: &str, title: &str) -> Report {
        Report::new(name, title, self.command.clone(), self.quick)
    }

    /// Creates a temporary folder, removed on drop.
    pub fn folder(&self) -> Result<TempDir> {
        folder(&self.within)
    }

    /// Returns the number of rounds of a slow table, unless another was given.
    pub fn rounds_of(&self, few: usize) -> usize {
        if self.quick || self.rounds_given { self.rounds } else { few }
    }

    /// Returns the smaller number in a smoke test.
    pub fn scaled(&self, full: usize, quick: usize) -> usize {
        if self.quick { quick } else { full }
    }
}

/// Creates a temporary folder below another.
pub fn folder(within: &Path) -> Result<TempDir> {
    let made = tempfile::Builder::new().prefix("tombolo-bench.").tempdir_in(within);
    made.doing_to("make a directory in", within)
}

/// Calls `make` with the name of each selected part of a table (all, if none is named).
fn each_part<P>(
    parts: &[(&str, P)],
    only: &[String],
    mut make: impl FnMut(&str, &P) -> Result<()>,
) -> Result<()> {
    if let Some(unknown) = only.iter().find(|name| parts.iter().all(|(part, _)| part != name)) {
        let parts: Vec<_> = parts.iter().map(|(part, _)| *part).collect();
        let what = format!("no part {unknown}; available: {}", parts.join(", "));
        return Err(Error::Absent(what));
    }
    for (name, part) in parts {
        if only.is_empty() || only.iter().any(|wanted| wanted == name) {
            make(name, part)?;
        }
    }
    Ok(())
}
