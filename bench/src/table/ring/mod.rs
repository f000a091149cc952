//! `ring`: shared-memory links, in parts, each with its own report.
//!
//! The server is this program again, on its own core: local-dir behind `front/vrpc-server`. The caller is
//! `back/vrpc-client`, as in a program that uses the library. All contestants of a part are interleaved.
//!
//! To add a part: a module with `pub fn run(plan: &Plan) -> Result<Report>`, whose report is named
//! `ring-PART` and states its targets with [`Report::target`]; a line in [`PARTS`]; its rows in
//! `docs/benchmarks.md`. Missing prerequisites are reported as [`Error::Absent`], and the part is skipped.
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

/// All parts in order, by name.
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

/// Name of the only export, and of the file that is read and written.
const EXPORT: &str = "bench";
const FILE: &str = "data";
const FILE_BYTES: usize = 1 << 20;

/// Number of short operations per reading of the clock, and of untimed ones per turn.
const AT_ONCE: u64 = 8;
const WARM: u64 = 100;
/// Size from which an operation is timed individually and reported as a rate.
const LARGE_BYTES: usize = 64 << 10;

/// Passes the report of each selected part (all, if none is named) to `done`, or the reason why this machine
/// cannot measure it.
pub fn run(
    plan: &Plan,
    only: &[String],
    mut done: impl FnMut(&str, Result<Report>) -> Result<()>,
) -> Result<()> {
    super::each_part(PARTS, only, |name, part| done(name, part(plan)))
}

/// Returns how many operations of this size are timed together.
fn at_once(bytes: usize) -> u64 {
    if bytes < LARGE_BYTES { AT_ONCE } else { 1 }
}

/// Returns the bytes per operation, if its figure is a rate.
fn rated(bytes: usize) -> Option<u64> {
    (bytes >= LARGE_BYTES).then_some(bytes as u64)
}

/// Runs an operation at least `count` times, `at_once` per reading of the clock, after a warm-up.
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
