//! Cases against the block waist.

mod bench;
mod cases;
mod walk;

use std::sync::Arc;

use tombolo_core::block::BlockDevice;

pub use bench::Bench;

pub use crate::report::{Report, Skip, Verdict};

/// Size of the disks of most cases, in bytes.
pub const SIZE_BYTES: u64 = 4 << 20;

/// A disk that a case needs. It reads as zeroes, and is the case's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Its length, in bytes.
    pub size_bytes: u64,
    /// `true` if the disk must refuse every change.
    pub read_only: bool,
}

/// One case.
pub struct Case {
    /// Name of the case.
    pub name: &'static str,
    /// `true` if the disk is read-only.
    read_only: bool,
    run: fn(&Bench) -> Verdict,
}

/// Runs all cases, or the one named by `TOMBOLO_ONLY_CASE`, each on a disk of its own.
///
/// # Panics
/// If no case has that name.
pub fn run(make: impl Fn(Wanted) -> Arc<dyn BlockDevice>) -> Report {
    let only = std::env::var("TOMBOLO_ONLY_CASE").ok();
    let wanted = |case: &&Case| only.as_deref().is_none_or(|only| only == case.name);
    let mut report = Report::default();
    for case in cases::CASES.iter().chain(walk::CASES).filter(wanted) {
        report.run(case.name, || {
            let disk = make(Wanted { size_bytes: SIZE_BYTES, read_only: case.read_only });
            (case.run)(&Bench::new(disk))
        });
    }
    assert!(!(report.passed.is_empty() && report.failed.is_empty()), "there is no case {only:?}");
    report
}

/// Table of cases by function name.
macro_rules! table {
    ($($(#$read_only:ident)? $name:ident),+ $(,)?) => {
        pub(super) const CASES: &[$crate::disk::Case] = &[
            $($crate::disk::Case {
                name: concat!("disk::", stringify!($name)),
                read_only: stringify!($($read_only)?).len() > 0,
                run: |bench| $crate::report::IntoVerdict::into_verdict($name(bench)),
            }),+
        ];
    };
}
use table;
