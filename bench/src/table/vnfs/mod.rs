//! `vnfs`: caches that are told of changes, in parts, each of which is a report of its own.
//!
//! The name is that of the paper whose figures [`postmark`] is printed beside: VNFS keeps the pages of a
//! host's files visible to guests, and what is cached current. Here a mount with `coherence=push` and the
//! library's `CachedTree` do without asking.
//!
//! To add a part: a module with `pub fn run(plan: &Plan, wanted: &VnfsArgs) -> Result<Report>`, whose report
//! is called `vnfs-PART`; a line in [`PARTS`]; its rows in `docs/benchmarks.md`. What the machine lacks is an
//! [`Error::Absent`](crate::error::Error::Absent), or a column that is not there and why.
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

/// All parts by name, in the order in which they are made.
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

/// Hands each part that is wanted to `done`; what this machine cannot do too.
pub fn run(
    plan: &Plan,
    wanted: &VnfsArgs,
    mut done: impl FnMut(&str, Result<Report>) -> Result<()>,
) -> Result<()> {
    super::each_part(PARTS, &wanted.only, |name, part| done(name, part(plan, wanted)))
}
