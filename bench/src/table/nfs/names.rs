//! Small files and directories.

use super::{PEER, Table};
use crate::error::Result;
use crate::files::Tree;
use crate::measure::{Clock, Placement, SyncCounter, Work};
use crate::nfs::Wait;
use crate::nfs::work::{cold_list, fill, small_files, warm_list};
use crate::peer::Nfs;
use crate::report::{Figure, Unit};

const SMALL: &str = "create + write 4 KiB stable + remove";
const SYNCS: &str = "the same: fsyncs per file";
const SMALL_TARGET: f64 = 2.0;
const PLACES: [Placement; 2] = [Placement::TwoCores, Placement::Free];
/// Number of files created while the server is traced.
const TRACED: u64 = 50;

const COLD: &str = "READDIRPLUS of 10,000 entries, cold";
const WARM: &str = "READDIRPLUS of 10,000 entries, warm";
const COLD_TARGET: f64 = 2.0;
const WARM_TARGET: f64 = 1.0;
const ENTRIES: usize = 10_000;
const QUICK_ENTRIES: usize = 500;
const DIRECTORY: &str = "listed";

/// Measures creation, writing and removal of files.
pub(super) fn files_made(table: &mut Table<'_>) {
    if !table.wants(SMALL) {
        return;
    }
    let folder = Tree::new_folder().to_string_lossy();
    let mut entrants = Vec::new();
    for place in PLACES {
        for (column, server) in table.sides.each() {
            let work = small_files(server, &folder, Wait::Sleep, &format!("{column}-{place:?}"));
            let (report, name) = (&mut table.report, (column, place.label()));
            report.enter(&mut entrants, SMALL, name, work, &[server.server()], place);
        }
    }
    table.report.contest(SMALL, &table.plan.contest(), entrants);
    table.compare_best(SMALL, PEER, Some(SMALL_TARGET));
    for (column, syncs) in syncs(table, &folder) {
        match syncs {
            Ok(count) => table.report.figures.push(Figure::single(SYNCS, "", column, Unit::Count, count)),
            Err(error) => table.report.absent(format!("{SYNCS}, {column}: {error}")),
        }
    }
    table.report.condition(format!(
        "fsyncs: fsync, fdatasync and their like, and writes with RWF_SYNC or RWF_DSYNC, of {TRACED} files in a run that was traced and not \
         timed. On a file system in memory they cost a system call"
    ));
}

/// Returns the number of syncs of each server per file.
fn syncs(table: &Table<'_>, folder: &str) -> Vec<(&'static str, Result<f64>)> {
    let count = |column: &str, server: &Nfs| {
        let mut work = small_files(server, folder, Wait::Sleep, &format!("{column}-traced"))?;
        let counter = SyncCounter::start(server.server())?;
        work.run(TRACED, &mut Clock::new())?;
        Ok(counter.stop()? as f64 / TRACED as f64)
    };
    table.sides.each().map(|(column, server)| (column, count(column, server))).collect()
}

/// Measures first and repeated listings of a directory.
pub(super) fn listings(table: &mut Table<'_>) -> Result<()> {
    let entries = table.plan.scaled(ENTRIES, QUICK_ENTRIES);
    if table.wants(COLD) {
        let (shared, folder) = (table.tree.shared(), Tree::new_folder().to_string_lossy());
        list(table, COLD, COLD_TARGET, |column, server| {
            cold_list(server, &shared, &folder, Wait::Sleep, &format!("{column}-cold"), entries)
        });
    }
    if table.wants(WARM) {
        fill(&table.tree.shared().join(DIRECTORY), entries)?;
        list(table, WARM, WARM_TARGET, |_, server| warm_list(server, DIRECTORY, Wait::Sleep, entries));
    }
    if table.wants(COLD) || table.wants(WARM) {
        table.report.condition(format!(
            "READDIRPLUS: {entries} entries, replies of up to 64 KiB, one call outstanding. Cold: a directory that the host has just made, of \
             which the server has seen no entry; the host's kernel knows all of them. Warm: the server has listed it before"
        ));
    }
    Ok(())
}

fn list(table: &mut Table<'_>, row: &str, target: f64, work: impl Fn(&str, &Nfs) -> Result<Work<'static>>) {
    let (mut entrants, place) = (Vec::new(), Placement::Free);
    for (column, server) in table.sides.each() {
        let (report, name) = (&mut table.report, (column, place.label()));
        report.enter(&mut entrants, row, name, work(column, server), &[server.server()], place);
    }
    table.report.contest(row, &table.plan.contest(), entrants);
    table.compare_best(row, PEER, Some(target));
}
