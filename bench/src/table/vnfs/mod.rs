//! `vnfs`: caches with change notifications, in parts, each with its own report.
//!
//! Named after the paper whose figures are shown in [`postmark`]: VNFS makes the pages of a host's files
//! visible to guests, and keeps caches current. The equivalents are a mount with `coherence=push` and the
//! library's `CachedTree`, which need no requests.
//!
//! To add a part: a module with `pub fn run(plan: &Plan, wanted: &VnfsArgs) -> Result<Report>`, whose report
//! is named `vnfs-PART`; a line in [`PARTS`]; its rows in `docs/benchmarks.md`. Missing prerequisites are
//! reported as [`Error::Absent`](crate::error::Error::Absent), or as missing columns with the reason.
//!
//! Reading order: [`sides`], [`small_tree`], [`mounts`]; [`client`], [`freshness`], [`price`]; the other
//! parts in any order.

mod build;
mod calls;
mod client;
mod clients;
mod freshness;
mod guest_nfs;
mod library;
mod line;
mod mounts;
mod postmark;
mod price;
pub mod programs;
mod sides;
pub mod small_tree;

use super::Plan;
use crate::args::VnfsArgs;
use crate::error::Result;
use crate::report::Report;

pub use sides::Column;

type Part = fn(&Plan, &VnfsArgs) -> Result<Report>;

/// All parts in order, by name.
const PARTS: &[(&str, Part)] = &[
    ("mounts", mounts::run),
    ("freshness", freshness::run),
    ("price", price::run),
    ("library", library::run),
    ("line", line::run),
    ("postmark", postmark::run),
    ("build", build::run),
    ("calls", calls::run),
    ("clients", clients::run),
    ("guest-nfs", guest_nfs::run),
];

/// Passes the report of each selected part to `done`, or the reason why this machine cannot measure it.
pub fn run(
    plan: &Plan,
    wanted: &VnfsArgs,
    mut done: impl FnMut(&str, Result<Report>) -> Result<()>,
) -> Result<()> {
    super::each_part(PARTS, &wanted.only, |name, part| done(name, part(plan, wanted)))
}
