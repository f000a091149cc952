//! Cases against a mounted directory.

mod cases;
pub mod helper;
mod world;

use std::io;
use std::path::Path;

pub use world::World;

use crate::report::{Report, Skip, Verdict};

/// One case.
#[derive(Clone, Copy)]
pub struct Case {
    /// Name of the case: `group::function`.
    pub name: &'static str,
    /// `true` if only the superuser can run the case.
    pub root: bool,
    /// Passes, skips, or panics.
    pub run: fn(&World) -> Verdict,
}

/// Runs the cases whose names contain `only` and none of `except`, in directories of their own inside `dir`,
/// which are removed afterwards.
pub fn run(dir: &Path, only: &str, except: &[String]) -> io::Result<Report> {
    let dir = dir.canonicalize()?;
    // The cases set their modes; the caller's umask must not apply.
    rustix::process::umask(rustix::fs::Mode::empty());
    let is_root = rustix::process::geteuid().is_root();
    let is_wanted = |name: &str| name.contains(only) && !except.iter().any(|text| name.contains(text));
    let mut report = Report::default();
    let cases = cases::GROUPS.iter().flat_map(|group| group.iter());
    for (index, case) in cases.filter(|case| is_wanted(case.name)).enumerate() {
        report.run(case.name, || {
            if case.root && !is_root {
                return Err(Skip("needs the superuser".into()));
            }
            (case.run)(&World::new(&dir, index))
        });
    }
    Ok(report)
}
