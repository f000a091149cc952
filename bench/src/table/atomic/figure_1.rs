//! Figure 1: bottlenecks of a network file system, removed one by one.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::test_host::{Mover, Serves, TestHost, Transfer, WRITTEN};
use crate::drive::{Direction, Job, Kind};
use crate::error::{Doing, Result};
use crate::measure::{Contest, Placement, Work};
use crate::report::Report;
use crate::sheet::{Sheet, sheet};

pub(super) fn run(host: &TestHost<'_>) -> Result<Report> {
    let sheet: Sheet<'_, Transfer, Mover> = host.described(sheet!(host.plan, "atomic-figure-1")?);
    let mut report = sheet.report();
    let contest = sheet.contest(Contest { costs: false, ..host.contest() });
    for rung in &sheet.rows {
        // A client with a thread per request supports unstable writes only.
        let stable = rung.direction == Direction::WriteStable;
        let movers = sheet.columns.iter().filter(|mover| !stable || mover.kind == Kind::Tombolo);
        let done = host.transfer(&mut report, &contest, rung, &movers.cloned().collect::<Vec<_>>());
        report.or_absent(&rung.name, done.map(drop))?;
    }
    // The file systems without a network.
    for (row, serves) in [("local, disk", Serves::Disk), ("local, memory", Serves::Memory)] {
        let Some(job) = sheet.rows.last().map(|rung| host.job(rung, 0)) else { continue };
        let folder = host.lay_out(serves, &job).map(|()| host.folder(serves));
        let work = folder.and_then(|folder| local_writes(&folder, job));
        let mut entrants = Vec::new();
        report.enter(&mut entrants, row, ("local", ""), work, &[], None::<Placement>);
        report.contest(row, &contest, entrants);
    }
    Ok(sheet.finish(report))
}

/// Writes the file locally.
fn local_writes(folder: &Path, job: Job) -> Result<Work<'static>> {
    let path = folder.join(WRITTEN);
    let file = OpenOptions::new().write(true).open(&path).doing_to("open", &path)?;
    let piece = vec![b'l'; job.piece_bytes];
    let once = move || {
        for (at, bytes) in job.each() {
            file.write_all_at(&piece[..bytes], at as u64).doing_to("write", &path)?;
        }
        file.sync_all().doing_to("sync", &path)
    };
    Ok(Work::repeat(1, once).bytes(job.file_bytes as u64).count_max(4))
}
