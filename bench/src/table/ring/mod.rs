//! `ring`: links in shared memory, in parts, each of which is a report of its own.
//!
//! The server is this program once more, on a core of its own: local-dir behind `front/vrpc-server`. The
//! caller is `back/vrpc-client`, as a program has it that calls the library. All contestants of a part take
//! turns in one contest.
//!
//! To add a part: a module with `pub fn run(plan: &Plan) -> Result<Report>`, whose report is called
//! `ring-PART` and states what it was to reach with [`Report::target`]; a line in [`PARTS`]; its rows in
//! `docs/benchmarks.md`. What the machine lacks is an [`Error::Absent`]: the part is left out then, in words.
//! With [`Plan::quick`] a part takes a second or two.
//!
//! Reading order: [`server`], [`endpoint`], [`session`], [`bare`]; `speed` and `targets`; the other parts in
//! any order.

mod bare;
mod chain;
mod copies;
mod endpoint;
mod guest;
mod guest_client;
mod idle_client;
mod line;
mod mounts;
mod native;
mod nfs;
mod rest;
mod server;
mod session;
mod speed;
mod table_6_1;
mod targets;

pub use guest_client::serve_orders;
pub use idle_client::idle;
pub use server::{EndpointKind, serve};

use super::Plan;
use crate::error::{Result, wrong};
use crate::measure::Clock;
use crate::report::Report;

pub type Part = fn(&Plan) -> Result<Report>;

/// All parts by name, in the order in which they are made.
pub const PARTS: &[(&str, Part)] = &[
    ("speed", speed::run),
    ("rest", rest::run),
    ("table-6.1", table_6_1::run),
    ("mounts", mounts::run),
    ("copies", copies::run),
    ("chain", chain::run),
    ("guest", guest::run),
    ("nfs", nfs::run),
];

/// The only export, and the file that is read and written.
const EXPORT: &str = "bench";
const FILE: &str = "data";
const FILE_BYTES: usize = 1 << 20;

/// Operations between two looks at the clock, where they are short; and those of a turn that are not timed.
const AT_ONCE: u64 = 8;
const WARM: u64 = 100;
/// From so many bytes on an operation is timed alone, and its figure is a rate.
const LARGE_BYTES: usize = 64 << 10;

/// Hands each part that is wanted (all, if none is named) to `done`; what this machine cannot do too.
pub fn run(
    plan: &Plan,
    only: &[String],
    mut done: impl FnMut(&str, Result<Report>) -> Result<()>,
) -> Result<()> {
    super::each_part(PARTS, only, |name, part| done(name, part(plan)))
}

/// How many operations of so many bytes are timed together.
fn at_once(bytes: usize) -> u64 {
    if bytes < LARGE_BYTES { AT_ONCE } else { 1 }
}

/// Bytes that an operation moves, where its figure is a rate.
fn rated(bytes: usize) -> Option<u64> {
    (bytes >= LARGE_BYTES).then_some(bytes as u64)
}

/// Does it at least `count` times, `at_once` between two looks at the clock, after some that are not timed.
#[inline]
fn timed_by(at_once: u64, count: u64, clock: &mut Clock, mut once: impl FnMut() -> Result<()>) -> Result<()> {
    for _ in 0..count.min(WARM) {
        once()?;
    }
    clock.start();
    for _ in 0..count.div_ceil(at_once).max(1) {
        for _ in 0..at_once {
            once()?;
        }
        clock.lap_of(at_once);
    }
    Ok(())
}
