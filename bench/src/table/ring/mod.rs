//! `ring`: shared-memory links, in parts, each with its own report.
//!
//! The server is `tombolo serve`, on its own core; it waits as its clients do, so there is one for each way
//! to wait. The caller is `back/vrpc-client`, as in a program that uses the library. All contestants of a
//! part are interleaved.
//!
//! To add a part: a module with `pub fn run(plan: &Plan) -> Result<Report>`, whose report is named
//! `ring-PART`; its sheet, `bench/tables/ring-PART.toml`; a line in [`PARTS`]; its rows in
//! `docs/benchmarks.md`. Missing prerequisites are reported as
//! [`Error::Absent`](crate::error::Error::Absent), and the part is skipped. With [`Plan::quick`] a part takes
//! a second or two.
//!
//! Reading order: [`endpoint`], [`session`], [`bare`]; [`speed`]; the other parts in any order.

mod bare;
mod chain;
mod copies;
mod endpoint;
mod guest;
mod guest_bell;
mod guest_client;
mod line;
mod native;
mod nfs;
mod rest;
mod session;
mod speed;
mod table_6_1;
#[cfg(test)]
mod test_server;

pub use endpoint::Endpoint;
pub use guest_client::serve_orders;

use std::path::Path;

use tombolo_shm::doorbell::Mode;

use super::{Part, Plan};
use crate::error::{Result, wrong};
use crate::measure::Clock;
use crate::peer::Shm;

/// All parts in order, by name.
pub const PARTS: &[(&str, Part)] = &[
    ("speed", speed::run),
    ("rest", rest::run),
    ("table-6.1", table_6_1::run),
    ("mounts", super::mount::over_links),
    ("copies", copies::run),
    ("chain", chain::run),
    ("guest", guest::run),
    ("guest-bell", guest_bell::run),
    ("nfs", nfs::run),
];

/// Name of the file that is read and written.
const FILE: &str = "data";
const FILE_BYTES: usize = 1 << 20;

/// Measured waiting modes, and those that sleep.
const MODES: [Mode; 3] = [Mode::Poll, Mode::Event, Mode::Adaptive];
const SLEEPERS: [Mode; 2] = [Mode::Event, Mode::Adaptive];

/// Starts a server of `shared` for each way to wait, at a socket in `folder`.
fn servers(shared: &Path, folder: &Path) -> Result<Vec<(Mode, Shm)>> {
    let start = |mode: Mode| Ok((mode, Shm::waiting(shared, &folder.join(mode.name()), mode)?));
    MODES.into_iter().map(start).collect()
}

/// Number of short operations per reading of the clock, and of untimed ones per turn.
const AT_ONCE: u64 = 8;
const WARM: u64 = 100;
/// Size from which an operation is timed individually and reported as a rate.
const LARGE_BYTES: usize = 64 << 10;

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
