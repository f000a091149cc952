//! Cases against the waist.

mod cases;
mod world;

use std::sync::Arc;

use bitflags::bitflags;
use tombolo_core::fs::{Export, FileSystem, PermissionCheck};

pub use world::World;

pub use crate::report::{Report, Skip, Verdict};

bitflags! {
    /// Requirements of a case on the file system or its runner.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Needs: u16 {
        /// Files of several owners can be made.
        const OWNERS = 1;
        /// The back end checks permissions.
        const CHECKS = 1 << 1;
        /// The optional group of extended attributes.
        const XATTRS = 1 << 2;
        /// The optional group of locks.
        const LOCKS = 1 << 3;
        /// The optional group of persistent handles.
        const HANDLES = 1 << 4;
        /// The optional group of operations on ranges.
        const RANGES = 1 << 5;
        /// Openings in the back end: an open file survives the removal of its last name. Protocols without
        /// OPEN lack them.
        const OPENINGS = 1 << 6;
        /// Appends are atomic, even among concurrent ones.
        const APPENDS = 1 << 7;
        /// A change can be requested to drop set-user-id and set-group-id.
        const KILLS = 1 << 8;
        /// Times before 1970.
        const OLD_TIMES = 1 << 9;
        /// Another session reads written data at once, without sync or close; a write-behind client promises
        /// less (close-to-open).
        const AT_ONCE = 1 << 10;
        /// Permissions granted at open persist for that opening.
        const RIGHTS = 1 << 11;
        /// The optional group of changes: a session gets notices of changes by others.
        const CHANGES = 1 << 12;
        /// The optional group of versions: a session validates cached state by a count in memory.
        const VERSIONS = 1 << 13;
        /// A node whose look-ups have all been forgotten is unknown. Where node numbers are permanent, it
        /// remains known.
        const FORGETS = 1 << 14;
    }
}

/// One case.
#[derive(Clone, Copy)]
pub struct Case {
    /// Name of the case: `group::function`.
    pub name: &'static str,
    /// Requirements.
    pub needs: Needs,
    /// Passes, skips, or panics.
    pub run: fn(&World) -> Verdict,
}

/// Configuration of a run.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// `true` if files of several owners can be made: in memory, and on a disk for the superuser.
    pub owners: bool,
    /// Party that checks permissions.
    pub checks: PermissionCheck,
    /// Features that the layers between suite and file system lack.
    pub lacks: Needs,
}

/// Returns all cases.
pub fn cases() -> impl Iterator<Item = &'static Case> {
    cases::GROUPS.iter().flat_map(|group| group.iter())
}

/// Runs all cases, or the one named by `TOMBOLO_ONLY_CASE`, each in a session and a directory of its own.
///
/// # Panics
/// If no case has that name.
pub fn run(export: &Arc<dyn Export>, setup: Setup) -> Report {
    let only = std::env::var("TOMBOLO_ONLY_CASE").ok();
    let wanted = |case: &Case| only.as_deref().is_none_or(|only| only == case.name);
    assert!(cases().any(wanted), "there is no case {only:?}");
    run_some(export, setup, wanted)
}

/// Runs the cases selected by `wanted`.
pub fn run_some(export: &Arc<dyn Export>, setup: Setup, wanted: impl Fn(&Case) -> bool) -> Report {
    let mut report = Report::default();
    for (index, case) in cases().enumerate().filter(|(_, case)| wanted(case)) {
        report.run(case.name, || {
            let world = World::new(export.clone(), setup.checks, &format!("case-{index}"));
            let missing = case.needs.difference(offered(&*world.fs, setup));
            if missing.is_empty() { (case.run)(&world) } else { Err(Skip(format!("needs {missing:?}"))) }
        });
    }
    report
}

fn offered(fs: &dyn FileSystem, setup: Setup) -> Needs {
    let mut offered = Needs::all();
    offered.set(Needs::OWNERS, setup.owners);
    offered.set(Needs::CHECKS, fs.profile().permission_check == PermissionCheck::BackEnd);
    offered.set(Needs::XATTRS, fs.xattrs().is_some());
    offered.set(Needs::LOCKS, fs.locks().is_some());
    offered.set(Needs::HANDLES, fs.persistent_handles().is_some());
    offered.set(Needs::RANGES, fs.ranges().is_some());
    offered.set(Needs::CHANGES, fs.changes().is_some());
    offered.set(Needs::VERSIONS, fs.versions().is_some());
    offered.difference(setup.lacks)
}
