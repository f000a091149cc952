//! `vnfs`: caches with change notifications, in parts, each with its own report.
//!
//! Named after the paper whose figures are shown in [`postmark`]: VNFS makes the pages of a host's files
//! visible to guests, and keeps caches current. The equivalents are a mount with `coherence=push` and the
//! library's `CachedTree`, which need no requests.
//!
//! To add a part: a module with `pub fn run(plan: &Plan) -> Result<Report>`, whose report
//! is named `vnfs-PART`; its sheet, `bench/tables/vnfs-PART.toml`; a line in [`PARTS`]; its rows in
//! `docs/benchmarks.md`. Missing prerequisites are reported as
//! [`Error::Absent`](crate::error::Error::Absent), or as missing columns with the reason.
//!
//! Reading order: [`small_tree`], [`mounts`]; [`client`], [`freshness`], [`price`]; the other parts in any
//! order.

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
pub mod small_tree;

pub use client::Client;

use tempfile::TempDir;

use super::mounts::Place;
use super::{Part, Plan};
use crate::error::Result;

/// Creates an empty directory on a disk; returns its parent, removed on drop, too.
fn place(plan: &Plan) -> Result<(TempDir, Place)> {
    let folder = super::folder(&plan.disk)?;
    let place = Place::new(folder.path())?;
    Ok((folder, place))
}

/// All parts in order, by name.
pub const PARTS: &[(&str, Part)] = &[
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
