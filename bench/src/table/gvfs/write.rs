//! `write`: changes of a remote tree: unpacking of sources, a large file, and removal of everything.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Plan;
use super::build::Source;
use super::site::{Column, Site, folder};
use super::stream::fill;
use super::twice::{COLD, Job, WARM, conditions, measure, rounds};
use crate::args::GvfsArgs;
use crate::error::Result;
use crate::files::Steps;
use crate::report::Report;

type Step = (&'static str, &'static str);

/// Steps: only the large file is synced.
const STEPS: [Step; 3] = [
    ("unpack", "tar -xzf \"$1\""),
    ("write a large file", "cp \"$2\" large && sync large"),
    ("remove", "rm -rf -- *"),
];
/// Size of the large file, in MiB.
const PIECES: usize = 64;
const QUICK_PIECES: usize = 4;
const ROUNDS: usize = 3;
/// 1.3 × the bare mount.
const DIR_TARGET: f64 = 0.769;
/// Large file: 1.1 × the local tree, and ten times as fast as without a cache.
const LOCAL_TARGET: f64 = 0.909;
const NFS_TARGET: f64 = 10.0;

const COLUMNS: [Column; 5] = [Column::Local, Column::Dir, Column::Nfs, Column::Exclusive, Column::WriteBack];

pub fn run(plan: &Plan, wanted: &GvfsArgs) -> Result<Report> {
    let source = if plan.quick { Source::Lua } else { wanted.source };
    let mut report = plan.report("gvfs-write", "Changes of a remote tree");
    let (folder, shared) = folder(wanted)?;
    let site = Site::new(plan, wanted, &shared, folder.path())?;
    let pieces = plan.scaled(PIECES, QUICK_PIECES);
    let given = [source.tarball()?, folder.path().join("given")];
    fill(&given[1], pieces)?;
    let rows = STEPS.map(|(name, _)| name);
    let work = |root: &Path| work(root, &given);
    let rounds = rounds(plan, ROUNDS);
    let job = Job { rows: &rows, run: &work, bytes: None, bare_bytes: 0 };
    measure(&mut report, &site, &wanted.columns(&COLUMNS), rounds, &job)?;
    let cell = |column: Column, run| (column.name(), run);
    for variant in [COLD, WARM] {
        let ours = cell(Column::WriteBack, variant);
        for (row, other, target) in [
            (rows[0], Column::Dir, Some(DIR_TARGET)),
            (rows[2], Column::Dir, Some(DIR_TARGET)),
            (rows[0], Column::Nfs, None),
            (rows[1], Column::Local, Some(LOCAL_TARGET)),
            (rows[1], Column::Nfs, Some(NFS_TARGET)),
        ] {
            report.compare_cells(row, ours, cell(other, variant), target);
        }
    }
    conditions(&mut report, rounds, &wanted.disk);
    report.condition(format!(
        "unpacked is the source of {}; a large file of {pieces} MiB is copied from a local one, and sync(1) waits until it is on a disk: the far server's, and with write-back the one here. \
         Changes go on to the origin while the next step runs. The paper's phase that wrote a large file took half as long with its write-back",
        source.name()
    ));
    site.describe(&mut report);
    Ok(report)
}

/// Returns the time of each step, in a separate directory of the tree.
fn work(root: &Path, given: &[PathBuf]) -> Result<Vec<Duration>> {
    Steps { steps: &STEPS, arguments: given.iter().map(Into::into).collect() }.timed(&root.join("work"))
}
