//! One module per table. Each measures the rows and columns of its sheet, `bench/tables/NAME.toml`, and
//! creates a [`Report`].

pub mod atomic;
pub mod guest;
pub mod gvfs;
pub mod memory;
pub mod mounts;
pub mod nfs;
pub mod ring;
pub mod sockets;
pub mod vnfs;
pub mod waist;

use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;

pub use crate::args::Plan;
use crate::error::{Doing, Error, Result};
use crate::measure::Contest;
use crate::report::Report;

/// Table or part of one.
pub type Part = fn(&Plan) -> Result<Report>;

impl Plan {
    pub fn rounds(&self) -> usize {
        self.rounds_given.unwrap_or(if self.quick { 2 } else { 15 }).max(1)
    }

    pub fn contest(&self) -> Contest {
        let turn_ms = self.turn_ms.unwrap_or(if self.quick { 4 } else { 40 });
        let (rounds, turn) = (self.rounds(), Duration::from_millis(turn_ms.max(1)));
        Contest { rounds, turn, count_max: 200_000, costs: true, count_syscalls: !self.quick }
    }

    /// Returns a contest that measures time alone.
    pub fn timed(&self) -> Contest {
        Contest { costs: false, count_syscalls: false, ..self.contest() }
    }

    /// Returns `quick` in a smoke test, otherwise `full`.
    pub fn scaled(&self, full: usize, quick: usize) -> usize {
        if self.quick { quick } else { full }
    }

    /// Returns those of `all` columns that `--column` selects by name: all of them unless it selects some.
    pub fn columns<C: Clone>(&self, all: &[C], name: impl Fn(&C) -> String) -> Result<Vec<C>> {
        let is_wanted = |column: &&C| self.column.is_empty() || self.column.contains(&name(column));
        let wanted: Vec<C> = all.iter().filter(is_wanted).cloned().collect();
        if wanted.is_empty() {
            let known: Vec<String> = all.iter().map(name).collect();
            return Err(Error::Absent(format!("no such columns; available: {}", known.join(", "))));
        }
        Ok(wanted)
    }
}

/// Creates a temporary folder below another.
pub fn folder(within: &Path) -> Result<TempDir> {
    let made = tempfile::Builder::new().prefix("tombolo-bench.").tempdir_in(within);
    made.doing_to("make a directory in", within)
}

/// Returns the selected parts of a table (all, if none is named).
pub fn wanted<P: Copy>(parts: &[(&'static str, P)], only: &[String]) -> Result<Vec<(&'static str, P)>> {
    let only: Vec<&str> = only.iter().flat_map(|names| names.split(',')).collect();
    if let Some(unknown) = only.iter().find(|name| parts.iter().all(|(part, _)| part != *name)) {
        let parts: Vec<_> = parts.iter().map(|(part, _)| *part).collect();
        let what = format!("no part {unknown}; available: {}", parts.join(", "));
        return Err(Error::Absent(what));
    }
    Ok(parts.iter().copied().filter(|(name, _)| only.is_empty() || only.contains(name)).collect())
}
