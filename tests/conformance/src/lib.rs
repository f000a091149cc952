//! Conformance suites of Tombolo's file systems and disks.
//!
//! - [`waist`]: cases against an [`Export`](tombolo_core::fs::Export): every operation, every documented
//!   error, and guarantees to users. Run over every back end, bare and under layers.
//! - [`disk`]: cases against a [`BlockDevice`](tombolo_core::block::BlockDevice), run over every disk.
//! - [`posix`]: cases against a mounted directory, by system calls only: the program `tombolo-conformance
//!   DIR`. Run on plain file systems (where all pass: they are the oracle), through FUSE mounts, and inside
//!   guests.
//! - [`walk`]: random changes by several mounts of one directory and by the host: the program
//!   `tombolo-conformance --walk`.
//!
//! A case is a function with a name. It passes, fails (by a panic with the reason), or is skipped with a
//! reason.
#![forbid(unsafe_code)]

pub mod disk;
pub mod posix;
mod report;
pub mod waist;
pub mod walk;

pub use report::{Report, Skip, Verdict};

/// Returns `true` in the long run (`make test-long`), which uses full sizes.
pub fn is_long_run() -> bool {
    std::env::var_os("TOMBOLO_LONG").is_some()
}
