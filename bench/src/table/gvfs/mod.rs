//! `gvfs`: a far tree through a caching proxy, in parts, each of which is a report of its own.
//!
//! The name is that of the paper whose way to measure this is: each job runs twice in a row, first with every
//! cache cold, then with all warm, beside the same job on a local tree and on one that is mounted over the
//! line without a cache.
//!
//! To add a part: a module with `pub fn run(plan: &Plan, wanted: &GvfsArgs) -> Result<Report>`, whose report
//! is called `gvfs-PART`; a line in [`PARTS`]; its rows in `docs/benchmarks.md`. What the machine lacks is an
//! [`Error::Absent`](crate::error::Error::Absent), or a column that is not there and why.
//!
//! Reading order: [`site`] (the tree, the line and the columns), [`twice`] (a job's two runs), the parts in
//! any order; [`vm`] has the paper's own, in virtual machines, and [`clone`](mod@clone) makes such.

mod build;
mod clone;
mod peers;
mod site;
mod store;
mod stream;
mod tls;
mod twice;
mod vm;
mod walk;
mod warm;
mod write;

use super::Plan;
use crate::args::GvfsArgs;
use crate::error::Result;
use crate::report::Report;

pub use build::Source;
pub use clone::answered;
pub use site::Column;

type Part = fn(&Plan, &GvfsArgs) -> Result<Report>;

/// All parts by name, in the order in which they are made.
const PARTS: &[(&str, Part)] = &[
    ("walk", walk::run),
    ("stream", stream::run),
    ("build", build::run),
    ("warm", warm::run),
    ("write", write::run),
    ("store", store::run),
    ("tls", tls::run),
    ("vm-build", vm::build),
    ("vm-latex", vm::latex),
    ("vm-seismic", vm::seismic),
    ("clone", clone::run),
    ("clone-s1", clone::s1),
    ("clone-s2", clone::s2),
    ("clone-p", clone::p),
];

/// Hands each part that is wanted to `done`; what this machine cannot do too.
pub fn run(
    plan: &Plan,
    wanted: &GvfsArgs,
    mut done: impl FnMut(&str, Result<Report>) -> Result<()>,
) -> Result<()> {
    super::each_part(PARTS, &wanted.only, |name, part| done(name, part(plan, wanted)))
}
