//! `gvfs`: a remote tree through a caching proxy, in parts, each with its own report.
//!
//! Named after the paper on GVFS (caching proxies for VMs over a WAN), whose method most parts use: a job
//! runs twice in a row, first with all caches cold, then warm, and is compared with the same job on a local
//! tree and on one mounted over the WAN link without a cache.
//!
//! To add a part: a module with `pub fn run(plan: &Plan) -> Result<Report>`, whose report
//! is named `gvfs-PART`; its sheet, `bench/tables/gvfs-PART.toml`; a line in [`PARTS`]; its rows in
//! `docs/benchmarks.md`. Missing prerequisites are reported as
//! [`Error::Absent`](crate::error::Error::Absent), or as missing columns with the reason.
//!
//! Reading order: [`site`] (tree, WAN link and columns), [`twice`] (the two runs of a job), the parts in any
//! order; [`vm`] has the paper's own jobs in virtual machines, and [`clone`](mod@clone) clones machines.

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

use super::{Part, Plan};

pub use build::Source;
pub use clone::answered;

/// All parts in order, by name.
pub const PARTS: &[(&str, Part)] = &[
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
